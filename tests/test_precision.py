"""Precision is chosen per call; the process's own setting is neither used nor touched."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import adakern as ak
from adakern.precision import scope

NETWORK = ak.MLP(2, "erf")


def run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


SOLVE = """
import numpy as np
rng = np.random.default_rng(0)
X, y = rng.standard_normal((12, 5)), rng.standard_normal(12)
def one(precision):
    s = ak.solve(ak.NTK(ak.MLP(1, "relu")), X, y, precision=precision)
    return [s.kernel.dtype, s.predict(X).dtype, s.predict(X + 0.1).tobytes().hex()]
"""


def test_nothing_is_configured_at_import_nor_by_a_solve():
    out = run(
        "import jax, jax.numpy as jnp\nimport adakern as ak\n"
        "print(jax.config.jax_enable_x64, jnp.ones(1).dtype, jax.config.jax_numpy_rank_promotion)\n"
        f"{SOLVE}\none('float64')\n"
        "print(jax.config.jax_enable_x64, jnp.ones(1).dtype, jax.config.jax_default_matmul_precision)\n"
    )
    assert out == ["False", "float32", "allow", "False", "float32", "None"]


def test_the_same_whether_or_not_the_user_has_switched_x64_on():
    code = f"{SOLVE}\nprint(*one('float64'), *one('float32'))\nprint(jnp.ones(1).dtype)"
    off = run(f"import jax.numpy as jnp\nimport adakern as ak\n{code}")
    on = run(f"import jax, jax.numpy as jnp\njax.config.update('jax_enable_x64', True)\nimport adakern as ak\n{code}")
    assert off[:2] == ["float64", "float64"] and off[3:5] == ["float32", "float32"]
    assert on[:-1] == off[:-1]
    assert (off[-1], on[-1]) == ("float32", "float64")


def test_scope_restores_what_was_there():
    before = jax.config.jax_enable_x64
    with scope("float64") as outer:
        assert jnp.ones(1).dtype == outer == np.float64
        with scope("float32") as inner:
            assert jnp.ones(1).dtype == inner == np.float32
        assert jnp.ones(1).dtype == np.float64
    assert jax.config.jax_enable_x64 == before
    with pytest.raises(RuntimeError, match="inside"), scope("float64"):
        raise RuntimeError("inside")
    assert jax.config.jax_enable_x64 == before


def test_unknown_precision(data):
    with pytest.raises(ValueError, match="precision must be one of 'float32', 'float64', but it is 'float16'"):
        ak.solve(ak.NNGPK(NETWORK), data[0], data[1], precision="float16")


@pytest.mark.parametrize(
    "limit", [ak.NNGP(NETWORK), ak.NTK(ak.MLP(2, "relu"), ridge=0.1)], ids=lambda limit: limit.kind
)
def test_float32_is_close_to_float64(limit, data, solved):
    """Kernels to a few units of 1.2e-7; predictions to that times the condition number, at most (λ_max + r)/r."""
    single, double = solved(limit, "float32"), solved(limit)
    assert single.precision == "float32"
    for name in ("kernel", "coefficients", "fitted"):
        assert getattr(single, name).dtype == np.float32, name
    eps = np.finfo(np.float32).eps
    np.testing.assert_allclose(single.kernel, double.kernel, atol=32 * eps * double.kernel.max())
    condition = np.linalg.eigvalsh(double.kernel)[-1] / limit.shrinkage + 1
    found = single.predict(data[2])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, double.predict(data[2]), atol=32 * eps * condition)
    assert single.residual < 32 * eps * condition
    assert single.converged
