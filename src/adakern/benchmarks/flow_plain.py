r"""Gradient flow of a two-layer network as it is written down, with a fixed step: what a solver is compared with.

$$\dot w=\gamma_0\sum_\mu\Delta_\mu\varphi'(h_\mu)a\,A_\mu-\lambda w,\qquad\dot a=\gamma_0\sum_\mu\Delta_\mu\varphi(h_\mu)-\lambda a,\qquad\Delta=y-\gamma_0^{-1}\langle a\varphi(h)\rangle,\quad h=Aw.$$
"""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from adakern import inputs, losses
from adakern.limits import ANTK, flow_gap, unit_search, unit_starts
from adakern.precision import scope

NEURONS = 1024
# Step times the fastest rate at the start. 2 is where it becomes unstable there, but features make that rate grow (twofold on MNIST); and at the kinks of ReLU larger steps chatter,
# and stop short of small gaps. So several are tried, and the one that does best counts.
REACHES = (0.5, 0.15, 0.05)
GROWTH = 1.5  # of the number of steps between two looks
FIRST = 256  # steps to the first look
PACED = 1.0  # seconds for which steps are timed
SEEDS = 64  # random starts of the search for the strongest pull
MANY = 256  # the same where arrival is judged: those of the certificate


class Track(NamedTuple):
    """Steps taken until each look, the relative gaps there, and seconds of a step on the processor."""

    looks: list[int]
    gaps: list[float]
    reached: bool
    step: float
    pace: float

    @property
    def steps(self) -> int:
        return self.looks[-1]

    @property
    def seconds(self) -> list[float]:
        """Of steps alone, without looks and compilation."""
        return [look * self.pace for look in self.looks]

    def until(self, goal: float) -> Track:
        """The same, to the first look at which the gap is small enough."""
        there = [i for i, gap in enumerate(self.gaps) if gap <= goal]
        if not there:
            return self._replace(reached=False)
        return self._replace(looks=self.looks[: there[0] + 1], gaps=self.gaps[: there[0] + 1], reached=True)


@functools.partial(jax.jit, static_argnums=0)
def _advance(activation: Any, root: Array, y: Array, w: Array, a: Array, numbers: Array, count: Array) -> Any:
    richness, decay, step = numbers

    def one(_: Any, state: tuple[Array, Array]) -> tuple[Array, Array]:
        w, a = state
        h = jnp.matmul(w, root.T, precision="highest")
        phi = activation(h)
        delta = y - jnp.matmul(a, phi, precision="highest") / (richness * len(a))
        pull = activation.derivative(h) * a[:, None] * delta[None, :]
        dw = richness * jnp.matmul(pull, root, precision="highest") - decay * w
        da = richness * jnp.matmul(phi, delta, precision="highest") - decay * a
        return w + step * dw, a + step * da

    return jax.lax.fori_loop(0, count, one, (w, a))


def race(
    limit: ANTK, X: np.ndarray, y: np.ndarray, goal: float, cap: float, kept: Path | None = None
) -> tuple[Track, list[Track]]:
    """The step that gets to `goal` first, or closest within `cap` seconds; and all that were tried. They are kept in a file, if one is given; where it exists its steps count, and what they take the processor is measured here."""
    if kept is not None and kept.exists():
        tracks = [track.until(goal) for track in _read(limit, X, y, kept)]
    else:
        tracks = [run(limit, X, y, goal, cap, reach) for reach in REACHES]
        if kept is not None:
            _keep(limit, X, tracks, kept)
    arrived = [track for track in tracks if track.reached]
    if arrived:
        return min(arrived, key=lambda track: track.seconds[-1]), tracks
    return min(tracks, key=lambda track: track.gaps[-1]), tracks


