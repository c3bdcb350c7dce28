"""`forgec whatif RUN --with FILE`: computes recorded steps of a run again under another file,
without its models. With `--train` it also repeats their optimizer steps, from a checkpoint.

Exit codes: 0; 2 the run has no recording, or the file needs what is not recorded; 1 the file has
errors; 5 the trainer failed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.cli.parser import Parser, whole
from forgedsl.cli.replay import DEVICES
from forgedsl.notebook import can_redraw

if TYPE_CHECKING:
    from forgedsl.lower.build import Lowered
    from forgedsl.lower.job import Job
    from forgedsl.runs.retrained import Retrained
    from forgedsl.runs.whatif import Step


Asked = tuple[Path, Path, str | None, tuple[str, ...], tuple[Path, ...]]
"""the run, the file, its profile, overrides and set files"""


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


def parser() -> Parser:
    parser = Parser("whatif", command.__doc__, "RUN --with FILE")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument(
        "--with", type=Path, required=True, metavar="FILE", dest="with_",
        help="the .forge file whose rewards, functions and losses are applied",
    )  # fmt: skip
    parser.add_argument(
        "--steps", metavar="A:B", help="first and last step, or one; default: all recorded steps"
    )
    parser.add_argument(
        "--profile", metavar="NAME", help="profile of the file; default: that of the run"
    )
    parser.add_overrides()
    parser.add_argument(
        "--train", action="store_true",
        help="train the steps again, from where the run started the first of them",
    )  # fmt: skip
    parser.add_argument(
        "--procs", type=whole, default=1, metavar="N", help="with --train: ranks of the trainer"
    )
    parser.add_argument(
        "--device", default="cpu", metavar="cpu|gpu", help="with --train: where the trainer runs"
    )
    parser.add_argument(
        "--most-gap", type=float, metavar="X",
        help="with --train: stop if the mean gap of log-probs, trainer to sampler, is larger",
    )  # fmt: skip
    parser.add_choice("format", Format, Format.TEXT, help="what to print")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="PATH",
        help="where the page goes; default: RUN/whatif/FILE.html",
    )  # fmt: skip
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(
    run: Path,
    with_: Path,
    steps: str | None,
    profile: str | None,
    set_: list[str] | None,
    set_file: list[Path] | None,
    train: bool,
    procs: int,
    device: str,
    most_gap: float | None,
    format_: Format,
    out: Path | None,
) -> None:
    """Compute recorded steps of RUN again with the rewards, rubric, filters, advantages and losses
    of FILE, and compare.

    No model runs: completions, log-probs and the scores of judges are those of the run. The run is
    not changed. With --train the steps are trained again with what FILE declares, and their
    metrics are printed beside those of the run.

    Examples:
      forgec whatif runs/sums-20261120-120000 --with sums.forge eps=0.1
      forgec whatif runs/sums-20261120-120000 --with other_reward.forge --steps 200:250
      forgec whatif runs/sums-20261120-120000 --with sums.forge --format json
      forgec whatif runs/sums-20261120-120000 --with sums.forge eps=0.1 --train --steps 201:204
    """
    from forgedsl.cli.overrides import SideError
    from forgedsl.errors import ForgeError

    title = f"{run.name} with {with_.name}"
    given = {"--procs": procs != 1, "--device": device != "cpu", "--most-gap": most_gap is not None}
    try:
        if unread := [] if train else [name for name, is_given in given.items() if is_given]:
            raise SideError(f"{unread[0]} needs --train: add --train, or leave {unread[0]} out")
        _check_files(run, with_)
        asked = run, with_, profile, tuple(set_ or ()), tuple(set_file or ())
        if train:
            target = out or run / "whatif" / f"{with_.stem}-train"
            _show_trained(_trained(run, *_jobs(*asked), steps, target, procs, device, most_gap),
                          title, format_)  # fmt: skip
        else:
            found = _rescored(run, asked, steps)
            _show(found, title, out or run / "whatif" / f"{with_.stem}.html", format_)
    except (SideError, ForgeError) as error:
        raise SystemExit(_refused(error)) from error


def _check_files(run: Path, file: Path) -> None:
    """Raise a SideError if there is no such run, or the file cannot be read."""
    from forgedsl.cli.compiling import unreadable
    from forgedsl.cli.overrides import SideError
    from forgedsl.runs.checkpoints import no_run

    why = unreadable(file) if (run / "job.json").is_file() else no_run(run)
    if why:
        raise SideError(why)


def _refused(error: Exception) -> int:
    """Print why there is no result; return the exit code."""
    origin, remedy = getattr(error, "origin", ""), getattr(error, "remedy", "")
    lines = [f"forgec whatif: {error}", *filter(None, (origin, remedy))]
    print("\n  ".join(lines), file=sys.stderr)
    return 5 if getattr(error, "service", "") else 2


def _show(steps: Sequence[Step], title: str, target: Path, format_: Format) -> None:
    """Print the comparison, and write its page."""
    from forgedsl.errors import write_text
    from forgedsl.runs.whatif import as_data, page, render, summarize

    found = summarize(steps)
    write_text(target, page(found, title))
    if format_ is Format.JSON:
        print(json.dumps({"format_version": "1.0", **as_data(found)}, indent=1))
    else:
        sys.stdout.write(render(found, title))
    print(f"wrote {target}", file=sys.stderr)


def _show_trained(found: Sequence[Retrained], title: str, format_: Format) -> None:
    from forgedsl.runs.retrained import as_data, render

    if format_ is Format.JSON:
        print(json.dumps({"format_version": "1.0", "steps": as_data(found)}, indent=1))
    else:
        sys.stdout.write(render(found, title))


def _jobs(
    run: Path, file: Path, profile: str | None, overrides: tuple[str, ...],
    set_files: tuple[Path, ...],
) -> tuple[Job, Lowered]:  # fmt: skip
    """Return the job of the run, and the file compiled under the profile of the run."""
    from forgedsl.cli.planning import compile_side, read_job

    old = read_job(run / "job.json")
    return old, compile_side(
        file, profile=profile or old.profile or "none", overrides=overrides, set_files=set_files,
        profile_of="" if profile else str(run),
    )  # fmt: skip


def _rescored(run: Path, asked: Asked, steps: str | None) -> list[Step]:
    """Return the steps, computed in a temporary folder with the files of the job. Steps that are
    not recorded are refused before the file is compiled."""
    from forgedsl_runtime.whatif.parallel import helpers, rescore

    with helpers(run) as pool:
        from forgedsl.cli.planning import read_job
        from forgedsl_runtime.whatif.chosen import check, chosen

        files = chosen(run, read_job(run / "job.json"), steps)
        old, lowered = _jobs(*asked)
        check(run, old, lowered.job, files)
        with _inputs(lowered) as folder:
            return rescore(old, lowered.job, folder, files, pool, tell=_progress(len(files)))


def _trained(
    run: Path, old: Job, lowered: Lowered, steps: str | None, out: Path, procs: int, device: str,
    most_gap: float | None,
) -> list[Retrained]:  # fmt: skip
    """Return the steps, trained again; logs of the trainer go to `out`."""
    from forgedsl.diagnostics import counted
    from forgedsl.errors import LaunchError, writing
    from forgedsl_runtime.stderr import native_stderr
    from forgedsl_runtime.whatif.chosen import check, chosen
    from forgedsl_runtime.whatif.train import startable, train

    if device not in DEVICES:
        raise LaunchError(f"--device is cpu or gpu, not {device}")
    files = startable(run, chosen(run, old, steps), chosen=steps is not None)
    check(run, old, lowered.job, files, trains=True)
    first, last = min(files), max(files)
    span = f"step {first}" if first == last else f"steps {first} to {last}"
    print(f"starting {counted(procs, 'rank')} to train {span}", file=sys.stderr, flush=True)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    tell = _progress(len(files))
    with _inputs(lowered) as folder, native_stderr(out / "controller.log"):
        return train(run, old, lowered.job, folder, files, out=out, procs=procs,
                     device=DEVICES[device], most_gap=most_gap, tell=tell)  # fmt: skip


@contextmanager
def _inputs(lowered: Lowered) -> Iterator[Path]:
    """Make a temporary folder with the files that the rewards of a job read."""
    import tempfile

    from forgedsl.cli.inputs import copy_inputs

    with tempfile.TemporaryDirectory(prefix="forgec-whatif-") as name:
        wanted = {reward.path for reward in lowered.job.rewards.values()}
        own = {to: source for source, to in lowered.files if to in wanted or to.endswith(".py")}
        copy_inputs(own, Path(name))
        yield Path(name)


def _progress(total: int) -> Callable[[int], None]:
    """Return a function that shows how many steps are done, on a terminal."""

    def show(done: int) -> None:
        if can_redraw(sys.stderr):
            end = "\n" if done == total else ""
            print(f"\r{done} of {total} steps", end=end, file=sys.stderr, flush=True)

    return show
