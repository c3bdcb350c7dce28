"""Code actions for findings: fixes, what a name was meant to be, a new Python file, all safe fixes,
"allow with a reason".

Edits refer to the current text. An unsafe fix may change what the program computes; its title says
so, and "all" leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from forgedsl.diagnostics import Diagnostic, Edit, Severity
from forgedsl.ide.meant import choices
from forgedsl.ide.python_files import missing_file
from forgedsl.ide.workspace import Document
from forgedsl.lint.engine import Held, lint_source
from forgedsl.lint.fixes import settle
from forgedsl.lint.suppress import PLACEHOLDER, is_suppressible
from forgedsl.records import dataclass
from forgedsl.source import SourceFile, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An offered change. `kind` is fix, create or allow; `finding` is the finding it remedies;
    `creates` is the path and text of a new file."""

    title: str
    kind: str
    edits: tuple[Edit, ...]
    finding: Diagnostic
    safe: bool = True
    creates: tuple[Path, str] | None = None


def actions(document: Document, start: int, end: int) -> list[Action]:
    """Return the actions for findings that touch a range of the text."""
    found: list[Action] = []
    for finding in document.findings:
        span = finding.span
        if span.file == document.name and span.start <= end and start <= span.end:
            found += _of_finding(document, finding)
    return found


def _of_finding(document: Document, finding: Diagnostic) -> Iterator[Action]:
    fix = finding.fix
    if fix is not None and all(edit.span.file == document.name for edit in fix.edits):
        changes = "" if fix.safe else " (not a safe fix)"
        title = f"{finding.code}: {fix.message}{changes}"
        yield Action(title=title, kind="fix", edits=fix.edits, finding=finding, safe=fix.safe)
    for choice in choices(document, finding):
        title = f"{finding.code}: {choice.message} (not a safe fix)"
        yield Action(title=title, kind="fix", edits=choice.edits, finding=finding, safe=False)
    created = missing_file(document, finding)
    if created is not None:
        title = f"{finding.code}: create {created[0].relative_to(document.folder).as_posix()}"
        yield Action(title=title, kind="create", edits=(), finding=finding, creates=created)
    if finding.severity is not Severity.ERROR or is_suppressible(finding.code):
        yield Action(
            title=f"Allow {finding.code} with a reason",
            kind="allow",
            edits=(allowed(document.source, finding),),
            finding=finding,
        )


def allowed(source: SourceFile, finding: Diagnostic) -> Edit:
    """Return the edit that adds an `allow` comment above a finding, with a placeholder for the
    reason."""
    line, _ = source.position(finding.span.start)
    begin = source.line_starts[line - 1]
    text = source.line(line)
    indent = text[: len(text) - len(text.lstrip())]
    comment = f"{indent}# forge: allow[{finding.code}] {PLACEHOLDER}\n"
    return Edit(text=comment, span=Span(source.name, begin, begin))


def fix_all(document: Document) -> str | None:
    """Return the text after all safe fixes; None if there are none."""
    if not any(finding.fix and finding.fix.safe for finding in document.findings):
        return None

    def check(source: SourceFile) -> tuple[Diagnostic, ...]:
        texts = {**document.workspace.texts, str(document.path.resolve()): source.text}
        found = lint_source(source, document.folder, on_disk=True, held=Held(texts=texts))
        return found.diagnostics

    fixed = settle(document.source, check, unsafe=False)
    return fixed.text if fixed.count else None
