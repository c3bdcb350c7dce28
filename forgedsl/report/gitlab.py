"""The Code Quality report of GitLab: a JSON list of issues with fingerprints."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping

from forgedsl.diagnostics import Diagnostic
from forgedsl.report.places import extent, fingerprint
from forgedsl.report.style import PLAIN, Style
from forgedsl.source import SourceFile

LEVELS = {"error": "critical", "warning": "major", "info": "info"}


def render(
    diagnostics: Iterable[Diagnostic], sources: Mapping[str, SourceFile], style: Style = PLAIN
) -> str:
    """All findings as one document."""
    seen: Counter[str] = Counter()
    issues = []
    for diagnostic in diagnostics:
        (line, column), (end_line, end_column) = extent(diagnostic.span, sources)
        mark = fingerprint(diagnostic, sources)
        seen[mark] += 1
        issues.append(
            {
                "type": "issue",
                "check_name": diagnostic.code,
                "description": f"{diagnostic.code}: {diagnostic.message}",
                "categories": ["Bug Risk"],
                "severity": LEVELS[diagnostic.severity],
                "fingerprint": mark if seen[mark] == 1 else f"{mark}-{seen[mark]}",
                "location": {
                    "path": diagnostic.span.file,
                    "positions": {
                        "begin": {"line": line, "column": column},
                        "end": {"line": end_line, "column": end_column},
                    },
                },
            }
        )
    return json.dumps(issues, indent=2)
