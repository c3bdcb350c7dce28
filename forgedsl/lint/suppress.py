"""`# forge: allow[L405] reason`: suppressed findings.

A suppression at the end of a line applies to that line; one on a line of its own applies to the
next line with code. Warnings and infos can always be suppressed, errors only if the rule allows it
(`is_suppressible`: usually wrong, but not always). A suppression without a reason is N902. One that
matches no finding is N903, unless its code depends on the machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from forgedsl.diagnostics import Diagnostic, Edit, Fix, Severity
from forgedsl.lint.registry import CODES, finding_of
from forgedsl.records import dataclass, field
from forgedsl.source import SourceFile, Span
from forgedsl.syntax.trivia import Comment, comments

SUPPRESSIBLE = frozenset({"A301", "F107", "L406", "P208"})
"""errors found outside of rules that a comment can suppress; of rules, those of level D can"""
LOCAL = frozenset({"P210", "D647"})
"""codes whose findings depend on the machine"""
PLACEHOLDER = "why this is correct"
"""what editors put in place of a reason, for the user to write one"""
_ALLOW = r"#\s*forge:\s*allow\[([^\]]*)\]\s*(.*)"


@dataclass(slots=True)
class Suppression:
    """An `allow` comment: its codes, the line it applies to, and the codes that matched a
    finding."""

    codes: tuple[str, ...]
    reason: str
    line: int
    span: Span
    # span to delete: includes blanks before it, and the line end if it is alone on its line
    line_span: Span
    used: set[str] = field(default_factory=set)


def suppress(
    diagnostics: Iterable[Diagnostic],
    sources: Mapping[str, SourceFile],
    runs: Callable[[str], bool] | None,
) -> Iterator[Diagnostic]:
    """Yield the findings that are not suppressed, and mistakes in suppressions. `runs` is
    true for rules that were fully checked: only for these can a suppression be called unused."""
    kept = list(diagnostics)
    by_place: dict[tuple[str, int], list[Suppression]] = {}
    for source in sources.values():
        if "forge:" in source.text:
            for found in _suppressions(source):
                by_place.setdefault((source.name, found.line), []).append(found)
    if not by_place:
        yield from kept
        return
    for diagnostic in kept:
        matching = [*_matching(diagnostic, by_place, sources)]
        for suppression, code in matching:
            suppression.used.add(code)
        if not matching:
            yield diagnostic
    complete = not any(d.severity is Severity.ERROR and d.code[0] in "FSX" for d in kept)
    # modules are linted separately; the first text is the file itself
    modules = {name for name in [*sources][1:] if name.endswith(".forge")}
    for suppressions in by_place.values():
        for suppression in suppressions:
            if suppression.span.file not in modules:
                yield from _problems(suppression, runs if complete else None)


def _matching(
    diagnostic: Diagnostic,
    by_place: Mapping[tuple[str, int], list[Suppression]],
    sources: Mapping[str, SourceFile],
) -> Iterator[tuple[Suppression, str]]:
    """Yield the suppressions of a finding, at its own line or at a line in `also`."""
    if not _may_be_suppressed(diagnostic):
        return
    for code, span in ((diagnostic.code, diagnostic.span), *diagnostic.also):
        source = sources.get(span.file)
        if source is not None:
            line = source.position(span.start)[0]
            for suppression in by_place.get((span.file, line), ()):
                if code in suppression.codes:
                    yield suppression, code


def _may_be_suppressed(diagnostic: Diagnostic) -> bool:
    return diagnostic.severity is not Severity.ERROR or is_suppressible(diagnostic.code)


def is_suppressible(code: str) -> bool:
    """True for errors that a comment can suppress."""
    found = finding_of(code)
    return code in SUPPRESSIBLE or (found is not None and found.level == "D")


def _suppressions(source: SourceFile) -> Iterator[Suppression]:
    below: list[int] = []
    for comment in comments(source):
        match = re.match(_ALLOW, comment.text)
        if match is not None:
            codes = tuple(code.strip() for code in match[1].split(",") if code.strip())
            line = source.position(comment.span.start)[0]
            if comment.own_line and not below:
                below = _code_below(source)
            target = below[line] if comment.own_line else line
            around = _around(source.text, comment)
            yield Suppression(codes, match[2].strip(), target, _shown(comment), around)


def _around(text: str, comment: Comment) -> Span:
    """Return the span to delete with the comment."""
    start, end = len(text[: comment.span.start].rstrip(" \t")), _shown(comment).end
    if comment.own_line:
        end = min(comment.span.end + 1, len(text))
    return Span(comment.span.file, start, end)


def _shown(comment: Comment) -> Span:
    return Span(comment.span.file, comment.span.start, comment.span.start + len(comment.text))


def _code_below(source: SourceFile) -> list[int]:
    """Return, for each line, the next line with code, or the line itself if there is none."""
    found = list(range(source.num_lines + 1))
    following = 0
    for number in range(source.num_lines, 0, -1):
        found[number] = following or number
        text = source.line(number).strip()
        if text and not text.startswith("#"):
            following = number
    return found


def _problems(suppression: Suppression, runs: Callable[[str], bool] | None) -> Iterator[Diagnostic]:
    """Yield mistakes of a suppression. `runs` is true for rules that were fully checked; None if no
    rule was."""
    if suppression.reason in ("", PLACEHOLDER):
        yield Diagnostic(
            code="N902",
            name="bare-suppression",
            severity=Severity.WARNING,
            message="this suppression gives no reason",
            span=suppression.span,
            help=f"`# forge: allow[CODE] {PLACEHOLDER}`",
        )
    expected = [c for c in suppression.codes if c not in LOCAL and c not in suppression.used]
    unused = [c for c in expected if runs is not None and c in CODES and runs(c)]
    if unused:
        edit = Edit(text="", span=suppression.line_span)
        whole = len(unused) == len(suppression.codes)
        yield Diagnostic(
            code="N903",
            name="unused-suppression",
            severity=Severity.WARNING,
            message=f"no finding {', '.join(unused)} occurs here",
            span=suppression.span,
            # unsafe: it deletes the reason, which a person wrote
            fix=Fix(message="remove the comment", edits=(edit,), safe=False) if whole else None,
        )
