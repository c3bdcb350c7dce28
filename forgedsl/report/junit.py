"""JUnit XML: a test case per finding, failed if it is an error or a warning, and one passed case
per file without any."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from xml.sax.saxutils import escape, quoteattr

from forgedsl.diagnostics import Diagnostic, Severity
from forgedsl.report.full import render_one
from forgedsl.report.style import PLAIN, Style
from forgedsl.source import SourceFile

FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""what XML 1.0 cannot hold"""


def render(
    diagnostics: Iterable[Diagnostic], sources: Mapping[str, SourceFile], style: Style = PLAIN
) -> str:
    """The document; one suite per file."""
    by_file: dict[str, list[Diagnostic]] = {name: [] for name in sources if name[:1] != "<"}
    for diagnostic in diagnostics:
        by_file.setdefault(diagnostic.span.file, []).append(diagnostic)
    suites = [_suite(f, found, sources) for f, found in by_file.items()]
    return "\n".join(
        ['<?xml version="1.0" encoding="utf-8"?>', '<testsuites name="forgec lint">', *suites,
         "</testsuites>"]
    )  # fmt: skip


def _suite(file: str, found: list[Diagnostic], sources: Mapping[str, SourceFile]) -> str:
    failed = sum(d.severity is not Severity.INFO for d in found)
    cases = [_case(d, sources) for d in found] or [
        f'    <testcase classname={_attribute(file)} name="forgec lint"/>'
    ]
    head = f'  <testsuite name={_attribute(file)} tests="{len(cases)}" failures="{failed}"'
    return "\n".join([f'{head} errors="0">', *cases, "  </testsuite>"])


def _case(diagnostic: Diagnostic, sources: Mapping[str, SourceFile]) -> str:
    source = sources.get(diagnostic.span.file)
    line = source.position(diagnostic.span.start)[0] if source is not None else 1
    name = _attribute(f"{diagnostic.code} {diagnostic.name}, line {line}")
    head = f"    <testcase classname={_attribute(diagnostic.span.file)} name={name}>"
    text = escape(FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", render_one(diagnostic, sources)))
    if diagnostic.severity is Severity.INFO:
        return f"{head}<system-out>{text}</system-out></testcase>"
    message, kind = _attribute(diagnostic.message), _attribute(str(diagnostic.severity))
    return f"{head}<failure message={message} type={kind}>{text}</failure></testcase>"


def _attribute(text: str) -> str:
    return quoteattr(FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text))
