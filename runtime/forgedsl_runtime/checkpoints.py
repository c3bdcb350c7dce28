"""Checks the checkpoint from which a run is to resume.

RUN, step --check_checkpoint--> nothing, or a LaunchError that names the last good checkpoint
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from forgedsl import surface
from forgedsl.errors import LaunchError
from forgedsl.runs.checkpoints import checkpoint_steps


def check_checkpoint(run_dir: Path, step: int, spoilt: Callable[[Path], str]) -> None:
    """Check the checkpoint from which a run is to resume. `spoilt` returns what is wrong with the
    files of a checkpoint, or "".

    Raises:
        LaunchError: a file is missing, cut or overwritten; the error names an earlier good
            checkpoint.
    """
    folder = run_dir / f"checkpoints/step-{step}"
    if problem := spoilt(folder):
        earlier = (s for s in reversed(checkpoint_steps(run_dir)) if s < step)
        left = next((s for s in earlier if not spoilt(run_dir / f"checkpoints/step-{s}")), None)
        run, aside = shlex.quote(str(run_dir)), shlex.quote(str(run_dir / f"spoilt-step-{step}"))
        opened = f'forgedsl.open_run("{run_dir}")'
        resume = surface.call(f"run --resume {run}", f"{opened}.resume()")
        raise LaunchError(
            f"the checkpoint of step {step} cannot be read: {problem}; "
            + (
                "no earlier checkpoint is complete, so start the run again in another folder: "
                + surface.call(f"run {run}/job.json", "p.run(folder)")
                if left is None
                else f"the one of step {left} is complete; move this one away to continue from "
                f"it: mv {run}/checkpoints/step-{step} {aside} && {resume}"
            )
        )
