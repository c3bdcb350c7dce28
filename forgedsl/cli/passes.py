"""Options that commands share: `--set`, `--set-file`, `--host`, `--print-after`, `--assume`, ..."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from forgedsl.cli.overrides import SET_HELP

Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="a.b=v", help=SET_HELP)]
SetFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--set-file", metavar="FILE", help="overrides from TOML, YAML or JSON, before --set"
    ),
]
OnHost = Annotated[
    str,
    typer.Option("--host", metavar="HOST", help="plan for: here, cpu, 8xH200, 2x8xH100 (2 hosts)"),
]
PrintAfter = Annotated[
    list[str] | None,
    typer.Option(
        "--print-after",
        metavar="PASS",
        help="print what a pass made to stderr; FORGE_LOG=PASS does so in any command",
    ),
]
Profile = Annotated[
    str, typer.Option(metavar="NAME", help="a profile of the file; none: as written")
]
Assume = Annotated[
    list[str] | None,
    typer.Option(
        "--assume", metavar="NAME.FIELD=VALUE", help="a latency, length or share that is simulated"
    ),
]
Inject = Annotated[
    list[str] | None, typer.Option("--inject", metavar="FAULT", help="a fault that is simulated")
]
Timings = Annotated[bool, typer.Option("--timings", help="print how long each pass took")]


def checked_passes(command: str, given: Sequence[str] | None) -> tuple[str, ...]:
    """The passes named, which must exist; exits with 2 if one does not.

    Example:
        checked_passes("plan", ["hir", "plan"]) == ("hir", "plan")
    """
    from forgedsl.mistakes.suggest import did_you_mean, nearest
    from forgedsl.passes import names

    for name in given or ():
        if name not in names():
            hint = did_you_mean(nearest(name, names()))
            known = ", ".join(names())
            said = f"no pass is called `{name}`; " + (hint or f"there are {known}")
            print(f"forgec {command}: --print-after: {said}", file=sys.stderr)
            raise typer.Exit(2)
    return tuple(given or ())
