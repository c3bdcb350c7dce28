"""Compute steps again in several processes, one for each core.

    helpers --fork--> processes that import torch, while this one compiles the file
    steps --rescore--> from the first on in this process, from the last on in the helpers

A step is given to whoever is free, so that all processes end at the same time.
"""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl_runtime.recorded.files import steps_in

if TYPE_CHECKING:
    from forgedsl.lower import job as spec
    from forgedsl.runs.whatif import Step
    from forgedsl_runtime.whatif.rescore import Rescorer

COLLECT = (100_000, 100, 100)
"""thresholds of the garbage collector: the objects of a step are acyclic"""
FEW = 24
"""with fewer steps, further processes would take longer to start than they save"""


@contextmanager
def helpers(run_dir: Path) -> Iterator[Executor | None]:
    """Start processes that help with the recorded steps of a run; None if there are few steps, or
    one core. Call it early: they start while this process compiles, and a fork is safe only before
    there are threads. If the block fails, they are killed."""
    count = min(len(os.sched_getaffinity(0)), len(steps_in(run_dir)) // FEW + 1) - 1
    if not count:
        yield None
        return
    with ProcessPoolExecutor(count, mp_context=get_context("fork")) as pool:
        try:
            for _ in range(count):
                pool.submit(_import)
            yield pool
        except BaseException:
            for process in active_children():
                process.kill()
            raise


def rescore(
    run: spec.Job,
    job: spec.Job,
    folder: Path,
    files: Mapping[int, Path],
    pool: Executor | None = None,
    *,
    tell: Callable[[int], None] = lambda done: None,
) -> list[Step]:
    """Return recorded steps, computed again under `job`; the files of `job` are in `folder`. `tell`
    gets the number of steps that are done.

    Raises:
        RunError: the job needs a value that is not recorded, or a reward fails too often.
        LaunchError: a reward cannot be loaded.
    """
    task = pickle.dumps((run, job, folder))
    numbers = [*files]
    helped: dict[int, Future[Step]] = {}
    done: list[Future[Step]] = []  # by a helper, or taken from it and done here
    if pool is not None and len(numbers) >= FEW:
        for number in reversed(numbers):
            helped[number] = pool.submit(_step, task, number, files[number])
            helped[number].add_done_callback(done.append)
    found: list[Step] = []
    for number in numbers:
        if number in helped and not helped[number].cancel():
            break
        found.append(_step(task, number, files[number]))
        tell(len(done) if helped else len(found))
    for number in numbers[len(found) :]:
        found.append(helped[number].result())
    tell(len(found))
    return found


def _import() -> None:
    import forgedsl_runtime.whatif.rescore  # noqa: F401


def _step(task: bytes, number: int, path: Path) -> Step:
    return _rescorer(task).step(number, path)


@lru_cache(maxsize=1)
def _rescorer(task: bytes) -> Rescorer:
    """Make what computes the steps of a task in this process."""
    import torch

    from forgedsl_runtime.whatif.rescore import Rescorer

    torch.set_num_threads(1)  # tensors of a step are small
    made = Rescorer(*pickle.loads(task))
    gc.freeze()
    gc.set_threshold(*COLLECT)
    return made
