"""Finding an activation by name, and refusing what cannot be one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adakern import activations


def test_names():
    assert activations.NAMES == ("linear", "relu", "erf", "tanh", "gelu", "sine")
    for name in activations.NAMES:
        phi = activations.get(name)
        assert phi.name == name
        assert activations.is_builtin(phi)
        assert activations.get(phi) is phi


def not_differentiable(h):
    return jnp.asarray(np.tanh(np.asarray(h)))


def raises_an_error(h):
    raise RuntimeError("no")


@pytest.mark.parametrize(
    "value, kind, message",
    [
        ("reLU", ValueError, r"activation must be one of 'linear', 'relu'.* or a callable, but it is 'reLU'"),
        (3, TypeError, r"activation must be one of .* or a callable, but it is 3"),
        (None, TypeError, r"activation must be one of .* or a callable, but it is None"),
        (jax.nn.softmax, TypeError, r"activation must be an elementwise function .* 'softmax' failed"),
        (lambda h: h - jnp.mean(h), ValueError, r"activation must be elementwise"),
        (jnp.sum, ValueError, r"activation must be elementwise"),
        (lambda h: h[..., None], ValueError, r"activation must be elementwise"),
        (not_differentiable, TypeError, r"activation must be an elementwise function .* 'not_differentiable' failed"),
        (raises_an_error, TypeError, r"activation must be an elementwise function .* failed: no"),
        (jnp.log, ValueError, r"activation must be finite for every real input, but 'log' is not"),
        (jnp.sqrt, ValueError, r"activation must be finite for every real input"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or repr(value)[:24],
)
def test_refused(value, kind, message):
    with pytest.raises(kind, match=message):
        activations.get(value)
