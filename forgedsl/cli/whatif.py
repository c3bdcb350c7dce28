"""`forgec whatif RUN --with FILE`: recorded steps of a run under another file, without its models.

Exit codes: 0; 2 the run has no recording, or the file needs what is not recorded; 1 the file has
errors.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.cli.parser import Parser

if TYPE_CHECKING:
    from forgedsl.lower.build import Lowered
    from forgedsl.lower.job import Job
    from forgedsl.runs.whatif import Step


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
    format_: Format,
    out: Path | None,
) -> None:
    """Compute recorded steps of RUN again with the rewards, rubric, filters, advantages and losses
    of FILE, and compare.

    No model runs: completions, log-probs and the scores of judges are those of the run. The run is
    not changed.

    Examples:
      forgec whatif runs/sums-20261120-120000 --with sums.forge eps=0.1
      forgec whatif runs/sums-20261120-120000 --with other_reward.forge --steps 200:250
      forgec whatif runs/sums-20261120-120000 --with sums.forge --format json
    """
    from forgedsl.cli.overrides import SideError
    from forgedsl.cli.planning import read_job
    from forgedsl.errors import ForgeError, writing
    from forgedsl.runs.checkpoints import no_run
    from forgedsl.runs.whatif import as_data, page, render, summarize

    try:
        if not (run / "job.json").is_file():
            raise SideError(no_run(run))
        old = read_job(run / "job.json")
        lowered = _compiled(with_, old, profile, tuple(set_ or ()), tuple(set_file or ()), run)
        found = summarize(_rescored(run, old, lowered, steps))
    except (SideError, ForgeError) as error:
        origin, remedy = getattr(error, "origin", ""), getattr(error, "remedy", "")
        lines = [f"forgec whatif: {error}", *filter(None, (origin, remedy))]
        print("\n  ".join(lines), file=sys.stderr)
        raise SystemExit(2) from error
    title = f"{run.name} with {with_.name}"
    target = out or run / "whatif" / f"{with_.stem}.html"
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(found, title), encoding="utf-8")
    if format_ is Format.JSON:
        print(json.dumps({"format_version": "1.0", **as_data(found)}, indent=1))
    else:
        sys.stdout.write(render(found, title))
    print(f"wrote {target}", file=sys.stderr)


def _compiled(
    file: Path, old: Job, profile: str | None, overrides: tuple[str, ...],
    set_files: tuple[Path, ...], run: Path,
) -> Lowered:  # fmt: skip
    """Compile the file under the profile of the run."""
    from forgedsl.cli.planning import compile_side

    return compile_side(
        file, profile=profile or old.profile or "none", overrides=overrides, set_files=set_files,
        profile_of="" if profile else str(run),
    )  # fmt: skip


def _rescored(run: Path, old: Job, lowered: Lowered, steps: str | None) -> list[Step]:
    """Return the steps, computed in a temporary folder with the files of the job."""
    import tempfile

    from forgedsl.cli.inputs import copy_inputs
    from forgedsl.runtime.whatif.chosen import check, chosen
    from forgedsl.runtime.whatif.parallel import rescore

    files = chosen(run, old, steps)
    check(run, old, lowered.job, files)
    with tempfile.TemporaryDirectory(prefix="forgec-whatif-") as name:
        folder = Path(name)
        wanted = {reward.path for reward in lowered.job.rewards.values()}
        own = {to: source for source, to in lowered.files if to in wanted or to.endswith(".py")}
        copy_inputs(own, folder)
        return rescore(old, lowered.job, folder, files, tell=_progress(len(files)))


def _progress(total: int) -> Callable[[int], None]:
    """Return a function that shows how many steps are done, on a terminal."""

    def show(done: int) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == total else ""
            print(f"\r{done} of {total} steps", end=end, file=sys.stderr, flush=True)

    return show
