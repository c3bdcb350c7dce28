"""Compute steps again in several processes, one for each core."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from forgedsl.lower import job as spec
from forgedsl.runs.whatif import Step

COLLECT = (100_000, 100, 100)
"""thresholds of the garbage collector: the objects of a step are acyclic"""
FEW = 24
"""with fewer steps, further processes would take longer to start than they save"""


def rescore(
    run: spec.Job,
    job: spec.Job,
    folder: Path,
    files: Mapping[int, Path],
    *,
    tell: Callable[[int], None] = lambda done: None,
) -> list[Step]:
    """Return recorded steps, computed again under `job`; the files of `job` are in `folder`. `tell`
    gets the approximate number of steps that are done.

    Raises:
        RunError: the job needs a value that is not recorded, or a reward fails too often.
        LaunchError: a reward cannot be loaded.
    """
    numbers = list(files)
    count = min(len(os.sched_getaffinity(0)), len(numbers) // FEW + 1)
    if count == 1:
        return _steps(run, job, folder, [(n, files[n]) for n in numbers], tell)
    shares = [[(n, files[n]) for n in numbers[i::count]] for i in range(count)]
    found: list[Step] = []
    from forgedsl.runtime.whatif.rescore import Rescorer  # noqa: F401 once, before the fork

    with ProcessPoolExecutor(count - 1, mp_context=get_context("fork")) as pool:
        others = [pool.submit(_steps, run, job, folder, share) for share in shares[1:]]
        all_ = len(numbers)
        found += _steps(run, job, folder, shares[0], lambda done: tell(min(done * count, all_)))
        for other in others:
            found += other.result()
    tell(len(numbers))
    return sorted(found, key=lambda step: step.step)


def _steps(
    run: spec.Job,
    job: spec.Job,
    folder: Path,
    files: Sequence[tuple[int, Path]],
    tell: Callable[[int], None] = lambda done: None,
) -> list[Step]:
    import torch

    from forgedsl.runtime.whatif.rescore import Rescorer

    torch.set_num_threads(1)  # tensors of a step are small
    made = Rescorer(run, job, folder)
    gc.freeze()
    gc.set_threshold(*COLLECT)
    found = []
    for done, (number, path) in enumerate(files, 1):
        found.append(made.step(number, path))
        tell(done)
    return found
