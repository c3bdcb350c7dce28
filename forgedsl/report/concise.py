"""One line per diagnostic: `file:line:column: error[F101] message`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forgedsl.diagnostics import Diagnostic
from forgedsl.report.style import PLAIN, Style
from forgedsl.source import SourceFile


def render(
    diagnostics: Iterable[Diagnostic], sources: Mapping[str, SourceFile], style: Style = PLAIN
) -> str:
    """All diagnostics, one line each."""
    return "\n".join(_line(d, sources, style) for d in diagnostics)


def _line(diagnostic: Diagnostic, sources: Mapping[str, SourceFile], style: Style) -> str:
    source = sources.get(diagnostic.span.file)
    line, column = source.position(diagnostic.span.start) if source is not None else (1, 1)
    place = style.bold(f"{diagnostic.span.file}:{line}:{column}:")
    head = style.severity(f"{diagnostic.severity}[{diagnostic.code}]", diagnostic.severity)
    tail = f" ({diagnostic.help})" if diagnostic.help else ""
    return f"{place} {head} {diagnostic.message}{tail}"
