"""`forgec bisect RUN_A RUN_B`: the first step in which two runs differ, and what differs in it.

Exit codes: 0 no step differs; 1 one does; 2 a side is no run, or they have no step in common.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgedsl.cli.parser import Parser

if TYPE_CHECKING:
    from forgedsl.runs.bisect import Difference


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


def parser() -> Parser:
    parser = Parser("bisect", command.__doc__, "RUN_A RUN_B", num_words=2)
    parser.add_argument("first", type=Path, metavar="RUN_A", help="a run folder")
    parser.add_argument("second", type=Path, metavar="RUN_B", help="the run to compare with it")
    parser.add_argument(
        "--tolerance", type=float, default=0.0, metavar="X",
        help="relative difference of numbers that counts as equal",
    )  # fmt: skip
    parser.add_choice("format", Format, Format.TEXT, help="what to print")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(first: Path, second: Path, tolerance: float, format_: Format) -> None:
    """Find the first step in which two runs differ, and what differs in it, causes first.

    Compared are the metrics of all steps, the completions of steps that both have recorded, and
    the digests of published weights. Settings that differ are listed too.

    Examples:
      forgec bisect runs/sums-20261120-120000 runs/sums-20261121-120000
      forgec bisect runs/a runs/b --tolerance 1e-5
    """
    from forgedsl.cli.overrides import SideError
    from forgedsl.cli.planning import read_side
    from forgedsl.lower.diff import compare
    from forgedsl.runs.bisect import weights
    from forgedsl_runtime.recorded.weights import read_weights

    try:
        jobs = [read_side(str(path), profile="none").job for path in (first, second)]
    except SideError as error:
        print(f"forgec bisect: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    changes = [change for change in compare(*jobs) if change.impact in ("numerics", "placement")]
    steps, compared, found = _first((first, second), tolerance)
    parted = weights(*map(read_weights, (first, second)))
    if not compared:
        print("forgec bisect: the runs have no step in common", file=sys.stderr)
        raise SystemExit(2)
    settings = [f"{change.path}: {change.before} -> {change.after}" for change in changes]
    if format_ is Format.JSON:
        from dataclasses import asdict

        shown: dict[str, Any] = {"format_version": "1.0", "settings": settings, "step": steps}
        shown |= {"compared": compared, "differences": [asdict(each) for each in found]}
        shown["weights"] = parted and asdict(parted)
        print(json.dumps(shown, indent=1))
    else:
        print("\n".join(_lines(settings, steps, compared, found)))
        if parted is not None:
            print(parted.text)
    exact = tolerance == 0 and parted is not None and parted.step is not None
    raise SystemExit(1 if found or exact else 0)


def _lines(
    settings: Sequence[str], step: int | None, compared: int, found: Sequence[Difference]
) -> Iterator[str]:
    from forgedsl.diagnostics import counted

    for text in settings:
        yield f"setting {text}"
    if step is None:
        yield f"no difference in {counted(compared, 'step')}"
        return
    yield f"step {step} is the first that differs (of {counted(compared, 'compared step')})"
    for each in found:
        yield f"  {each.text}"


def _first(runs: tuple[Path, Path], tolerance: float) -> tuple[int | None, int, list[Difference]]:
    """Return the first step that differs, the number of compared steps, and what differs."""
    from forgedsl.runs.bisect import differences
    from forgedsl.runs.data import jsonl
    from forgedsl_runtime.recorded.files import read, steps_in

    metrics = [{row["step"]: row for row in jsonl(run / "metrics.jsonl", [])} for run in runs]
    files = [steps_in(run) for run in runs]
    has_metrics = metrics[0].keys() & metrics[1].keys()
    has_rows = files[0].keys() & files[1].keys()
    for done, step in enumerate(both := sorted(has_metrics | has_rows), 1):
        rows = [read(each[step]) if step in has_rows else [] for each in files]
        values = [each[step] if step in has_metrics else {} for each in metrics]
        if found := differences((rows[0], rows[1]), (values[0], values[1]), tolerance):
            return step, done, found
    return None, len(both), []
