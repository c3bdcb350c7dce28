"""`forgec diff A B`: what an edit changes, by class.

    A, B = FILE.forge | RUN | job.json | plan.json | git:REV[:PATH]

Exit codes: 0; 1 with --fail-on if a change of that class, or of a stricter one, is found; 2 if a
side cannot be read or has errors.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from forgedsl.cli.planning import Side


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


class Impact(StrEnum):
    NUMERICS = "numerics"
    PLACEMENT = "placement"
    OBSERVABILITY = "observability"
    COSMETIC = "cosmetic"


def command(
    old: Annotated[str, typer.Argument(metavar="A", help="a file, run, job or git:REV[:PATH]")],
    new: Annotated[str, typer.Argument(metavar="B", help="what A is compared with")],
    profile: Annotated[
        str | None, typer.Option(help="a profile for .forge files; that of the other side's run")
    ] = None,
    fail_on: Annotated[
        Impact | None, typer.Option("--fail-on", help="exit 1 on such changes, or stricter ones")
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="what to print")] = Format.TEXT,
) -> None:
    """Say what differs between A and B, and what each difference can change."""
    from forgedsl.cli.planning import SideError
    from forgedsl.lower.diff import CLASSES, compare

    try:
        first, second = _sides(old, new, profile)
    except SideError as error:
        print(f"forgec diff: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    changes = compare(first.job, second.job)
    if format_ is Format.JSON:
        import json
        from dataclasses import asdict

        document = {"format_version": "1.0", "changes": [asdict(change) for change in changes]}
        print(json.dumps(document, indent=1))
    else:
        from forgedsl.report.diff import render

        sys.stdout.write(render(changes, title=f"{first.label} -> {second.label}"))
    strict = CLASSES[: CLASSES.index(fail_on) + 1] if fail_on is not None else ()
    raise typer.Exit(1 if any(change.impact in strict for change in changes) else 0)


def _sides(old: str, new: str, profile: str | None) -> tuple[Side, Side]:
    """Both sides; a .forge file is taken under the profile of the other side's run."""
    from forgedsl.cli.planning import read_side

    texts = (old, new)
    files = [Path(t) for t in texts if not t.startswith("git:") and not Path(t).is_dir()]
    beside = next((path for path in files if path.suffix != ".json"), None)
    compiled = [t for t in texts if not t.startswith("git:") and _is_compiled(Path(t))]
    known = {text: read_side(text, profile="none") for text in compiled}
    chosen = profile or next((side.job.profile or "none" for side in known.values()), "auto")
    first, second = (
        known.get(text) or read_side(text, profile=chosen, beside=beside) for text in texts
    )
    return first, second


def _is_compiled(path: Path) -> bool:
    return path.is_dir() or path.suffix == ".json"
