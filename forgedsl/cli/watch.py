"""`forgec watch RUN`: shows the progress of a run, from another terminal or host."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from forgedsl.cli.parser import Parser


def parser() -> Parser:
    parser = Parser("watch", command.__doc__, "RUN")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(run: Path) -> None:
    """Show the progress of a run, as `forgec run` does, until it ends. Reads only the run folder.

    Ctrl-C ends the watching, not the run. The exit code is that of the run; 5 if it was killed.

    Examples:
      forgec watch runs/grpo_math-20261120-120000
    """
    if not (run / "job.json").is_file():
        from forgedsl.runs.checkpoints import no_run

        print(f"forgec watch: {no_run(run)}", file=sys.stderr)
        raise SystemExit(2)
    from forgedsl.lower.job import read_job
    from forgedsl.runs.data import is_running
    from forgedsl.runs.follow import follow, last_start
    from forgedsl.runs.summary import summary
    from forgedsl_runtime.readers.progress import open_progress

    reader = open_progress(read_job(run), began=0.0)
    path = run / "events.jsonl"
    try:
        code = follow(path, reader.on_event, lambda: not is_running(run), since=last_start(path))
    except KeyboardInterrupt:
        raise SystemExit(0) from None
    finally:
        reader.close()
    if not path.is_file():
        print(f"{run} has not been run yet", file=sys.stderr)
        raise SystemExit(2)
    print(summary(run, code))
    raise SystemExit(5 if code is None else code)
