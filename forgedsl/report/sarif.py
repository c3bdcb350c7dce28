"""SARIF 2.1.0: one run with its rules, its results, and their fixes.

Columns are code points (`columnKind`); paths are URIs relative to where forgec ran.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from forgedsl.diagnostics import Diagnostic, Edit, Fix
from forgedsl.report.full import table_rows
from forgedsl.report.places import extent, fingerprint
from forgedsl.report.style import PLAIN, Style
from forgedsl.source import SourceFile, Span

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def render(
    diagnostics: Iterable[Diagnostic], sources: Mapping[str, SourceFile], style: Style = PLAIN
) -> str:
    """The log of one run."""
    from forgedsl.version import VERSION

    found = list(diagnostics)
    names = dict(sorted({d.code: d.name for d in found}.items()))
    driver = {
        "name": "forgec",
        "version": VERSION,
        "rules": [_rule(code, name) for code, name in names.items()],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(d, [*names], sources) for d in found],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _rule(code: str, name: str) -> dict[str, Any]:
    return {
        "id": code,
        "name": "".join(part.capitalize() for part in name.split("-")),
        "shortDescription": {"text": name},
        "help": {"text": f"forgec explain {code}"},
    }


def _result(
    diagnostic: Diagnostic, codes: list[str], sources: Mapping[str, SourceFile]
) -> dict[str, Any]:
    parts = [
        diagnostic.message,
        *(row.strip() for row in table_rows(diagnostic, sources)),
        *diagnostic.notes,
    ]
    parts += [f"help: {diagnostic.help}"] if diagnostic.help else []
    result: dict[str, Any] = {
        "ruleId": diagnostic.code,
        "ruleIndex": codes.index(diagnostic.code),
        "level": LEVELS[diagnostic.severity],
        "message": {"text": "\n".join(parts)},
        "locations": [_location(diagnostic.span, sources)],
        "partialFingerprints": {"forgec/v1": fingerprint(diagnostic, sources)},
    }
    if diagnostic.related:
        result["relatedLocations"] = [
            {**_location(r.span, sources), "id": i, "message": {"text": r.text.replace("\t", " ")}}
            for i, r in enumerate(diagnostic.related, 1)
        ]
    if diagnostic.fix is not None:
        result["fixes"] = [_fix(diagnostic.fix, sources)]
    if diagnostic.profiles:
        result["properties"] = {"profiles": list(diagnostic.profiles)}
    return result


def _location(span: Span, sources: Mapping[str, SourceFile]) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(span.file)},
            "region": _region(span, sources),
        }
    }


def _region(span: Span, sources: Mapping[str, SourceFile]) -> dict[str, int]:
    (line, column), (end_line, end_column) = extent(span, sources)
    return {"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column}


def _fix(fix: Fix, sources: Mapping[str, SourceFile]) -> dict[str, Any]:
    files = dict.fromkeys(edit.span.file for edit in fix.edits)
    changes = [
        {
            "artifactLocation": {"uri": quote(file)},
            "replacements": [_replacement(e, sources) for e in fix.edits if e.span.file == file],
        }
        for file in files
    ]
    return {"description": {"text": fix.message}, "artifactChanges": changes}


def _replacement(edit: Edit, sources: Mapping[str, SourceFile]) -> dict[str, Any]:
    return {"deletedRegion": _region(edit.span, sources), "insertedContent": {"text": edit.text}}
