"""`forgec diff A B`: the differences between two jobs, by what they can change.

    A, B = FILE.forge | RUN | job.json | plan.json | git:REV[:PATH]

Exit codes: 0; 1 with --fail-on if a change of that class, or of a stricter one, is found; 2 if a
side cannot be read or has errors.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgedsl.cli.parser import Parser

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


def parser() -> Parser:
    parser = Parser("diff", command.__doc__, "A B", num_words=2)
    parser.add_argument("old", metavar="A", help="a file, run, job or git:REV[:PATH]")
    parser.add_argument("new", metavar="B", help="file, run, job or revision to compare with A")
    parser.add_argument(
        "--profile", metavar="NAME",
        help="profile for .forge files; default: the profile of the run it is compared with",
    )  # fmt: skip
    parser.add_overrides()
    parser.add_choice(
        "fail-on",
        Impact,
        None,
        help="exit 1 if there are changes of this class, or of one named before it",
    )
    parser.add_choice("format", Format, Format.TEXT, help="what to print")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(
    old: str,
    new: str,
    profile: str | None,
    set_: list[str] | None,
    set_file: list[Path] | None,
    fail_on: Impact | None,
    format_: Format,
) -> None:
    """List the differences between A and B, and what each can change.

    Overrides apply to files and revisions. If A and B are the same file, they apply to B alone.

    Examples:
      forgec diff git:main pipelines/grpo_math.forge --fail-on numerics
      forgec diff runs/grpo_math-20261120-120000 pipelines/grpo_math.forge
      forgec diff runs/grpo_math-20261120-120000 pipelines/grpo_math.forge schedule.steps=400
      forgec diff x.forge x.forge trainer.procs=2
    """
    from forgedsl.cli.overrides import SideError
    from forgedsl.lower.diff import CLASSES, compare

    try:
        first, second = _sides(old, new, profile, tuple(set_ or ()), tuple(set_file or ()))
    except SideError as error:
        print(f"forgec diff: {error}", file=sys.stderr)
        raise SystemExit(2) from error
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
    raise SystemExit(1 if any(change.impact in strict for change in changes) else 0)


def _sides(
    old: str, new: str, profile: str | None, overrides: tuple[str, ...], set_files: tuple[Path, ...]
) -> tuple[Side, Side]:
    """Read both sides. A .forge file is compiled under the profile of the other side's run."""
    from forgedsl.cli.overrides import SideError
    from forgedsl.cli.planning import read_side

    texts = (old, new)
    files = [Path(t) for t in texts if not t.startswith("git:") and not Path(t).is_dir()]
    beside = next((path for path in files if path.suffix != ".json"), None)
    compiled = [t for t in texts if not t.startswith("git:") and _is_compiled(Path(t))]
    given = [*overrides, *(f"--set-file {path}" for path in set_files)]
    given += [f"--profile {profile}"] if profile is not None else []
    if given and len(compiled) == 2:
        raise SideError(f"{given[0]} cannot be applied: {old} and {new} are already compiled")
    known = {text: read_side(text, profile="none") for text in compiled}
    other = next(iter(known.values()), None)
    chosen = profile or (other.job.profile or "none" if other is not None else "auto")
    of = other.label if other is not None and profile is None else ""
    layers = {"overrides": overrides, "set_files": set_files}
    bare = {"overrides": (), "set_files": ()}

    def side(text: str, layers: dict[str, Any]) -> Side:
        return known.get(text) or read_side(
            text, profile=chosen, beside=beside, profile_of=of, **layers
        )

    return side(old, bare if old == new else layers), side(new, layers)


def _is_compiled(path: Path) -> bool:
    return path.is_dir() or path.suffix == ".json"
