"""Workflow commands of GitHub Actions: findings as annotations of a pull request.

::error file=a.forge,line=3,col=5,endLine=3,endColumn=9,title=F101 undefined::message
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forgedsl.diagnostics import Diagnostic
from forgedsl.report.places import extent
from forgedsl.report.style import PLAIN, Style
from forgedsl.source import SourceFile

LEVELS = {"error": "error", "warning": "warning", "info": "notice"}


def render(
    diagnostics: Iterable[Diagnostic], sources: Mapping[str, SourceFile], style: Style = PLAIN
) -> str:
    """One command per finding."""
    return "\n".join(_command(d, sources) for d in diagnostics)


def _command(diagnostic: Diagnostic, sources: Mapping[str, SourceFile]) -> str:
    (line, column), (end_line, end_column) = extent(diagnostic.span, sources)
    properties = {
        "file": diagnostic.span.file,
        "line": line,
        "col": column,
        "endLine": end_line,
        "endColumn": end_column,
        "title": f"{diagnostic.code} {diagnostic.name}",
    }
    shown = ",".join(f"{key}={_property(str(value))}" for key, value in properties.items())
    parts = [diagnostic.message, *diagnostic.notes]
    parts += [f"help: {diagnostic.help}"] if diagnostic.help else []
    return f"::{LEVELS[diagnostic.severity]} {shown}::{_data(chr(10).join(parts))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
