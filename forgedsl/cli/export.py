"""`forgec export RUN`: the weights of a checkpoint as a Hugging Face folder, or on the hub."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from forgedsl.cli.words import UsageError
from forgedsl.errors import LaunchError


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder, finished or stopped")],
    step: Annotated[int | None, typer.Option(help="of which checkpoint; else the newest")] = None,
    to: Annotated[
        str | None,
        typer.Option(metavar="FOLDER|hf(name)", help="where to; else RUN/exports/step-N"),
    ] = None,
) -> None:
    """Write weights, config and tokenizer of a run in Hugging Face format.

    \b
    Examples:
      forgec export runs/grpo_math-20261120-120000
      forgec export runs/grpo_math-20261120-120000 --step 100 --to models/after_100
      forgec export runs/grpo_math-20261120-120000 --to "hf(me/grpo-math)"

    `transformers` and vLLM load the folder. A repository that is made on the hub is private.
    """
    try:
        found = chosen(run, step)
        name = re.fullmatch(r"""hf\(\s*["']?([^"'\s]+?)["']?\s*\)""", to or "")
        target = run / "exports" / f"step-{found}" if name or to is None else Path(to)
        if target.exists() and to and not name and (target.is_file() or any(target.iterdir())):
            raise UsageError(f"{target} is not empty; name a new folder with --to")
    except UsageError as error:
        print(f"forgec export: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    _write(run, found, target, name[1] if name else None)


def _write(run: Path, step: int, target: Path, name: str | None) -> None:
    """Export, push where `name` names a repository, and print where the result lies."""
    from contextlib import redirect_stderr
    from io import StringIO

    from forgedsl.runtime.export import create_repository, export, push

    said = StringIO()  # notes of libraries, told only with a failure
    try:
        with redirect_stderr(said):
            address = create_repository(name) if name else None  # before the work
            export(run.resolve(), step, target.resolve())
            if name:
                push(target, name)
    except LaunchError:
        raise
    except BaseException:
        print(said.getvalue(), file=sys.stderr)
        raise
    print(address or target)


def chosen(run: Path, step: int | None) -> int:
    """The step of the checkpoint to export."""
    from forgedsl.runs.checkpoints import checkpoint_steps

    if not (run / "job.json").is_file():
        raise UsageError(f"{run} is no run folder: it has no job.json")
    if (run / "rehearsal.json").exists():
        raise UsageError(f"{run} is a rehearsal: nothing was trained, there are no weights")
    steps = checkpoint_steps(run)
    if not steps:
        raise UsageError(f"{run} has no checkpoint, so there is nothing to export")
    if step is not None and step not in steps:
        there = ", ".join(map(str, steps))
        raise UsageError(
            f"{run} has no checkpoint of step {step}; it has {there} (checkpoint.keep says how "
            "many are kept)"
        )
    return steps[-1] if step is None else step
