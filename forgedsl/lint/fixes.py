"""Applies fixes: edits of findings -> new texts, and their diff to the old ones.

Fixes are applied in the order of the file. A fix that overlaps another one waits for the next
round, in which the file is checked again. `settle` repeats until nothing is left to fix.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path

from forgedsl.diagnostics import Diagnostic, Edit
from forgedsl.records import dataclass
from forgedsl.source import SourceFile

ROUNDS = 20
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A text after its fixes, and their number."""

    text: str
    count: int


def apply(source: SourceFile, findings: Iterable[Diagnostic], *, unsafe: bool) -> Fixed:
    """Apply one round of fixes to a file."""
    chosen: list[Edit] = []
    count = 0
    for finding in findings:
        fix = finding.fix
        if fix is None or not (fix.safe or unsafe):
            continue
        inside = all(edit.span.file == source.name for edit in fix.edits)
        if inside and not any(_meet(edit, other) for edit in fix.edits for other in chosen):
            chosen += fix.edits
            count += 1
    text = source.text
    for edit in sorted(chosen, key=lambda e: (e.span.start, e.span.end), reverse=True):
        text = text[: edit.span.start] + edit.text + text[edit.span.end :]
    return Fixed(text=text, count=count)


def _meet(a: Edit, b: Edit) -> bool:
    """True if two edits touch: overlapping text, or insertions at one place."""
    return a.span.start <= b.span.end and b.span.start <= a.span.end


def settle(
    source: SourceFile, check: Callable[[SourceFile], Iterable[Diagnostic]], *, unsafe: bool
) -> Fixed:
    """Fix and check again until nothing more can be fixed."""
    total = 0
    for _ in range(ROUNDS):
        done = apply(source, check(source), unsafe=unsafe)
        if done.count == 0 or done.text == source.text:
            break
        total += done.count
        source = SourceFile(source.name, done.text)
    return Fixed(text=source.text, count=total)


def difference(name: str, before: str, after: str) -> str:
    """A unified diff."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), name, name
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def write(path: Path, text: str) -> None:
    """Replace a file atomically: after a crash it has either the old or the new text."""
    mark = BOM if path.read_bytes().startswith(BOM) else b""
    temporary = path.with_name(f".{path.name}.forgec")
    temporary.write_bytes(mark + text.encode("utf-8"))
    temporary.chmod(path.stat().st_mode)
    temporary.replace(path)
