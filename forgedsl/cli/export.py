"""`forgec export RUN`: writes the weights of a checkpoint to a Hugging Face folder, or to the
hub."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from forgedsl.cli.overrides import UsageError
from forgedsl.cli.parser import Parser, whole
from forgedsl.cli.waiting import waiting
from forgedsl.errors import REFUSED, CannotWriteError, LaunchError
from forgedsl.surface import flag, option

MOST = 3
"""better steps without a checkpoint that a note names"""


def parser() -> Parser:
    parser = Parser("export", command.__doc__, "RUN")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder, finished or stopped")
    parser.add_argument(
        "--step", type=whole, metavar="N", help="step of the checkpoint; default: the newest"
    )
    parser.add_argument(
        "--best", metavar="EVAL", help="export the checkpoint with the best value of this eval"
    )
    parser.add_argument(
        "--to", metavar="FOLDER|hf(name)",
        help="destination; default: RUN/exports/step-N, or step-N-adapter",
    )  # fmt: skip
    parser.add_argument(
        "--adapter", action="store_true",
        help="the LoRA adapter alone, in the layout of PEFT; default: merged into the weights",
    )  # fmt: skip
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(run: Path, step: int | None, best: str | None, to: str | None, adapter: bool) -> None:
    """Write weights, config and tokenizer of a run in Hugging Face format.

    `transformers` and vLLM can load the folder. A new repository on the hub is private. A run with
    `lora` is exported with the adapter merged into the weights. With --adapter, the folder holds
    the adapter alone, for PEFT and for vLLM's `--lora-modules`.

    Examples:
      forgec export runs/grpo_math-20261120-120000
      forgec export runs/grpo_math-20261120-120000 --step 100 --to models/after_100
      forgec export runs/grpo_math-20261120-120000 --best held_out
      forgec export runs/grpo_math-20261120-120000 --to "hf(me/grpo-math)"
      forgec export runs/grpo_math-20261120-120000 --adapter --to adapters/math
    """
    try:
        print(export_run(run, step=step, best=best, to=to, adapter=adapter))
    except UsageError as error:
        print(f"forgec export: {error}", file=sys.stderr)
        raise SystemExit(2) from error


def export_run(
    run: Path,
    *,
    step: int | None = None,
    best: str | None = None,
    to: str | None = None,
    adapter: bool = False,
) -> str:
    """Export a checkpoint, or its adapter alone; return the folder, or the address on the hub.

    Raises:
        UsageError: there is no such checkpoint, or the place cannot be used.
    """
    found = chosen(run, step, best)
    if best is not None and (note := _better(run, best, found)):
        print(f"note: {note}", file=sys.stderr)
    if adapter and not _has_adapter(run):
        without = f"leave out {flag('--adapter')}"
        raise UsageError(f"{run} trained all weights, so it has no adapter: {without}")
    name = re.fullmatch(r"""hf\(\s*["']?([^"'\s]+?)["']?\s*\)""", to or "")
    if to is not None and name is None and to.startswith("hf("):
        raise UsageError(f"{to} names no repository; write hf(owner/name)")
    own = f"step-{found}-adapter" if adapter else f"step-{found}"
    target = run / "exports" / own if name or to is None else Path(to)
    if target.exists() and to and not name and (target.is_file() or any(target.iterdir())):
        raise UsageError(f"{target} is not empty; name a new folder with {option('--to')}")
    return _write(run, found, target, name[1] if name else None, adapter=adapter)


def _has_adapter(run: Path) -> bool:
    """True if the trainer of a run has `lora`."""
    from forgedsl.lower import job as spec

    job = spec.read_job(run)
    return getattr(job.services[job.trained_service], "lora", None) is not None


def _write(run: Path, step: int, target: Path, name: str | None, *, adapter: bool) -> str:
    """Export, push where `name` names a repository, and return where the result lies."""
    from contextlib import redirect_stderr
    from io import StringIO

    with waiting("loading PyTorch"):
        from forgedsl_runtime.export import create_repository, export, push

    said = StringIO()  # output of libraries, shown only if the export fails
    try:
        with waiting(f"exporting step {step} of {run}") as say, redirect_stderr(said):
            address = create_repository(name) if name else None  # checked before the work starts
            export(run.resolve(), step, target.resolve(), adapter=adapter)
            if name:
                say(f"uploading to {name}")
                push(target, name)
    except LaunchError:
        raise
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        why = f"cannot write {error.filename or target}: {error.strerror}"
        other = option("--to", "FOLDER")
        raise CannotWriteError(f"{why}; choose another place with {other}") from error
    except BaseException:
        print(said.getvalue(), file=sys.stderr)
        raise
    return str(address or target)


def _better(run: Path, name: str, step: int) -> str:
    """Return a note on the steps that an eval liked better, but that have no checkpoint; "" if
    there are none."""
    from forgedsl.runs.data import load_run
    from forgedsl.runs.text import number
    from forgedsl.runs.verdict import evals, is_loss

    data = load_run(run)
    values = dict(evals(data)[name])
    sign = 1 if is_loss(data, name) else -1
    better = [s for s, value in values.items() if sign * value < sign * values[step]]
    if not better:
        return ""
    better.sort(key=lambda each: (sign * values[each], each))
    told = ", ".join(f"{number(values[s])} at step {s:g}" for s in better[:MOST])
    more = f" and {len(better) - MOST} more" if len(better) > MOST else ""
    keep = f"`checkpoint {{ keep = {data.job.checkpoint.keep + len(better)} }}`"
    return (
        f"{name} was better where there is no checkpoint: {told}{more}; exported is step {step}, "
        f"{number(values[step])}; to keep more checkpoints, set {keep}"
    )


def best_step(run: Path, name: str, steps: list[int]) -> int:
    """Return the step of the checkpoint with the best value of an eval; of equal ones the first."""
    from forgedsl.runs.data import load_run
    from forgedsl.runs.verdict import evals, is_loss

    data = load_run(run)
    if name not in data.job.evals:
        known = ", ".join(data.job.evals)
        none = f"it has no evals: leave out {option('--best')}"
        has = f"its evals are {known}" if known else none
        raise UsageError(f"{run} has no eval {name}; {has}")
    values = {step: value for step, value in evals(data).get(name, ()) if step in steps}
    if not values:
        kept = ", ".join(map(str, steps))
        raise UsageError(
            f"{name} was not evaluated at the step of any checkpoint of {run} ({kept})"
        )
    sign = 1 if is_loss(data, name) else -1
    return int(min(values, key=lambda step: (sign * values[step], step)))


def chosen(run: Path, step: int | None, best: str | None = None) -> int:
    """Return the step of the checkpoint to export."""
    from forgedsl.runs.checkpoints import checkpoint_steps, no_run

    if not (run / "job.json").is_file():
        raise UsageError(no_run(run))
    if (run / "rehearsal.json").exists():
        raise UsageError(f"{run} is a rehearsal: nothing was trained, so there are no weights")
    steps = checkpoint_steps(run)
    if not steps:
        raise UsageError(f"{run} has no checkpoint, so there is nothing to export")
    if step is not None and step not in steps:
        there = ", ".join(map(str, steps))
        raise UsageError(
            f"{run} has no checkpoint of step {step}; it has {there} (checkpoint.keep sets how "
            "many are kept)"
        )
    if best is not None and step is not None:
        both = f"{option('--step')} and {option('--best')}"
        raise UsageError(f"{both} exclude each other: give one of them")
    if best is not None:
        return best_step(run, best, steps)
    if step is None and steps[-1] == 0:
        first = option("--step", "0")
        raise UsageError(f"{run} has not trained yet; `{first}` exports the initial weights")
    return steps[-1] if step is None else step
