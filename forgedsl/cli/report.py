"""`forgec report RUN`: writes the report of a run again, from its folder alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from forgedsl.cli.parser import Parser
from forgedsl.errors import writing


def parser() -> Parser:
    parser = Parser("report", command.__doc__, "RUN")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument(
        "--beside", type=Path, metavar="RUN", help="a second run, drawn into the same charts"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(run: Path, beside: Path | None = None) -> None:
    """Write RUN/report.html from job.json, metrics.jsonl, events.jsonl and samples.jsonl.

    The run may have finished, been killed, or still be running. With --beside, another page is
    written, with the curves of both runs and the settings in which they differ.

    Examples:
      forgec report runs/grpo_math-20261120-120000
      forgec report runs/warm --beside runs/cold      # writes runs/warm/report-beside-cold.html
    """
    for folder in (run, beside):
        if folder is not None:
            _check(folder)
    from forgedsl.runs import write_report
    from forgedsl.runs.data import load_run

    data = load_run(run)
    if data.spoilt:
        lines = ", ".join(str(run / place) for place in data.spoilt[:5])
        more = f" and {len(data.spoilt) - 5} more" if len(data.spoilt) > 5 else ""
        print(f"note: skipped lines that are not JSON: {lines}{more}", file=sys.stderr)
    try:
        with writing(run / "report.html"):
            path = write_report(run, data, beside)
    except OSError as error:
        print(f"forgec report: cannot write {error.filename}: {error.strerror}", file=sys.stderr)
        raise SystemExit(2) from error
    print(path)


def _check(run: Path) -> None:
    """Exit with a message if the folder is no run, or has nothing to report."""
    from forgedsl.runs.checkpoints import no_run

    if not (run / "job.json").is_file():
        print(f"forgec report: {no_run(run)}", file=sys.stderr)
        raise SystemExit(2)
    if not (run / "events.jsonl").is_file():
        print(f"forgec report: {run} contains a job that has not been run yet", file=sys.stderr)
        raise SystemExit(2)
