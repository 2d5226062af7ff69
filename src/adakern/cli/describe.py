"""A solution in plain values, for `fit` and `info`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adakern.finite import Run
    from adakern.solution import Solution
    from adakern.trajectories import Trajectory


def describe(solution: Solution, file: Path) -> dict[str, Any]:
    """What is in a solution, apart from its arrays."""
    from adakern.metrics import mean_squared_error

    stats = dict(solution.stats)
    own = {name: stats.pop(name, None) for name in ("seconds", "seed", "precision", "version")}
    return {
        "file": str(file),
        "limit": solution.limit.kind,
        "numbers": solution.limit.config(),
        "network": solution.limit.network.config(),
        "points": len(solution.X),
        "features": int(solution.X[0].size),
        "outputs": 1 if solution.y.ndim == 1 else solution.y.shape[1],
        "train_loss": mean_squared_error(solution.y, solution.fitted),
        "residual": solution.residual,
        "certificate": solution.certificate,
        "free_energy": solution.free_energy,
        "converged": solution.converged,
        "status": solution.status,
        **own,
        "stats": stats,
    }


def describe_run(run: Run, file: Path) -> dict[str, Any]:
    """What is in a run of finite-width networks, apart from its arrays."""
    settings = {name: getattr(run.settings, name) for name in run.settings.__dataclass_fields__}
    return {
        "file": str(file),
        "kind": settings.pop("kind"),
        "network": run.network.config(),
        "points": len(run.X),
        "features": int(run.X[0].size),
        "outputs": 1 if run.y.ndim == 1 else run.y.shape[1],
        "last_loss": float(run.losses[-1]),
        "weights_kept": len(run.sample_times),
        "converged": run.converged,
        "status": run.status,
        "settings": settings,
        "stats": dict(run.stats),
    }


def describe_trajectory(trajectory: Trajectory, file: Path) -> dict[str, Any]:
    """What is in a trajectory, apart from its arrays."""
    reached, test = len(trajectory.times) > 0, trajectory.test_loss
    return {
        "file": str(file),
        "kind": "dynamics",
        "limit": trajectory.limit.kind,
        "numbers": trajectory.limit.config(),
        "network": trajectory.limit.network.config(),
        "points": len(trajectory.X),
        "features": int(trajectory.X[0].size),
        "outputs": 1 if trajectory.y.ndim == 1 else trajectory.y.shape[1],
        "times": len(trajectory.times),
        "last_time": float(trajectory.times[-1]) if reached else None,
        "last_loss": float(trajectory.train_loss[-1]) if reached else None,
        "last_test_loss": float(test[-1]) if reached and test is not None else None,
        "converged": trajectory.converged,
        "status": trajectory.status,
        "stats": dict(trajectory.stats),
    }


def labelled(facts: dict[str, Any]) -> dict[str, Any]:
    """The same for reading: two related facts to a line, what is absent left out."""
    network = dict(facts["network"])
    kind = network.pop("kind")
    return {
        "limit": f"{facts['limit']}  ({_listed(facts['numbers'])})",
        "network": f"{kind}  ({_listed(network)})",
        "data": f"{facts['points']} points, {facts['features']} features, {facts['outputs']} "
        + ("output" if facts["outputs"] == 1 else "outputs"),
        "train loss": f"{facts['train_loss']:.4g}",
        "residual": f"{facts['residual']:.2g}",
        **({"free energy": f"{facts['free_energy']:.4g}"} if facts["free_energy"] is not None else {}),
        **({"certificate": _certified(facts)} if facts["certificate"] is not None else {}),
        "converged": f"{'yes' if facts['converged'] else 'NO'}: {facts['status']}",
        "seconds": f"{facts['seconds']:.1f}",
        "seed": f"{facts['seed']}, {facts['precision']}",
        "file": facts["file"],
    }


def _certified(facts: dict[str, Any]) -> str:
    error = facts["stats"].get("certificate_error")
    return f"{facts['certificate']:.2g}" + (f" ± {error:.1g}" if error else "")


def _listed(numbers: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in numbers.items()
    )
