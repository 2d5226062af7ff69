"""What is compiled for the particle solver."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from adakern import activations, losses
from adakern.precision import scope
from adakern.solvers import answering, clock, dynamics

OPERAND = re.compile(r"@lapack_\w+\(.*?: \((tensor<[^>]*>)")


@pytest.mark.parametrize("loss", ["squared", "logistic", "softmax"])
def test_no_matrices_are_factorised_in_batches(points, loss):
    """Batched LAPACK calls of JAX wait for each other's threads: on two cores, two at once wait for ever."""
    with scope("float64"):
        X, y = points
        targets = np.stack([y, -y, y], axis=1) if loss != "softmax" else np.eye(3)[np.arange(8) % 3]
        number = jnp.asarray(1.0)
        data = dynamics.Data(
            jnp.asarray(X), jnp.arange(8), jnp.asarray(targets), number, number, jnp.ones(3), jnp.zeros((8, 3)), number
        )
        model = dynamics.Model(activations.get("tanh"), losses.get(loss))
        ticking = clock.Clock(model, data, 64, 100, 0)
        stack, shadow = dynamics.start(data, 0, 64, 2), dynamics.shadow(data, 1, 64, 2)
        yes = jnp.asarray(True)
        numbers = (ticking._next(), number, number, number, jnp.asarray(2))
        texts = [
            dynamics.advance.lower(model, data, stack, shadow, yes, yes, *numbers).as_text(),
            dynamics.stiffness.lower(model, data, stack).as_text(),
            answering._respond.lower(model, data, jnp.eye(8), jnp.ones((4, 8, 8))).as_text(),
        ]
    for text in texts:
        operands = OPERAND.findall(text)
        assert operands
        assert all(re.fullmatch(r"tensor<(1x)?\d+x\d+xf64>", operand) for operand in operands), set(operands)
