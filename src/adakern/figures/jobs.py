"""Several computations at once, each in a process of its own: where compiling takes longer than running, as on a GPU, they keep the machine busy."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed

from adakern.errors import ConvergenceError
from adakern.figures.cache import Cache
from adakern.figures.shape import Part

_PATIENCE = 5.0  # seconds, with a process that was asked to end
Job = tuple[str, str]  # the figure's name, and the computation's


def fill(
    cache: Cache, jobs: int, parts: Sequence[tuple[str, Part]], advance: Callable[..., None]
) -> tuple[set[Job], dict[Job, Exception]]:
    """Compute what the cache does not have, so many at a time, and say which computations that were, and which failed."""
    # Each process takes of a GPU's memory what it needs, and not most of it at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    failed: dict[Job, Exception] = {}
    context = multiprocessing.get_context("spawn")  # a forked process must not use what JAX has started
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        running: dict[Future[None], Job] = {}
        for figure, part in parts:
            if not cache.fresh and cache.find(figure, part) is not None:
                advance(f"{figure}: {part.name}")
            else:
                running[pool.submit(_compute, cache, figure, part)] = (figure, part.name)
        try:
            for done in as_completed(running):
                figure, name = running[done]
                if (failure := done.exception()) is not None:
                    if not isinstance(failure, Exception):
                        raise failure
                    failed[figure, name] = failure
                advance(f"{figure}: {name}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            _end(set(multiprocessing.active_children()) - others)
            raise
    return set(running.values()), failed


def _end(workers: Iterable[multiprocessing.process.BaseProcess]) -> None:
    """End processes, which would otherwise outlive this one: what they are at is done again when the figure is."""
    workers = list(workers)
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join(_PATIENCE)
        if worker.is_alive():
            worker.kill()
            worker.join(_PATIENCE)


def _compute(cache: Cache, figure: str, part: Part) -> None:
    """One computation, in the process that was made for it: its numbers go into the cache."""
    try:
        cache.get(figure, part)
    except ConvergenceError as failure:  # without the answer as far as it came, which may be large
        raise ConvergenceError(str(failure)) from None
