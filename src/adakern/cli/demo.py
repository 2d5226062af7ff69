"""`adakern demo`: lazy and adaptive predictors side by side on handwritten digits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adakern.cli.failures import warn
from adakern.cli.output import check_target, print_json, replacing, show_progress

if TYPE_CHECKING:
    from adakern.finite import Run
    from adakern.limits import Limit
    from adakern.solution import Solution

EXAMPLE = "adakern demo --out digits.png"

_RICHNESS = (1.0, 3.0)
_FLOW = "ANTK, richness 1"
_NETWORK = f"network, richness {_RICHNESS[-1]:g}"
_LAZY, _ADAPTIVE = "NNGPK", f"ANBK, richness {_RICHNESS[-1]:g}"  # the two that the picture compares closely


def run(
    out: Annotated[Path, typer.Option(help="The picture to write (.png, .pdf or .svg).")] = Path("adakern-demo.png"),
    n_train: Annotated[int, typer.Option(help="Training images.")] = 50,
    n_test: Annotated[int, typer.Option(help="Test images.")] = 600,
    particles: Annotated[int, typer.Option(help="Neurons per layer of the adaptive predictors.")] = 8192,
    width: Annotated[int, typer.Option(min=1, help="Neurons of the finite network to compare with.")] = 512,
    seed: Annotated[int, typer.Option(help="Of every random number.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No progress bars.")] = False,
) -> None:
    """Tell handwritten 0 from 1 with lazy and adaptive kernels: a table and a picture."""
    import numpy as np

    from adakern.datasets import mnist
    from adakern.limits import ANBK, ANTK
    from adakern.metrics import alignment, mean_squared_error
    from adakern.solving import solve

    if out.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--out must name a .png, .pdf or .svg file, but it is {str(out)!r}")
    check_target(out)
    X, y, X_test, y_test = mnist(classes=(0, 1), n_train=n_train, n_test=n_test)
    started = time.perf_counter()
    solutions: dict[str, Solution] = {}
    rows: list[dict[str, Any]] = []
    for name, limit in problems().items():
        begin = time.perf_counter()
        options: dict[str, Any] = {"particles": particles} if isinstance(limit, (ANBK, ANTK)) else {}
        solution = solve(limit, X, y, seed=seed, progress=show_progress(no_progress), throw=False, **options)
        if not solution.converged:
            warn(f"{name} did not converge: {solution.status}")
        row = {"predictor": name, **_scores(solution, X_test, y_test)}
        evidence = {"residual": solution.residual, "certificate": solution.certificate}
        rows.append({**row, **evidence, "seconds": time.perf_counter() - begin})
        solutions[name] = solution
    begin = time.perf_counter()
    network = _network(X, y, X_test, width, seed, show_progress(no_progress))
    aligned = alignment(network.kernel, solutions[_ADAPTIVE].kernel)
    f = network.test_predictions
    row = {"predictor": _NETWORK, "test_loss": mean_squared_error(y_test, f), "variance": 0.0}
    accuracy = float(np.mean((np.asarray(f) > 0) == (y_test > 0)))
    none = {"residual": None, "certificate": None}
    rows.append({**row, "accuracy": accuracy, **none, "seconds": time.perf_counter() - begin})
    _draw(out, solutions, rows, n_train, network)
    facts = {
        "data": {"classes": [0, 1], "train": n_train, "test": n_test},
        "predictors": rows,
        "network": {"width": width, "alignment": aligned, "converged": network.converged, "status": network.status},
        "picture": str(out),
        "seconds": time.perf_counter() - started,
    }
    if as_json:
        print_json(facts)
    else:
        _print(facts)


def problems() -> dict[str, Limit]:
    """What the demo solves: the lazy limits, where gradient flow with weight decay ends, then the adaptive one, richer and richer."""
    from adakern.limits import ANBK, ANTK, NNGP, NNGPK, NTK
    from adakern.networks import MLP

    network = MLP(depth=1, activation="relu")  # type: ignore[arg-type]  # a name
    lazy: dict[str, Limit] = {
        "NNGP": NNGP(network, beta=50.0),
        "NNGPK": NNGPK(network, beta=50.0),
        "NTK": NTK(network),
    }
    flow: dict[str, Limit] = {_FLOW: ANTK(network, richness=1.0, decay=1.0)}
    return lazy | flow | {f"ANBK, richness {value:g}": ANBK(network, richness=value, beta=50.0) for value in _RICHNESS}


def _network(X: Any, y: Any, X_test: Any, width: int, seed: int, progress: bool) -> Run:
    """A network of finite width, sampled from the posterior whose limit the richest predictor is."""
    from adakern.finite import langevin

    richest = problems()[_ADAPTIVE]
    run = langevin(
        richest.network,
        X,
        y,
        richness=_RICHNESS[-1],
        beta=50.0,
        width=width,
        time=150.0,
        burn_in=50.0,  # kernels settle within 10; which neurons make them up, and so the density, takes longer
        seed=seed,
        X_test=X_test,
        progress=progress,
        throw=False,
    )
    if not run.converged:
        warn(f"the network of finite width did not converge: {run.status}")
    return run


def _scores(solution: Solution, X: Any, y: Any) -> dict[str, float]:
    import numpy as np

    from adakern.limits import NNGP
    from adakern.metrics import mean_squared_error

    f = solution.predict(X)
    variance = solution.variance(X) if isinstance(solution.limit, NNGP) else 0.0
    return {
        "test_loss": mean_squared_error(y, f, variance),
        "variance": float(np.mean(variance)),
        "accuracy": float(np.mean((f > 0) == (y > 0))),
    }


def _draw(out: Path, solutions: dict[str, Solution], rows: list[dict[str, Any]], n_train: int, network: Run) -> None:
    from adakern.plot import portrait

    figure = portrait(
        solutions,
        {row["predictor"]: row["test_loss"] for row in rows},
        lazy=_LAZY,
        adaptive=_ADAPTIVE,
        variances={row["predictor"]: row["variance"] for row in rows},
        labels=("images of 0", "images of 1"),
        title=f"An infinitely wide ReLU network learns {n_train} handwritten digits",
        network=network,
    )
    with replacing(out) as temporary:
        figure.savefig(temporary)


def _print(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    data = facts["data"]
    table = Table(
        title=f"Handwritten 0 and 1: {data['train']} training images, {data['test']} test images",
        title_style="bold",
        title_justify="left",
    )
    table.add_column("predictor", no_wrap=True)
    for column in ("test loss", "accuracy", "residual", "gap", "seconds"):
        table.add_column(column, justify="right")
    best = min(row["test_loss"] for row in facts["predictors"])
    for row in facts["predictors"]:
        residual = "" if row["residual"] is None else f"{row['residual']:.1e}"
        certificate = "" if row["certificate"] is None else f"{row['certificate']:.1e}"
        cells = (f"{row['test_loss']:.4f}", f"{row['accuracy']:.1%}", residual, certificate, f"{row['seconds']:.1f}")
        table.add_row(row["predictor"], *cells, style="bold" if row["test_loss"] == best else "")
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "The loss of NNGP is bias² + variance; the others have no variance. The gap is the certificate: how far above its bound the answer's free energy can be (nats), inf where a few neurons carry it, none where their law could not be sampled afresh; "
        "of ANTK, where gradient flow with weight decay 1 ends, the duality gap as a part of the value.",
        soft_wrap=True,
    )
    network = facts["network"]
    console.print(
        f"The network has {network['width']} neurons, sampled by Langevin dynamics; its kernel is aligned to {network['alignment']:.4f} "
        f"with that of {_ADAPTIVE}.",
        soft_wrap=True,
    )
    console.print(f"Picture: {facts['picture']} ({facts['seconds']:.0f} s in all)", markup=False, soft_wrap=True)
