"""The aNTK as a problem: its numbers, and an audit that knows an answer from something that is nearly one.

Independent inputs, Φ⁰ = I, have a ReLU network in closed form: one neuron for the positive labels and one for the negative.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import adakern as ak
from adakern import precision
from adakern.limits import Answer

RICHNESS, DECAYS = 2.0, (0.3, 0.5)
PRICE = float(np.sqrt(DECAYS[0] * DECAYS[1])) / RICHNESS
LIMIT = ak.ANTK(ak.MLP(1, "relu"), richness=RICHNESS, decay=DECAYS)
Y = np.array([1.0, -0.5, 0.7, -1.2])
X = 2.0 * np.eye(4)  # D = 4: Φ⁰ = XXᵀ/4 = I


def network(fields, delta, slopes, y=Y, limit=LIMIT):
    """The answer that neurons with these fields, of equal shares, make."""
    shares = np.full(len(fields), 1 / len(fields))
    phi = np.maximum(fields, 0.0)
    kernel = phi.T @ phi / len(fields)
    gradients = slopes * (limit.richness / limit.decays[1] * phi @ delta)[:, None]
    gram = gradients.T @ gradients / len(fields)
    tangent = kernel + np.eye(len(y)) * gram
    return Answer(
        kernels=(kernel,),
        kernel=tangent,
        coefficients=(delta / sum(limit.decays))[:, None],
        fitted=(kernel @ delta / limit.decays[1])[:, None],
        errors=delta[:, None],
        kernel_errors=(np.zeros_like(kernel),),
        gradient_kernels=(gram,),
        draws=(fields,),
        slopes=(slopes,),
        shares=(shares,),
    )


def exact():
    """h = c u with u the labels of one sign, and c² w = λ1(|y| - μ)/μ."""
    parts = [np.maximum(Y, 0), np.maximum(-Y, 0)]
    sizes = np.array([np.linalg.norm(part) for part in parts])
    units = np.stack([part / size for part, size in zip(parts, sizes, strict=True)])
    fields = np.sqrt(2 * DECAYS[1] * (sizes - PRICE) / PRICE)[:, None] * units
    return network(fields, PRICE * (units[0] - units[1]), (units > 0).astype(float))


def audit(answer, limit=LIMIT, inputs=X, y=Y):
    with precision.scope("float64"):
        return limit.audit(inputs, y[:, None], answer)


def test_the_closed_form_passes():
    residual, report = audit(exact())
    assert residual < 1e-14
    assert abs(report["certificate"]) < 1e-12
    assert report["largest_pull"] == pytest.approx(1, abs=1e-12)
    sizes = [np.linalg.norm(Y[Y > 0]), np.linalg.norm(Y[Y < 0])]
    assert report["value"] == pytest.approx(PRICE**2 + PRICE * (sum(sizes) - 2 * PRICE), rel=1e-12)
    with precision.scope("float64"):
        assert LIMIT.residual(X, Y[:, None], exact()) == residual


def scaled(name, factor):
    def change(answer):
        value = getattr(answer, name)
        spoilt = tuple(factor * part for part in value) if isinstance(value, tuple) else factor * value
        return replace(answer, **{name: spoilt})

    return change


def turned(answer):
    """A neuron that points a little elsewhere, in a consistent network."""
    fields = answer.draws[0].copy()
    fields[0, 0] *= 1.1
    return network(fields, answer.errors[:, 0], answer.slopes[0])


def switched(answer):
    slopes = answer.slopes[0].copy()
    slopes[0, 0] = 0.9
    return replace(answer, slopes=(slopes,))


def outside(answer):
    """No slope of ReLU, and of no consequence otherwise: there is nothing at that point."""
    slopes = answer.slopes[0].copy()
    slopes[0, 1] = -0.2
    return replace(answer, slopes=(slopes,))


@pytest.mark.parametrize("factor", [1.01, 0.99])
@pytest.mark.parametrize(
    "name", ["kernels", "kernel", "coefficients", "fitted", "errors", "gradient_kernels", "draws", "slopes", "shares"]
)
def test_everything_counts(name, factor):
    assert audit(scaled(name, factor)(exact()))[0] > 1e-3


@pytest.mark.parametrize("change", [turned, switched, outside], ids=lambda change: change.__name__)
def test_small_lies_are_found(change):
    assert audit(change(exact()))[0] > 0.01


def test_what_is_not_finite_is_no_answer():
    answer = exact()
    errors = answer.errors.copy()
    errors[0] = np.nan
    assert audit(replace(answer, draws=(np.full_like(answer.draws[0], np.nan),)))[0] == np.inf
    residual, report = audit(replace(answer, fitted=errors))
    assert residual == np.inf and report["audit"]["doubt"] is None


def refitted(fields):
    """Neurons whose readout is the best, but which are not where they should be."""
    phi = np.maximum(fields, 0.0)
    kernel = phi.T @ phi / len(fields)
    delta = DECAYS[1] * np.linalg.solve(kernel + DECAYS[1] * np.eye(4), Y)
    return network(fields, delta, (fields > 0).astype(float))


def test_the_certificate_misses_a_neuron():
    """A neuron gone: what is left is nearly stationary, but the neuron that is not there pulls harder than it costs."""
    answer = exact()
    alone = answer.draws[0][:1] / np.sqrt(2)
    residual, report = audit(refitted(alone))
    assert residual < 1e-12  # alone it is at rest
    assert report["largest_pull"] == pytest.approx(np.linalg.norm(Y[Y < 0]) / PRICE, rel=1e-9)
    assert report["certificate"] > 0.3


def test_the_certificate_bounds_the_excess():
    """p - p* is at most the gap, whatever the neurons."""
    best = audit(exact())[1]["value"]
    rng = np.random.default_rng(0)
    for size in (0.1, 1.0):
        fields = exact().draws[0] * np.exp(size * rng.normal(size=(2, 4)))
        report = audit(refitted(fields))[1]
        assert report["value"] > best
        assert report["certificate"] >= (report["value"] - best) / report["value"]


def test_one_kernel_or_the_other():
    assert LIMIT.kernel_is_tangent(1) and not LIMIT.kernel_is_tangent(2)
    assert not ak.ANTK(ak.MLP(1, "tanh")).kernel_is_tangent(1)
    assert ak.ANTK(ak.MLP(2, "linear")).kernel_is_tangent(1)


def test_without_decay_there_is_dynamics():
    for decay in (0.0, (1.0, 0.0)):
        limit = ak.ANTK(ak.MLP(1, "relu"), decay=decay)  # a problem of dynamics
        with pytest.raises(ValueError, match=r"decay must be positive at every layer for solve.*dynamics\(limit"):
            ak.solve(limit, X, Y)


def test_bad_numbers():
    with pytest.raises(ValueError, match="richness must be 0 or greater"):
        ak.ANTK(ak.MLP(1, "relu"), richness=-1.0)
    with pytest.raises(ValueError, match="decay"):
        ak.ANTK(ak.MLP(1, "relu"), decay=(1.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="decay"):
        ak.ANTK(ak.MLP(1, "relu"), decay=-0.1)
    with pytest.raises(ValueError, match="loss"):
        ak.ANTK(ak.MLP(1, "relu"), loss="hinge")


@pytest.mark.parametrize(
    "options",
    [{"solver": "particles"}],
    ids=lambda options: next(iter(options)),
)
def test_options_without_a_meaning(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} has no meaning for ANTK, which is solved by descent"):
        ak.solve(LIMIT, X, Y, **options)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"tolerance": 0.0}, "tolerance"),
        ({"steps": 0}, "steps"),
        ({"particles": 1}, "particles"),
        ({"memory": -1.0}, "memory"),
        ({"seed": -1}, "seed"),
        ({"precision": "float16"}, "precision"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        ak.solve(LIMIT, X, Y, **options)


def test_kernels_are_no_start():
    with pytest.raises(TypeError, match="init must be a Solution of an ANTK"):
        ak.solve(LIMIT, X, Y, init=[np.eye(4)])


def test_bad_data():
    spoilt = X.copy()
    spoilt[1, 2] = np.nan
    with pytest.raises(ValueError, match="X"):
        ak.solve(LIMIT, spoilt, Y)
    with pytest.raises(ValueError, match="y"):
        ak.solve(LIMIT, X, Y * np.inf)
    with pytest.raises(ValueError, match="y"):
        ak.solve(LIMIT, X, Y[:3])
    with pytest.raises(ValueError, match="y"):
        ak.solve(replace(LIMIT, loss="logistic"), X, Y)
    with pytest.raises(ValueError, match="y"):
        ak.solve(replace(LIMIT, loss="softmax"), X, np.ones((4, 2)))
