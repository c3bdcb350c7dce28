"""Command line of generated programs: `python main.py [--run-dir DIR] [--steps N] ...`.

    Program (its job, its folder) --> a run folder, as `forgec run` makes it --> exit code

Exit codes are those of `forgec run`; `forgec run --resume RUN` continues such a run as well.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from forgedsl.cli.overrides import UsageError

if TYPE_CHECKING:
    from forgedsl.lower.job import Job
    from forgedsl_runtime.api import Program


def main(program: Program, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the job of a generated program, and exit with its code."""
    sys.exit(_run(program.job(), program.folder, arguments))


def _run(job: Job, folder: Path, arguments: Sequence[str] | None) -> int:
    from forgedsl.cli.inputs import inputs_beside
    from forgedsl.cli.running import Prepared, RunOptions, launch, new_run_dir, write_run_dir

    options = _parser(job.name).parse_args(arguments)
    job = _longer(job, options.steps)
    request = RunOptions(
        file=None, overrides=(), profile="auto", run_dir=options.run_dir, resume=None,
        quiet=options.quiet,
    )  # fmt: skip
    try:
        run_dir = new_run_dir(options.run_dir, job.name)
    except UsageError as error:
        print(f"{job.name}: {error}", file=sys.stderr)
        return 2
    write_run_dir(run_dir, Prepared(job=job, inputs=inputs_beside(folder)))
    return launch(job, run_dir, resume=False, request=request)


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=f"Train {name}.",
        epilog="`forgec run --resume DIR` continues a run that was interrupted.",
    )
    parser.add_argument("--run-dir", type=Path, help=f"where the run is kept (runs/{name}-<time>)")
    parser.add_argument("--steps", type=int, metavar="N", help="optimizer steps")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    return parser


def _longer(job: Job, steps: int | None) -> Job:
    """Return the job with another number of steps."""
    if steps is None:
        return job
    schedule = job.schedule.model_copy(update={"steps": steps})
    return job.model_copy(update={"schedule": schedule}).sealed()
