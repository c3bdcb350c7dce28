"""Renders findings as Markdown: a table, then each finding in full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forgedsl.diagnostics import Diagnostic
from forgedsl.report.full import render_one
from forgedsl.report.places import extent
from forgedsl.report.style import PLAIN, Style
from forgedsl.source import SourceFile


def render(
    diagnostics: Iterable[Diagnostic], sources: Mapping[str, SourceFile], style: Style = PLAIN
) -> str:
    """The table and the details."""
    found = list(diagnostics)
    if not found:
        return "No findings."
    lines = ["| | place | finding | help |", "|---|---|---|---|"]
    for d in found:
        (line, column), _ = extent(d.span, sources)
        cells = (
            f"{d.severity} {d.code}",
            f"`{d.span.file}:{line}:{column}`",
            _cell(d.message),
            _cell(d.help),
        )
        lines.append(f"| {' | '.join(cells)} |")
    for d in found:
        text = render_one(d, sources)
        fence = "`" * max(3, _longest_fence(text) + 1)
        lines += ["", f"{fence}text", text, fence]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _longest_fence(text: str) -> int:
    runs = [len(line) - len(line.lstrip("`")) for line in text.splitlines()]
    return max(runs, default=0)
