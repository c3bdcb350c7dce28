"""`forgec lint`: check files as written and under each of their profiles.

Findings are the result of the command and go to stdout in every format. Exit 0 without errors
(warnings allowed), 1 with errors, 2 if a file cannot be read or the command line is wrong.

The options are parsed by argparse: Typer's own conversion of arguments loads pydantic, which takes
as long as the whole check.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forgedsl.diagnostics import Diagnostic
    from forgedsl.source import SourceFile

FORMATS = ("full", "concise", "json", "jsonl")
UNREADABLE = "S016"
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def command(ctx: typer.Context) -> None:
    """Check .forge files, as written and under each of their profiles."""
    raise typer.Exit(main(ctx.args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forgec lint",
        description="Check .forge files, as written and under each of their profiles.",
        allow_abbrev=False,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a file or a folder")
    parser.add_argument("--format", choices=FORMATS, default="full", help="how findings are shown")
    parser.add_argument("--profile", help="check this profile only; none: only as written")
    parser.add_argument(
        "--set", action="append", default=[], metavar="a.b=v", help="override a setting"
    )
    parser.add_argument(
        "--set-file", action="append", default=[], metavar="FILE", help="overrides from TOML"
    )
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    options = _parser().parse_args(arguments)
    from forgedsl.lint.engine import lint_file

    diagnostics: list[Diagnostic] = []
    sources: dict[str, SourceFile] = {}
    paths = _expand(options.files)
    for path in paths:
        result = lint_file(
            path, profile=options.profile, overrides=options.set, set_files=options.set_file
        )
        diagnostics += result.diagnostics
        sources |= result.sources
    _print(diagnostics, sources, options.format, len(paths))
    if any(d.code == UNREADABLE for d in diagnostics):
        return 2
    return 1 if any(d.severity == "error" for d in diagnostics) else 0


def _expand(paths: Sequence[Path]) -> list[Path]:
    """Folders become the .forge files in them."""
    found: list[Path] = []
    for path in paths:
        found += sorted(path.rglob("*.forge")) if path.is_dir() else [path]
    return found


def _print(
    diagnostics: list[Diagnostic], sources: dict[str, SourceFile], format_: str, num_files: int
) -> None:
    from forgedsl.report.style import style_for

    style = style_for(sys.stdout)
    if format_ in {"json", "jsonl"}:
        from forgedsl.report import json as machine

        renderer = machine.render if format_ == "json" else machine.render_lines
        text = renderer(diagnostics, sources)
    elif format_ == "concise":
        from forgedsl.report import concise

        text = concise.render(diagnostics, sources, style)
    else:
        from forgedsl.report import full

        text = full.render(diagnostics, sources, style)
        text = f"{text}\n\n{_summary(diagnostics, num_files)}" if text else _summary([], num_files)
    if text:
        print(text)


def _summary(diagnostics: list[Diagnostic], num_files: int) -> str:
    """`2 errors, 1 warning` or `3 files, no findings`."""
    counts = {}
    for severity in ("error", "warning", "info"):
        number = sum(d.severity == severity for d in diagnostics)
        if number:
            plural = "s" if number > 1 and severity != "info" else ""
            counts[severity] = f"{number} {severity}{plural}"
    if counts:
        return ", ".join(counts.values())
    return f"{num_files} file{'' if num_files == 1 else 's'}, no findings"
