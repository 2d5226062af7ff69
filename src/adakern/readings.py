r"""What pictures show of solutions, runs and trajectories, as plain numbers: kernels point by point, label alignments, traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adakern import averages, metrics
from adakern.finite import Run
from adakern.limits import ANBK, ANTK, VGA
from adakern.networks import Network
from adakern.solution import Solution
from adakern.trajectories import Trajectory

Subject = Solution | Run | Trajectory


@dataclass(frozen=True)
class Trace:
    """A number along a computation.

    Attributes:
        what, along: what the values are, and along what.
        x, values, errors: places, values and their standard errors, None where they are not known.
        level: where the values settle, and the standard error of that; None where they need not settle.
        falls: whether they fall by orders of magnitude, and belong on a logarithmic axis.
    """

    what: str
    along: str
    x: np.ndarray
    values: np.ndarray
    errors: np.ndarray | None = None
    level: tuple[float, float] | None = None
    falls: bool = False


def check(*of: Subject) -> None:
    """Refuse what is no solution, run or trajectory."""
    for one in of:
        if not isinstance(one, Subject):
            raise TypeError(
                f"what is drawn must be a Solution, a Run or a Trajectory (several one after the other, not in a list), but it is {_article(type(one).__name__)}"
            )


def _article(word: str) -> str:
    return f"an {word}" if word[0] in "aeiouAEIOU" else f"a {word}"


def network(of: Subject) -> Network:
    return of.network if isinstance(of, Run) else of.limit.network


def richness(of: Subject) -> float:
    r"""$\gamma_0$; 0 for the lazy limits."""
    if isinstance(of, Run):
        return of.settings.richness
    return of.limit.richness if isinstance(of.limit, (ANBK, ANTK, VGA)) else 0.0


def classes(y: np.ndarray) -> np.ndarray:
    """The key by which points are sorted: the target, or the output that is largest where that is the class; 0 for every point where several outputs are real numbers."""
    if y.ndim == 1 or y.shape[1] == 1:
        return y.reshape(len(y))
    return np.argmax(y, axis=1) if discrete(y) else np.zeros(len(y), int)


def discrete(y: np.ndarray) -> bool:
    """Whether sorting gives groups worth a line between them: classes, and not a different number, or row of numbers, for every point."""
    if y.ndim == 2 and y.shape[1] > 1:  # one row of targets for each class
        return len(np.unique(y, axis=0)) == len(np.unique(np.argmax(y, axis=1)))
    return len(np.unique(y)) <= max(2, len(y) // 3)


def check_labels(labels: Sequence[str], count: int) -> None:
    """Refuse names of classes, if there are any, that are not as many as the classes."""
    if len(labels) not in (0, count):
        have = f"there are {count} classes and {len(labels)} names" if count else "the targets are no classes"
        raise ValueError(
            f"labels must name every class, but {have}; leave them out" + (f", or give {count}" if count else "")
        )


def by_class(y: np.ndarray) -> np.ndarray:
    """The order of the training points that puts each class together and keeps the points' own order within."""
    return np.argsort(classes(y), kind="stable")


def correlations(kernel: np.ndarray) -> np.ndarray:
    r"""$\Phi_{\mu\nu}/\sqrt{\Phi_{\mu\mu}\Phi_{\nu\nu}}$: how alike the network finds two points, whatever their size; 0 where there is nothing."""
    size = np.sqrt(np.maximum(np.diag(kernel), 0.0))
    scale = size[:, None] * size[None, :]
    return np.divide(kernel, scale, out=np.zeros_like(kernel, dtype=np.result_type(kernel, 1.0)), where=scale > 0)


def pooled(kernel: np.ndarray) -> np.ndarray:
    r"""A kernel between points, (P, P): that of a CNN's inner layer, (P, S, P, S), summed over positions, $\sum_a\Phi_{\mu a,\nu a}$."""
    return kernel if kernel.ndim == 2 else np.einsum("paqa->pq", kernel)


