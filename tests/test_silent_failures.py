"""Cases that once went wrong without a word: each of these gave a wrong answer, or none, where there is a right one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import adakern as ak


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 5))
    return X, np.sign(X[:, 0])


@pytest.mark.parametrize("decay", [range(1, 3), (1.0, 2.0), np.array([1, 2]), jnp.array([1.0, 2.0]), iter([1.0, 2.0])])
def test_every_sequence_of_decays_is_one_per_layer(decay):
    assert ak.NNGPK(ak.MLP(1), decay=decay).decays == (1.0, 2.0)


def test_decays_without_an_order_are_refused():
    with pytest.raises(TypeError, match="decay must be one number or a sequence of 2"):
        ak.NNGPK(ak.MLP(1), decay={1.0, 2.0})


def test_scalars_of_numpy_and_jax_are_numbers():
    assert ak.NNGPK(ak.MLP(1), beta=np.array(2.0), decay=jnp.array(3.0)) == ak.NNGPK(ak.MLP(1), beta=2.0, decay=3.0)


@pytest.mark.parametrize(
    "activation",
    [
        pytest.param(jax.lax.erf, marks=pytest.mark.long),
        pytest.param(jnp.tanh, marks=pytest.mark.long),
        lambda h: jnp.clip(h, -1, 1),
    ],
)
def test_what_quadrature_cannot_resolve_is_not_returned_silently(data, activation):
    X, y = data
    with pytest.raises(ak.ConvergenceError, match="quadrature cannot resolve the activation .* rescale X to order one"):
        ak.solve(ak.NTK(ak.MLP(1, activation)), 1e3 * X, y)


@pytest.mark.long
def test_a_homogeneous_callable_is_resolved_at_every_scale(data):
    X, y = data

    def leaky(h):
        return jnp.where(h > 0, h, 0.0)

    network = ak.MLP(2, leaky)
    assert network.activation.degree == 1
    own = ak.solve(ak.NTK(network, ridge=1.0), 1e4 * X, y).kernel
    np.testing.assert_allclose(own, ak.solve(ak.NTK(ak.MLP(2, "relu"), ridge=1.0), 1e4 * X, y).kernel, rtol=1e-7)


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e6])
def test_singular_systems_with_a_little_shrinkage(data, scale):
    X, y = data
    doubled, labels = np.vstack([X, X]), np.concatenate([y, 0.1 - y])
    for limit in (ak.NNGPK(ak.MLP(1, "linear")), ak.NTK(ak.MLP(2, "relu"), ridge=1e-15)):
        solution = ak.solve(limit, scale * doubled, labels)
        np.testing.assert_allclose(solution.fitted[:30], solution.fitted[30:], atol=1e-5)


def test_deep_networks_compile_in_seconds(data):
    X, y = data
    deep = ak.solve(ak.NTK(ak.MLP(60, "relu"), ridge=0.1), X, y)
    assert len(deep.kernels) == 60 and deep.residual < 1e-12
    # Every layer of ReLU with unit weights halves the variance.
    np.testing.assert_allclose(np.diag(deep.kernels[-1]), np.sum(X**2, axis=1) / 5 / 2.0**60, rtol=1e-12)


@pytest.mark.long
def test_scan_and_unrolled_recursion_agree(data, monkeypatch):
    X, y = data
    limit = ak.NTK(ak.MLP(6, "erf"), ridge=0.1, decay=(1.0, 0.5, 2.0, 1.0, 1.5, 0.7, 1.2))
    scanned = ak.solve(limit, X[:17], y[:17])
    monkeypatch.setattr("adakern.recursion._UNROLLED", 100)
    jax.clear_caches()
    unrolled = ak.solve(limit, X[:17], y[:17])
    np.testing.assert_allclose(scanned.kernel, unrolled.kernel, rtol=1e-13)


def test_gelu_in_float32_does_not_overflow(data):
    X, y = data
    assert np.isfinite(ak.solve(ak.NTK(ak.MLP(2, "gelu"), ridge=1.0), 1e5 * X, y, precision="float32").kernel).all()


def test_another_function_at_load_is_recognised(data, tmp_path):
    X, y = data
    ak.solve(ak.NNGPK(ak.MLP(1, jax.nn.silu)), X, y).save(tmp_path / "run.safetensors")
    with pytest.raises(ak.FileFormatError, match="not the one that the file was made with"):
        ak.load(tmp_path / "run.safetensors", activation=jax.nn.relu)
    assert ak.load(tmp_path / "run.safetensors", activation=jax.nn.silu).limit.network.activation.name == "silu"


def test_no_new_points_give_no_predictions(data):
    X, y = data
    solution = ak.solve(ak.NNGP(ak.MLP(1)), X, np.column_stack([y, y]))
    assert solution.predict(X[:0]).shape == (0, 2)
    assert solution.cross_kernel(X[:0]).shape == (0, 30) and solution.variance(X[:0]).shape == (0,)


def test_evidence_is_frozen_all_the_way_down(data):
    X, y = data
    solution = ak.solve(ak.NNGPK(ak.MLP(1)), X, y)
    with pytest.raises(TypeError, match="cannot be changed"):
        solution.stats["linear_system"]["rank"] = 0


def test_masked_values_and_vast_seeds_are_refused(data):
    X, y = data
    with pytest.raises(ValueError, match="X must be complete, but it has masked values"):
        ak.solve(ak.NNGPK(ak.MLP(1)), np.ma.masked_greater(X, 1.0), y)
    with pytest.raises(ValueError, match=r"seed must be below 2\*\*63"):
        ak.solve(ak.ANBK(ak.MLP(1)), X, y, seed=2**70)


def test_an_unhashable_callable_is_named():
    class Odd:
        __hash__ = None

        def __call__(self, h):
            return jnp.tanh(h)

    with pytest.raises(TypeError, match="activation must be hashable"):
        ak.MLP(1, Odd())
