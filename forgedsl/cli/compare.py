"""`forgec compare RUN...`: compares runs. Runs that differ only in the seed are one group."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from forgedsl.cli.parser import Parser
from forgedsl.errors import write_text


def parser() -> Parser:
    parser = Parser("compare", command.__doc__, "RUN ...", num_words=None)
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run folders; of a sweep, all its runs"
    )
    parser.add_argument(
        "-o", "--out", type=Path, metavar="PATH", help="write a page with the curves (HTML)"
    )
    parser.add_words("format", ("text", "json"), "text", dest="format_", help="output format")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(runs: list[Path], out: Path | None, format_: str) -> None:
    """Compare runs: the settings that differ, and the final reward and evals of each.

    Runs that differ only in the seed are one group, with mean and standard deviation.

    Examples:
      forgec compare runs/lr1e-6-seed1 runs/lr1e-6-seed2 runs/lr3e-6-seed1 runs/lr3e-6-seed2
      forgec compare runs/sweep-grpo_math-20261120-120000
      forgec compare runs/* -o compare.html
      forgec compare runs/a runs/b --format json
    """
    from forgedsl.runs.checkpoints import no_run, with_points

    runs = with_points(runs)
    for run in runs:
        if not (run / "job.json").is_file():
            _refuse(no_run(run))
    if len({run.resolve() for run in runs}) < 2:
        _refuse("name at least two different runs")
    from forgedsl.runs import compare

    found = compare.compare(runs)
    if format_ == "json":
        print(json.dumps(compare.as_data(found), indent=1))
    else:
        print(compare.render(found))
    if out is not None:
        write_text(out, compare.page(found))
        print(out, file=sys.stderr)


def _refuse(text: str) -> None:
    print(f"forgec compare: {text}", file=sys.stderr)
    raise SystemExit(2)
