"""Diagnostics as a JSON document, for programs.

Lines and columns are 1-based and count code points; offsets are 0-based. The major number of
`format_version` changes if the meaning of a field does, the minor one if a field is added.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from forgedsl.diagnostics import Diagnostic
from forgedsl.report.full import table_rows
from forgedsl.report.style import PLAIN, Style
from forgedsl.source import SourceFile, Span

FORMAT_VERSION = "1.1"


def render(
    diagnostics: Iterable[Diagnostic], sources: Mapping[str, SourceFile], style: Style = PLAIN
) -> str:
    """Return the document with all diagnostics."""
    items = [as_dict(d, sources) for d in diagnostics]
    return json.dumps({"format_version": FORMAT_VERSION, "diagnostics": items}, indent=2)


def failure(kind: str, message: str) -> str:
    """Return the object that replaces the findings if a check could not run."""
    error = {"kind": kind, "message": message}
    document = {"format_version": FORMAT_VERSION, "diagnostics": [], "error": error}
    return json.dumps(document, indent=2)


def as_dict(diagnostic: Diagnostic, sources: Mapping[str, SourceFile]) -> dict[str, Any]:
    """Convert a diagnostic to JSON data."""
    fix = diagnostic.fix
    return {
        "code": diagnostic.code,
        "name": diagnostic.name,
        "severity": str(diagnostic.severity),
        "message": diagnostic.message,
        "file": diagnostic.span.file,
        "span": _span(diagnostic.span, sources),
        "label": diagnostic.label,
        "related": [
            {"text": r.text.replace("\t", " "), "file": r.span.file, "span": _span(r.span, sources)}
            for r in diagnostic.related
        ],
        "notes": [*(row.strip() for row in table_rows(diagnostic, sources)), *diagnostic.notes],
        "help": diagnostic.help,
        "fix": None
        if fix is None
        else {
            "message": fix.message,
            "safe": fix.safe,
            "edits": [
                {"text": e.text, "file": e.span.file, "span": _span(e.span, sources)}
                for e in fix.edits
            ],
        },
        "profiles": list(diagnostic.profiles),
    }


def _span(span: Span, sources: Mapping[str, SourceFile]) -> dict[str, Any]:
    return {
        "start": _position(span.file, span.start, sources),
        "end": _position(span.file, span.end, sources),
    }


def _position(file: str, offset: int, sources: Mapping[str, SourceFile]) -> dict[str, int]:
    source = sources.get(file)
    line, column = source.position(offset) if source is not None else (1, 1)
    return {"line": line, "column": column, "offset": offset}
