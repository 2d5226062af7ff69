"""The aNBK of convolutional networks: laws over (point, position)."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, optimize, stats

import adakern as ak
from adakern import activations, inputs, losses
from adakern.limits import sites
from adakern.limits.base import Answer
from adakern.precision import scope
from adakern.solvers import dynamics

IMAGES = np.random.default_rng(3).normal(size=(5, 3, 3, 2))
NEW = np.random.default_rng(4).normal(size=(3, 3, 3, 2))
LABELS = np.array([1.0, -1.0, 1.0, -1.0, -1.0])
DEEP = ak.CNN(2, 2, activation="tanh", padding="same")  # windows overlap, and see beyond the image
POOLED = ak.CNN(1, 2, activation="tanh", padding="circular", readout="mean")
each_padding = pytest.mark.parametrize("padding", ["valid", "same", "circular"])


def solved(network=DEEP, X=IMAGES, y=LABELS, *, richness=1.0, beta=10.0, seed=0, **options):
    options = {"particles": 512, "tolerance": 0.04} | options
    return ak.solve(ak.ANBK(network, richness=richness, beta=beta), X, y, seed=seed, **options)


@pytest.fixture(scope="module")
def deep():
    return solved()


def distance(first, second, order=slice(None)):
    """How many joint standard errors two answers' kernels are apart."""
    result = []
    for a, b, e, g in zip(first.kernels, second.kernels, first.kernel_errors, second.kernel_errors, strict=True):
        moved = b[order][:, :, order] if b.ndim == 4 else b[order][:, order]
        result.append(np.linalg.norm(a - moved) / np.hypot(np.linalg.norm(e), np.linalg.norm(g)))
    return max(result)


def seen_by_hand(network, shape, kernel):
    """What the windows of the second layer see of (P, S, P, S), one entry after the other."""
    taps = network.taps(shape)[1]
    result = np.zeros((len(kernel), len(taps), len(kernel), len(taps)))
    for a, row in enumerate(taps):
        for c, column in enumerate(taps):
            for i, j in zip(row, column, strict=True):
                if i >= 0 and j >= 0:
                    result[:, a, :, c] += kernel[:, i, :, j]
    return result


