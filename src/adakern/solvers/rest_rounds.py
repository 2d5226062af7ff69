"""A round of Newton's method over unit neurons: which of them stay, which join, and the duality gap as a search sees it."""

from __future__ import annotations

import numpy as np

from adakern import losses
from adakern.limits import flow_gap, unit_search
from adakern.solvers import rest_newton, rest_read, rest_step
from adakern.solvers.rest_task import Problem

_NEW = 40  # neurons that join in a round, at most
_FIRST = 30  # unsearched ones that join in the first, and as long as the gap is
_FAR = 0.1
_APART = (0.05, 0.3)  # one minus the cosine between newcomers: at most, and over the gap


def renewed(
    task: Problem,
    convex: rest_step.Convex,
    law: rest_step.Law | None,
    pulls: unit_search.Found,
    starts: np.ndarray,
    gap: float,
    angle: float,
    care: float,
    most: int = _NEW,
) -> rest_step.Law:
    """Without those that die, and with those that are missing, at most so many."""
    apart = min(_APART[0], _APART[1] * gap) * float(np.sqrt(care))
    delta = convex.error(convex.zero)
    if law is not None:
        delta = rest_read.errors(task, convex, law, angle).summed
        law = rest_newton.thinned(convex, law, angle, _APART[1] * gap, delta)
    new: list[np.ndarray] = []
    for k in np.argsort(-pulls.values):
        u = np.asarray(pulls.directions[k])
        if pulls.values[k] <= 1 + 1e-7 or len(new) == most:
            break
        if not taken(convex, law, u, delta, apart) and np.max([v @ u for v in new], initial=-1.0) < 1 - apart:
            new.append(u)
    if law is None:
        # Neurons all over the place, rather than at the few maxima of the targets' pull.
        new.extend(starts[-_FIRST:])
        scale = float(np.linalg.norm(convex.error(convex.zero))) / (float(np.linalg.norm(convex.root)) or 1.0)
        return rest_newton.joined(convex, None, np.stack(new), 0.01 * scale, delta)
    if gap > _FAR:  # a few maxima do not fit many points
        new.extend(starts[:_FIRST])
    if not new:
        return law
    share = 1e-3 * float(np.linalg.norm(law.weights, axis=1).sum()) / len(new)
    return rest_newton.joined(convex, law, np.stack(new), share, delta)


def taken(convex: rest_step.Convex, law: rest_step.Law | None, u: np.ndarray, delta: np.ndarray, apart: float) -> bool:
    """Whether a neuron at hand is that close to a unit neuron and pulls the same way."""
    if law is None:
        return False
    signal = convex.signals(convex.features(u[None]), delta)[0]
    close = law.weights @ u > (1 - apart) * np.linalg.norm(law.weights, axis=1)
    return bool(np.any(close & (law.readouts @ signal > 0)))


def gap_of(
    task: Problem, convex: rest_step.Convex, law: rest_step.Law, angle: float, largest: float
) -> tuple[float, float]:
    """The duality gap with corners of this angle, as good as the search is, and the loss, both over the value: where outputs are to meet their targets, those of sharp corners say more about the corners than about the neurons."""
    at = rest_step.place(convex, law, angle)
    s = at.outputs[task.points.member]
    loss = losses.get(task.limit.loss)
    signal, delta = rest_read.errors(task, convex, law, angle)
    # A pull that is missed makes the dual too large, and the neurons at hand pull hardest as a rule.
    own = np.linalg.norm(convex.signals(at.features, delta), axis=1)
    own /= np.maximum(at.sizes, np.finfo(np.float64).tiny)
    most, cost = max(largest * convex.price, float(np.max(own))), float(at.sizes.sum())
    gap = flow_gap.measured(loss, task.y, s, signal, cost, convex.price, most)
    return gap.relative, 1 - convex.price * cost / gap.primal if gap.primal else 0.0