def kernel(of: Subject, layer: int | None = None, time: float | None = None) -> np.ndarray:
    r"""The predictor's kernel, or $\Phi^\ell$ of hidden layer `layer`, between training points, (P, P).

    Args:
        of: a solution, a run or a trajectory.
        layer: 1..L; by default the kernel of the predictor, of a run and a trajectory that of the last layer.
        time: of a trajectory, one of its times, by default the last; of a run of gradient flow, one of those that were kept.
    """
    depth = network(of).depth
    if layer is not None and not 1 <= layer <= depth:
        raise ValueError(f"layer must be between 1 and {depth}, but it is {layer}")
    if isinstance(of, Trajectory):
        found = of.kernels[of.index(last(of) if time is None else time)]
        return found if depth == 1 else found[-1 if layer is None else layer - 1]
    if isinstance(of, Solution) and time is not None:
        raise ValueError("time has no meaning for a solution, which is the end of training")
    if isinstance(of, Run) and time is not None:
        of = of.at(time)
    return of.kernel if layer is None else pooled(of.kernels[layer - 1])


def last(of: Trajectory) -> float:
    """The last time of a trajectory."""
    if not len(of.times):
        raise ValueError(f"the trajectory has reached no time: {of.status}")
    return float(of.times[-1])


def label_alignment(kernel: np.ndarray, y: np.ndarray) -> float:
    r"""$\mathcal A(\Phi,yy^\top)$, the alignment of a kernel with the labels; nan where either is zero."""
    targets = y if y.ndim == 2 else y[:, None]
    outer = targets @ targets.T
    return metrics.alignment(kernel, outer) if kernel.any() and outer.any() else float("nan")


def label_alignments(of: Subject, time: float | None = None) -> np.ndarray:
    r"""$\mathcal A(\Phi^\ell,yy^\top)$ of every hidden layer, (L,)."""
    layers = range(1, network(of).depth + 1)
    return np.array([label_alignment(kernel(of, layer, time), of.y) for layer in layers])


def traces(of: Subject) -> list[Trace]:
    """What was recorded along the way: of a solution by particles its energy, of an aNTK its duality gap or how far weights are from rest, of a run or a trajectory its losses; empty where nothing was."""
    if isinstance(of, Solution):
        return _energies(of)
    if isinstance(of, Run):
        count = of.replica_losses.shape[1]
        scatter = of.replica_losses.std(axis=1, ddof=1) / np.sqrt(count) if count > 1 else None
        found = [Trace("training loss", "time", of.times, of.losses, scatter, falls=True)]
        if of.test_losses is not None and of.test_times is not None:
            found.append(Trace("test loss", "time", of.test_times, of.test_losses, falls=True))
        return found
    found = [Trace("training loss", "time", of.times, of.train_loss, _known(of.train_loss_errors), falls=True)]
    if of.test_loss is not None and of.test_loss_errors is not None:
        found.append(Trace("test loss", "time", of.times, of.test_loss, _known(of.test_loss_errors), falls=True))
    return found


def _energies(of: Solution) -> list[Trace]:
    points = np.asarray(of.stats.get("trace", ()), dtype=np.float64)
    if not len(points):
        return []
    if "trace_of" in of.stats:
        return [Trace(str(of.stats["trace_of"]), "evaluations", points[:, 0], points[:, 1], falls=True)]
    settled = points[-max(1, min(int(of.stats.get("batches", 0)), len(points) // 2)) :, 1]
    known = len(settled) >= 4
    level = (float(settled.mean()), float(averages.standard_error(settled))) if known else None
    return [Trace("energy", "gradient evaluations", points[:, 0], points[:, 1], level=level)]


def _known(errors: np.ndarray) -> np.ndarray | None:
    """Standard errors, or None where one replica tells nothing of them."""
    return errors if np.isfinite(errors).all() else None