@each_padding
@pytest.mark.parametrize("stride", [1, 2])
def test_windows_see_what_they_should(padding, stride):
    network = ak.CNN(2, (2, (3, 2)), (1, stride), padding=padding)
    shape = (4, 5, 4, 1)
    where = sites.of(network, shape)
    below, above = where.counts
    rows = np.random.default_rng(0).normal(size=(4 * below, 30))
    kernel = rows @ rows.T
    expected = seen_by_hand(network, shape, kernel.reshape(4, below, 4, below)).reshape(4 * above, 4 * above)
    with scope("float64"):
        found = where.seen(0, jnp.asarray(kernel))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        # Two of the images against the others.
        block = where.cross(0, jnp.asarray(kernel[: 2 * below, 2 * below :].reshape(2, below, -1)))
        np.testing.assert_allclose(
            block.reshape(2 * above, -1), expected[: 2 * above, 2 * above :], rtol=1e-12, atol=1e-12
        )
    np.testing.assert_allclose(sum(part @ part.T for part in where.shifted(0, rows)), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mean", [False, True])
def test_what_the_readout_pools(mean):
    features = np.random.default_rng(0).normal(size=(2, 7, 3 * 4))
    pool = sites.Pool(4, mean)
    split = features.reshape(2, 7, 3, 4)
    by_hand = (
        np.einsum("gnp,gnq->gpq", *[split.mean(axis=-1)] * 2) if mean else np.einsum("gnpa,gnqa->gpq", split, split)
    )
    with scope("float64"):
        rows = pool.rows(jnp.asarray(features))
        np.testing.assert_allclose(jnp.swapaxes(rows, 1, 2) @ rows, by_hand, rtol=1e-12)
        lengths = pool.totals(jnp.sum(rows**2, axis=-1), 7)
        np.testing.assert_allclose(lengths.sum(axis=1), np.einsum("gpp->g", by_hand), rtol=1e-12)
        other = np.random.default_rng(1).normal(size=rows[0].shape)
        back = pool.transpose(jnp.asarray(other), 7)
        np.testing.assert_allclose(jnp.sum(rows[0] * other), jnp.sum(features[0] * back), rtol=1e-12)


def energy_by_hand(network, X, y, positions, shift=0.0):
    """E of two layers of neurons, from the definitions."""
    shape, points = X.shape, len(X)
    counts = network.sites(shape)
    with scope("float64"):
        root = np.asarray(inputs.root(network, X, 1.0)[0])
    kernel = np.tanh(positions[0] @ root.T)
    kernel = kernel.T @ kernel / len(kernel) + shift
    seen = seen_by_hand(network, shape, kernel.reshape(points, counts[0], points, counts[0]))
    seen = seen.reshape(points * counts[1], -1) / 0.7
    floor = 1e-9 * np.trace(seen) / len(seen)
    features = np.tanh(positions[1] @ np.linalg.cholesky(seen + floor * np.eye(len(seen))).T)
    features = features.reshape(len(features), points, counts[1])
    if network.readout == "mean":
        last = np.einsum("np,nq->pq", *[features.mean(axis=2)] * 2) / len(features)
    else:
        last = np.einsum("npa,nqa->pq", features, features) / len(features)
    return 0.5 * 1.3**2 * y @ np.linalg.solve(np.eye(points) / 10 + last / 1.2, y)


@pytest.mark.parametrize(
    ("padding", "readout", "chunks"),
    [("same", "flatten", 1), pytest.param("circular", "mean", 2, marks=pytest.mark.long)],
)
def test_forces_are_slopes_of_the_free_energy(padding, readout, chunks):
    """Also the duals: derivatives with respect to the kernel between the layers."""
    network = ak.CNN(2, 2, activation="tanh", padding=padding, readout=readout)
    X, y, count = IMAGES[:2], np.array([1.0, -0.5]), 40
    rng = np.random.default_rng(0)
    with scope("float64"):
        where = sites.of(network, X.shape)
        root, _ = inputs.root(network, X, 1.0)
        numbers = (jnp.asarray(1.3), jnp.asarray(10.0), jnp.asarray([1.0, 0.7, 1.2]))
        column = jnp.asarray(y[:, None])
        data = dynamics.Data(root, jnp.arange(2), column, *numbers, jnp.zeros_like(column), jnp.zeros(()))
        model = dynamics.Model(activations.get("tanh"), losses.get("squared"), chunks, where)
        positions = [rng.normal(size=(count, size)) for size in (root.shape[1], 18)]
        stack = tuple(jnp.asarray(x)[None] for x in positions)
        pull = jax.jit(dynamics._pull, static_argnums=0)(model, data, stack, jnp.zeros((1, 2, 1)), jnp.asarray(True))
        assert float(pull.energy) == pytest.approx(energy_by_hand(network, X, y, positions), rel=1e-9)
        ways, step = [rng.normal(size=x.shape) for x in positions], 1e-5
        above, below = (
            energy_by_hand(network, X, y, [x + sign * step * w for x, w in zip(positions, ways, strict=True)])
            for sign in (1, -1)
        )
        slope = sum(np.sum(w * (x + f[0])) for w, x, f in zip(ways, positions, pull.forces, strict=True))
        assert -slope == pytest.approx(count * (above - below) / (2 * step), rel=1e-5)
        change = rng.normal(size=(18, 18))
        change = change + change.T
        above, below = (energy_by_hand(network, X, y, positions, sign * step * change) for sign in (1, -1))
        found = 0.5 * float(np.sum(np.asarray(pull.duals[0]) * change))
        assert found == pytest.approx((above - below) / (2 * step), rel=1e-4)


@pytest.mark.long
def test_a_window_as_large_as_the_image_is_an_mlp():
    images = solved(ak.CNN(1, 3, activation="tanh"))
    vectors = solved(ak.MLP(1, "tanh"), IMAGES.reshape(5, -1), solver="particles")
    np.testing.assert_allclose(images.kernel, vectors.kernel, rtol=1e-6)
    np.testing.assert_allclose(images.fitted, vectors.fitted, rtol=1e-6)
    assert images.residual == pytest.approx(vectors.residual, rel=1e-3)
    assert images.certificate == pytest.approx(vectors.certificate, abs=1e-6)
    np.testing.assert_allclose(images.predict(NEW), vectors.predict(NEW.reshape(3, -1)), rtol=1e-5, atol=1e-7)


@pytest.mark.long
def test_positions_that_do_not_see_each_other():
    """One image of two orthogonal patches of different lengths: the positions are independent given v, and each has the law of one point."""
    patches = np.array([[2.0, 0.0], [0.0, 1.2]])
    X = patches.reshape(1, 1, 4, 1)
    sizes, richness, beta = np.sum(patches**2, axis=1) / 2, 1.0, 5.0

    def density(h, v, size):
        return np.exp(-(h**2) / (2 * size) + 0.5 * richness**2 * v**2 * np.tanh(h) ** 2)

    def second(v, size):
        norm = integrate.quad(density, -12, 12, args=(v, size))[0]
        return integrate.quad(lambda h: np.tanh(h) ** 2 * density(h, v, size), -12, 12)[0] / norm

    def whole(k):
        return sum(second(1 / (1 / beta + k), size) for size in sizes)

    kernel = optimize.brentq(lambda k: whole(k) - k, 1e-3, 2.0)
    found = solved(ak.CNN(1, (1, 2), 2, "tanh"), X, [1.0], richness=richness, beta=beta, tolerance=0.02)
    assert abs(found.kernel[0, 0] - kernel) < 4 * found.kernel_errors[0][0, 0]
    assert found.residual < 0.05 and abs(found.certificate) < 4 * found.stats["certificate_error"] + 1e-3
    grid, v = np.linspace(-12, 12, 4001), 1 / (1 / beta + kernel)
    for position, size in enumerate(sizes):
        cumulative = integrate.cumulative_trapezoid(density(grid, v, size), grid, initial=0)
        cumulative /= cumulative[-1]
        values, weights = found.density(1, 0, position)
        assert len(values) == len(weights) and weights.sum() == pytest.approx(1)
        assert stats.kstest(values[::8], lambda h, c=cumulative: np.interp(h, grid, c)).pvalue > 1e-3
    large = 1.3 * found.kernel
    assert spoilt(found, kernels=(large,), kernel=large)["doubt"] > 0.15
    with pytest.raises(ValueError, match="position must be at most 1"):
        found.density(1, 0, 2)


def spoilt(solution, **changes):
    """The answer that a solution claims, with something else in it."""
    y = solution.y[:, None]
    answer = Answer(
        kernels=solution.kernels,
        kernel=solution.kernel,
        coefficients=solution.coefficients[:, None],
        fitted=solution.fitted[:, None],
        errors=solution.errors[:, None],
        kernel_errors=solution.kernel_errors,
        duals=solution.duals,
        draws=solution.draws,
    )
    with scope("float64"):
        return solution.limit.audit(solution.X, y, replace(answer, **changes))[1]["audit"]


def test_the_audit(deep):
    assert deep.converged and deep.residual < 0.06
    audit = deep.stats["audit"]
    assert len(audit["parts"]["kernels"]) == 2 and len(audit["parts"]["duals"]) == 1 and "status" not in audit
    assert deep.free_energy > 0 and deep.certificate is None
    first, last = deep.kernels
    large = spoilt(deep, kernels=(1.3 * first, last))
    assert large["parts"]["kernels"][0] > 0.15
    large = spoilt(deep, kernels=(first, 1.3 * last), kernel=1.3 * last)
    assert large["parts"]["kernels"][1] > 0.15 and large["doubt"] > 0.15


def test_duals_between_positions(deep):
    r"""The dual of the inner layer, over (point, position), from the solution's own $\Phi^1$ and $v$: neurons of the last layer weighted by what the data make of them, by parts with $\varphi''$.

    Windows overlap, and $\Phi^1$ is nearly singular: what its inverse makes of noise is four times the dual.
    """
    points, count, draws = 5, 9, 20_000
    rng = np.random.default_rng(1)
    seen = seen_by_hand(DEEP, IMAGES.shape, deep.kernels[0]).reshape(points * count, -1)
    values, vectors = np.linalg.eigh(seen)
    h = rng.standard_normal((draws, points * count)) @ (vectors * np.sqrt(np.maximum(values, 0))).T
    v = np.linalg.solve(np.eye(points) / 10.0 + deep.kernel, LABELS)
    phi = np.tanh(h).reshape(draws, points, count)
    pull = np.einsum("npa,p->na", phi, v)
    weights = np.exp(0.5 * np.sum(pull**2, axis=1))
    weights /= weights.sum()
    slope = 1 - phi**2
    force = -slope * pull[:, None, :] * v[None, :, None]
    wide = -np.einsum("p,q,ab->paqb", v, v, np.eye(count))
    hessian = np.einsum("n,npa,nqb->paqb", weights, slope, slope, optimize=True) * wide
    bend = np.einsum("n,npa->pa", weights, 2 * phi * slope * pull[:, None, :]) * v[:, None]
    hessian += np.einsum("pa,pq,ab->paqb", bend, np.eye(points), np.eye(count))
    above = hessian - np.einsum("n,npa,nqb->paqb", weights, force, force, optimize=True)
    expected, taps = np.zeros((points, count, points, count)), DEEP.taps(IMAGES.shape)[1]
    for a, row in enumerate(taps):
        for c, column in enumerate(taps):
            for i, j in zip(row, column, strict=True):
                if i >= 0 and j >= 0:
                    expected[:, i, :, j] += above[:, a, :, c]
    assert np.linalg.norm(deep.duals[0] - expected) < 0.06 * np.linalg.norm(expected)


@pytest.mark.long
def test_the_audit_of_duals(deep):
    """A dual of the wrong size is seen, beyond what the right one shows."""
    right, noise = deep.stats["audit"]["parts"]["duals"][0], deep.stats["audit"]["noise"]["duals"][0]
    lower, top = deep.duals
    for factor in (0.0, 2.0, -1.0):
        wrong = spoilt(deep, duals=(factor * lower, top))["parts"]["duals"][0]
        assert wrong > 3 * right and wrong > right + 10 * noise


@pytest.mark.long
def test_shapes_and_predictions_at_the_training_images(deep, tmp_path):
    assert [kernel.shape for kernel in deep.kernels] == [(5, 9, 5, 9), (5, 5)]
    assert [dual.shape for dual in deep.duals] == [(5, 9, 5, 9), (5, 5)]
    assert [error.shape for error in deep.kernel_errors] == [(5, 9, 5, 9), (5, 5)]
    f, error = deep.predict(IMAGES, return_std=True)
    assert (np.abs(f - deep.fitted) < 4 * error + 1e-3).all() and error.max() < 0.05
    at_once = deep.predict(NEW)
    np.testing.assert_allclose(deep.predict(NEW, memory=1), at_once, rtol=1e-8)  # one image at a time
    for layer in (1, 2):
        values, _ = deep.density(layer, 2, 5)
        assert values.std() > 0.3 and abs(values.mean()) < 0.2
    deep.save(tmp_path / "deep.safetensors")
    again = ak.load(tmp_path / "deep.safetensors")
    assert again.limit == deep.limit and again.status == deep.status
    for mine, theirs in zip((*again.kernels, *again.duals), (*deep.kernels, *deep.duals), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(again.predict(NEW), at_once)
    np.testing.assert_array_equal(again.density(2, 1, 3)[0], deep.density(2, 1, 3)[0])


@pytest.mark.long
def test_little_richness_is_lazy():
    found = solved(richness=0.03)
    lazy = ak.solve(ak.NNGPK(DEEP, beta=10.0), IMAGES, LABELS)
    for mine, theirs, error in zip(found.kernels, lazy.kernels, found.kernel_errors, strict=True):
        assert np.linalg.norm(mine - theirs) < 3 * np.linalg.norm(error) + 1e-3 * np.linalg.norm(theirs)
    f, error = found.predict(NEW, return_std=True)
    assert (np.abs(f - lazy.predict(NEW)) < 4 * error + 0.01).all()
    with scope("float64"):
        groups = found._extension.blocks(NEW)
    cross, expected = found.cross_kernel(NEW), lazy.cross_kernel(NEW)
    np.testing.assert_allclose(cross, groups.mean(axis=0))
    scatter = groups.std(axis=0, ddof=1) / np.sqrt(len(groups))
    assert np.linalg.norm(cross - expected) < 3 * np.linalg.norm(scatter) < 0.2 * np.linalg.norm(expected)
    assert np.linalg.norm(expected - lazy.kernel[:3]) > 0.3 * np.linalg.norm(expected)


def test_richness_zero_is_lazy_exactly():
    for loss in ("squared", "logistic"):
        found = ak.solve(ak.ANBK(DEEP, richness=0.0, beta=10.0, loss=loss), IMAGES, LABELS)
        lazy = ak.solve(ak.NNGPK(DEEP, beta=10.0), IMAGES, LABELS)
        np.testing.assert_allclose(found.kernel, lazy.kernel)
        assert [dual.shape for dual in found.duals] == [(5, 9, 5, 9), (5, 5)]


@pytest.mark.long
def test_order_of_images_and_channels(deep):
    order = np.array([3, 1, 0, 4, 2])
    moved = solved(X=IMAGES[order], y=LABELS[order])
    assert distance(moved, deep, order) < 2.5
    turned = solved(X=IMAGES[..., ::-1])
    assert distance(turned, deep) < 2.5
    other = solved(X=IMAGES, y=-LABELS)
    np.testing.assert_allclose(other.kernel, deep.kernel, rtol=1e-6)
    np.testing.assert_allclose(other.fitted, -deep.fitted, rtol=1e-6)


@pytest.mark.long
def test_a_mean_around_a_torus_does_not_see_where():
    found = solved(POOLED)
    shifted = np.roll(IMAGES, (1, 2), axis=(1, 2))
    moved = solved(POOLED, shifted)
    np.testing.assert_allclose(moved.kernel, found.kernel, rtol=1e-4)
    np.testing.assert_allclose(found.predict(shifted), found.fitted, atol=0.02)
    assert found.residual < 0.08 and abs(found.certificate) < 0.05
    f, error = found.predict(IMAGES, return_std=True)
    assert (np.abs(f - found.fitted) < 4 * error + 1e-3).all()
    fixed = solved(replace(POOLED, padding="valid"), throw=False)
    assert np.linalg.norm(fixed.kernel - found.kernel) > 0.1 * np.linalg.norm(found.kernel)


@pytest.mark.long
def test_equal_images():
    """Every image twice, at half the beta, is the same problem."""
    single = solved()
    twice = solved(X=np.concatenate([IMAGES, IMAGES]), y=np.tile(LABELS, 2), beta=5.0)
    assert [kernel.shape for kernel in twice.kernels] == [(10, 9, 10, 9), (10, 10)]
    np.testing.assert_array_equal(twice.kernels[0][:5, :, :5], twice.kernels[0][5:, :, 5:])
    for mine, theirs, e, g in zip(
        twice.kernels, single.kernels, twice.kernel_errors, single.kernel_errors, strict=True
    ):
        part = (slice(5), slice(None), slice(5)) if mine.ndim == 4 else (slice(5), slice(5))
        joint = np.hypot(np.linalg.norm(e[part]), np.linalg.norm(g))
        assert np.linalg.norm(mine[part] - theirs) < 2.5 * joint
    assert twice.residual < 0.08


@pytest.mark.long
@pytest.mark.parametrize("activation", ["relu", "linear"])
def test_other_activations(activation):
    """ReLU's kinks and linear layers, whose kernels have few directions."""
    found = solved(replace(DEEP, activation=activation), richness=0.7)
    assert found.converged and found.residual < 0.1
    f, error = found.predict(IMAGES, return_std=True)
    assert (np.abs(f - found.fitted) < 4 * error + 5e-3).all()


@pytest.mark.long
def test_outputs_losses_and_precision():
    labels = np.eye(3)[[0, 1, 2, 0, 1]]
    limit = ak.ANBK(replace(DEEP, readout="mean"), beta=10.0, loss="softmax")
    found = ak.solve(limit, IMAGES, labels, particles=512, tolerance=0.05, precision="float32")
    assert found.fitted.shape == (5, 3) and found.kernel.dtype == np.float32 and found.residual < 0.1
    np.testing.assert_allclose(found.fitted.sum(axis=1), 1, atol=1e-5)
    assert found.predict(NEW).shape == (3, 3)


@pytest.mark.long
def test_chunks_of_particles(deep):
    found = solved(memory=1e5)
    assert found.stats["chunks"] > 1
    np.testing.assert_allclose(found.kernel, deep.kernel, rtol=1e-5)


@pytest.mark.long
def test_warm_starts(deep):
    """From a neighbour on the same images, from kernels, and along a path."""
    for init in (deep, deep.kernels, [np.array(kernel) for kernel in deep.kernels]):
        assert distance(solved(init=init), deep) < 2.5
    limit = ak.ANBK(DEEP, beta=10.0)
    found = ak.path(limit, IMAGES, LABELS, [0.5, 1.0], particles=512, tolerance=0.04)
    assert distance(found[1], deep) < 2.5


@pytest.mark.long
def test_what_is_refused(deep):
    for solver in ("dual", "linear", "minmax"):
        with pytest.raises(NotImplementedError, match="serves MLP networks; leave it out"):
            solved(solver=solver)
    with pytest.raises(NotImplementedError, match="on the same images"):
        solved(X=IMAGES[:4], y=LABELS[:4], init=deep)
    with pytest.raises(ValueError, match=r"init must hold kernels of shapes \[\(5, 9, 5, 9\), \(5, 5\)\]"):
        solved(init=[np.eye(5)] * 2)
    with pytest.raises(ValueError, match="variance exists for NNGP only"):
        deep.variance(NEW)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("network", [DEEP, POOLED], ids=["deep", "pooled"])
def test_wide_networks_agree(network):
    """Langevin-sampled networks of 256 channels: the last kernel and the outputs, within the joint errors."""
    found = solved(network, tolerance=0.02, particles=2048)
    run = ak.finite.langevin(
        network, IMAGES, LABELS, richness=1.0, beta=10.0, width=256, time=24.0, replicas=4, throw=False
    )
    joint = np.hypot(np.linalg.norm(run.kernel_errors[-1]), np.linalg.norm(found.kernel_errors[-1]))
    scale = np.linalg.norm(found.kernel)
    # Kernels of finite width are off by a multiple of 1/width besides.
    assert np.linalg.norm(run.kernels[-1] - found.kernel) < 3 * joint + 5 / 256 * scale
    assert ak.alignment(run.kernels[-1], found.kernel) > 0.995
    assert np.abs(run.fitted - found.fitted).max() < 0.03