def _keep(limit: ANTK, X: np.ndarray, tracks: list[Track], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {"richness": limit.richness, "decay": limit.decays[0], "points": len(X)}
    path.write_text(json.dumps({**found, "tracks": [track._asdict() for track in tracks]}))


def _read(limit: ANTK, X: np.ndarray, y: np.ndarray, path: Path) -> list[Track]:
    found = json.loads(path.read_text())
    if [found["richness"], found["decay"], found["points"]] != [limit.richness, limit.decays[0], len(X)]:
        raise ValueError(f"{path} holds the steps of another problem; give another folder")
    with scope("float64"):
        fixed, state = _start(limit, X, y, 0)
        pace = _pace(limit.network.activation, *fixed, *state, jnp.asarray([limit.richness, limit.decays[0], 0.0]))
    return [Track(**{**track, "pace": pace}) for track in found["tracks"]]


def _start(limit: ANTK, X: np.ndarray, y: np.ndarray, seed: int) -> Any:
    """Root and targets; and the weights in the beginning."""
    points = inputs.distinct(X)
    root = np.asarray(inputs.root(limit.network, X[points.first], 1.0)[0])[points.member]
    rng = np.random.default_rng(seed)
    w, a = rng.standard_normal((NEURONS, root.shape[1])), rng.standard_normal(NEURONS)
    return (jnp.asarray(root), jnp.asarray(y)), (jnp.asarray(w), jnp.asarray(a))


def run(limit: ANTK, X: np.ndarray, y: np.ndarray, goal: float, cap: float, reach: float, seed: int = 0) -> Track:
    """Until the gap is `goal`, or for `cap` seconds. Where there is a GPU it takes the steps, which counts them sooner; what a step takes the processor is measured on the first of them."""
    activation, decay = limit.network.activation, limit.decays[0]
    with scope("float64"):
        fixed, state = _start(limit, X, y, seed)
        root = np.asarray(fixed[0])
        step = reach / (_fastest(activation, root, *(np.asarray(part) for part in state)) + decay)
        numbers = jnp.asarray([limit.richness, decay, step])
        jax.block_until_ready(_advance(activation, *fixed, *state, numbers, jnp.asarray(0)))  # compiles
        pace = None if jax.default_backend() == "cpu" else _pace(activation, *fixed, *state, numbers)
        looks: list[int] = []
        gaps: list[float] = []
        spent, steps, block, value = 0.0, 0, FIRST, np.inf
        while spent < cap:
            began = time.perf_counter()
            state = jax.block_until_ready(_advance(activation, *fixed, *state, numbers, jnp.asarray(block)))
            took = time.perf_counter() - began
            spent, steps = spent + took, steps + block
            value = _gap(limit, root, y, np.asarray(state[0]), np.asarray(state[1]), seed)
            if value <= goal:  # a small search can miss what the certificate's finds: arrival is judged by the latter
                value = _gap(limit, root, y, np.asarray(state[0]), np.asarray(state[1]), seed, thorough=True)
            looks.append(steps)
            gaps.append(value)
            if not np.isfinite(value) or value <= goal:
                break
            block = max(1, min(int((GROWTH - 1) * steps), int(1.1 * (cap - spent) / took * block) + 1))
    return Track(looks, gaps, bool(value <= goal), step, spent / steps if pace is None else pace)


def _pace(activation: Any, *arguments: Array) -> float:
    """Seconds of a step on the processor."""
    home = jax.devices("cpu")[0]
    held = [jax.device_put(np.asarray(part), home) for part in arguments]
    with jax.default_device(home):
        count, took = 1, 0.0
        jax.block_until_ready(_advance(activation, *held, jnp.asarray(0)))
        while took < PACED:
            count *= 2
            began = time.perf_counter()
            jax.block_until_ready(_advance(activation, *held, jnp.asarray(count)))
            took = time.perf_counter() - began
    return took / count


def _fastest(activation: Any, root: np.ndarray, w: np.ndarray, a: np.ndarray) -> float:
    """The largest eigenvalue of the tangent kernel."""
    h = w @ root.T
    phi, g = np.asarray(activation(jnp.asarray(h))), np.asarray(activation.derivative(jnp.asarray(h))) * a[:, None]
    kernel = phi.T @ phi / len(a) + (root @ root.T) * (g.T @ g / len(a))
    return float(np.linalg.eigvalsh(kernel)[-1])


def _gap(
    limit: ANTK, root: np.ndarray, y: np.ndarray, w: np.ndarray, a: np.ndarray, seed: int, thorough: bool = False
) -> float:
    """Relative; infinite where the flow has blown up. Thorough: with the search of the solver's certificate."""
    if not (np.isfinite(w).all() and np.isfinite(a).all()):
        return float("inf")
    activation, loss, key = limit.network.activation, losses.get("squared"), jax.random.key(seed)
    s = a @ np.asarray(activation(jnp.asarray(w @ root.T))) / (limit.richness * len(a))
    lengths = np.linalg.norm(w, axis=1) * np.abs(a)
    own = w[np.argsort(-lengths)[:SEEDS]]
    delta, price = (y - s)[:, None], limit.decays[0] / limit.richness
    cost = float(lengths.mean()) / limit.richness
    count = MANY if thorough else SEEDS
    first = unit_starts.default_starts(jnp.asarray(root), jnp.asarray(delta), count, key)
    starts = np.concatenate([np.asarray(first), own])
    if thorough:
        numbers: dict[str, Any] = {"cost": cost, "price": price, "starts": starts, "key": key}
        return flow_gap.gap(loss, activation, root, y[:, None], s[:, None], **numbers).relative
    found = unit_search.search(activation, root, delta, starts, exact=False)
    pull = float(np.max(found.values))
    return flow_gap.measured(loss, y[:, None], s[:, None], delta, cost, price, pull).relative
