"""Which solver `solve` takes by itself, and the certificate that every two-layer answer carries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import adakern as ak


def limit(depth=1, activation="tanh", richness=0.3, beta=10.0, **numbers):
    return ak.ANBK(ak.MLP(depth, activation), richness=richness, beta=beta, **numbers)


@pytest.fixture(scope="module")
def gentle(points):
    return ak.solve(limit(), *points)


@pytest.mark.long
def test_small_tilts_go_to_the_dual(gentle):
    assert gentle.stats["solver"] == "dual" and gentle.converged
    assert 0.5 < gentle.stats["ess"] <= 1


@pytest.mark.long
def test_a_strong_tilt_goes_to_the_particles(points):
    solution = ak.solve(limit(richness=6.0, beta=50.0), *points, tolerance=0.05, throw=False)
    assert solution.stats["solver"] == "particles"


@pytest.mark.parametrize("option", [{"particles": 256}, {"steps": 30}, {"memory": 1e9}])
def test_options_of_the_particles_call_for_them(points, option):
    solution = ak.solve(limit(), *points, throw=False, tolerance=0.1, **{"particles": 256, "steps": 30, **option})
    assert solution.stats["solver"] == "particles"


@pytest.mark.long
def test_the_certificate_tells_what_an_answer_is_worth(points, gentle, find):
    error = gentle.stats["certificate_error"]
    assert -3 * error < gentle.certificate < 0.02
    rough = find(richness=0.3, beta=10.0, steps=8, throw=False)
    assert not rough.converged
    assert rough.certificate > 5 * abs(gentle.certificate) + 5 * error
    assert find(2, richness=0.3, beta=10.0).certificate is None


def test_a_wrong_answer_has_a_large_certificate(points):
    from adakern.limits.certificate import certificate

    lazy = ak.solve(limit(richness=0.0), *points)
    assert lazy.certificate is None or lazy.certificate == 0.0
    value, error = certificate(limit(richness=1.0), *points, lazy.coefficients)
    assert value > 0.1 and value > 10 * error


def test_linear_networks_have_an_exact_certificate(points):
    solution = ak.solve(limit(activation="linear", richness=2.0), *points)
    assert solution.certificate == pytest.approx(0.0, abs=1e-8)
    assert 0 < solution.stats["certificate_error"] < 1e-9


def test_certificates_are_kept_in_files(gentle, tmp_path):
    for name, value in (("a", gentle.certificate), ("b", float("inf"))):
        replace(gentle, certificate=value).save(tmp_path / f"{name}.safetensors")
        assert ak.load(tmp_path / f"{name}.safetensors").certificate == value


def test_a_solver_that_does_not_fit_is_refused(points):
    with pytest.raises(ValueError, match="one hidden layer, but the network has 2"):
        ak.solve(limit(2), *points, solver="dual")
    with pytest.raises(ValueError, match="'dual' has none"):
        ak.solve(limit(), *points, solver="dual", checkpoint="x.safetensors")
    with pytest.raises(ValueError, match="solver must be one of"):
        ak.solve(limit(), *points, solver="newton")


def test_same_seed_same_answer(points, gentle):
    again = ak.solve(limit(), *points)
    np.testing.assert_array_equal(again.kernel, gentle.kernel)
    other = ak.solve(limit(), *points, seed=1)
    assert 0 < np.linalg.norm(other.kernel - gentle.kernel) < 5 * np.linalg.norm(gentle.kernel_errors[0])
