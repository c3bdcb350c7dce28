"""Options that commands share: `--set`, `--set-file`, `--host`, `--print-after`, `--assume`, ..."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from forgedsl.cli.parser import Parser


def add_file(parser: Parser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="a .forge file")


def add_profile(parser: Parser) -> None:
    parser.add_argument(
        "--profile", default="auto", metavar="NAME", help="a profile of the file; none: as written"
    )


def add_host(parser: Parser) -> None:
    parser.add_argument(
        "--host", default="here", metavar="HOST",
        help="host to plan for: here, cpu, 8xH200, 2x8xH100 (2 hosts)",
    )  # fmt: skip


def add_passes(parser: Parser) -> None:
    """`--print-after` and `--timings`."""
    parser.add_argument(
        "--print-after", action="append", metavar="PASS",
        help="print the output of a pass on stderr; FORGE_LOG=PASS does so in any command",
    )  # fmt: skip
    parser.add_argument("--timings", action="store_true", help="print how long each pass took")


def add_faults(parser: Parser) -> None:
    """`--assume` and `--inject`."""
    parser.add_argument(
        "--assume", action="append", metavar="NAME.FIELD=VALUE",
        help="latency, length or fraction to simulate with",
    )  # fmt: skip
    parser.add_argument(
        "--inject", action="append", metavar="FAULT",
        help="a fault: kill, slow or fail; see `forgec sim --help`",
    )  # fmt: skip


def checked_passes(command: str, given: Sequence[str] | None) -> tuple[str, ...]:
    """Check names of passes; exit with 2 if one does not exist.

    Example:
        checked_passes("plan", ["hir", "plan"]) == ("hir", "plan")
    """
    from forgedsl.mistakes.suggest import did_you_mean, nearest
    from forgedsl.passes import names

    for name in given or ():
        if name not in names():
            hint = did_you_mean(nearest(name, names()))
            known = ", ".join(names())
            said = f"there is no pass `{name}`; " + (hint or f"there are {known}")
            print(f"forgec {command}: --print-after: {said}", file=sys.stderr)
            raise SystemExit(2)
    return tuple(given or ())
