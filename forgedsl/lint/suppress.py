"""`# forge: allow[L405] reason`: findings a person has decided to live with.

A suppression at the end of a line is for findings on that line; one on a line of its own is for
the next line with code. Errors can be suppressed only where the rule says so (SUPPRESSIBLE: what
is merely usually wrong); warnings and infos always. A suppression without a reason is N902, one
that matches nothing N903, unless what it allows differs from machine to machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from forgedsl.diagnostics import Diagnostic, Edit, Fix, Severity
from forgedsl.lint.registry import FINDINGS
from forgedsl.records import dataclass, field
from forgedsl.source import SourceFile, Span
from forgedsl.syntax.trivia import Comment, comments

SUPPRESSIBLE = frozenset(
    {"A301", "F107", "L406", "P208", *(rule.code for rule in FINDINGS if rule.level == "D")}
)
CODES = frozenset(rule.code for rule in FINDINGS)
LOCAL = frozenset({"P210", "D647"})
"""codes that a file gives on one machine and not on another"""
_ALLOW = re.compile(r"#\s*forge:\s*allow\[([^\]]*)\]\s*(.*)")


@dataclass(slots=True)
class Suppression:
    """One `allow` comment: its codes, the line it is for, and the codes it was used for."""

    codes: tuple[str, ...]
    reason: str
    line: int
    span: Span
    line_span: Span  # with the blanks before it, and its line end if it stands alone
    used: set[str] = field(default_factory=set)


def suppress(
    diagnostics: Iterable[Diagnostic],
    sources: Mapping[str, SourceFile],
    known: frozenset[str] = CODES,
) -> Iterator[Diagnostic]:
    """The findings that stay, and what is wrong with the suppressions themselves; `known` are the
    codes that would have been found."""
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
    # modules are linted apart: the first text is the file itself
    modules = {name for name in [*sources][1:] if name.endswith(".forge")}
    for suppressions in by_place.values():
        for suppression in suppressions:
            if suppression.span.file not in modules:
                yield from _problems(suppression, known if complete else frozenset())


def _matching(
    diagnostic: Diagnostic,
    by_place: Mapping[tuple[str, int], list[Suppression]],
    sources: Mapping[str, SourceFile],
) -> Iterator[tuple[Suppression, str]]:
    """Suppressions of a finding, at its own line or where its cause has been vouched for."""
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
    return diagnostic.severity is not Severity.ERROR or diagnostic.code in SUPPRESSIBLE


def _suppressions(source: SourceFile) -> Iterator[Suppression]:
    below: list[int] = []
    for comment in comments(source):
        match = _ALLOW.match(comment.text)
        if match is not None:
            codes = tuple(code.strip() for code in match[1].split(",") if code.strip())
            line = source.position(comment.span.start)[0]
            if comment.own_line and not below:
                below = _code_below(source)
            target = below[line] if comment.own_line else line
            around = _around(source.text, comment)
            yield Suppression(codes, match[2].strip(), target, _shown(comment), around)


def _around(text: str, comment: Comment) -> Span:
    """Return the span that is removed together with the comment."""
    start, end = len(text[: comment.span.start].rstrip(" \t")), _shown(comment).end
    if comment.own_line:
        end = min(comment.span.end + 1, len(text))
    return Span(comment.span.file, start, end)


def _shown(comment: Comment) -> Span:
    return Span(comment.span.file, comment.span.start, comment.span.start + len(comment.text))


def _code_below(source: SourceFile) -> list[int]:
    """For each line the next one with code below it, itself if there is none."""
    found = list(range(source.num_lines + 1))
    following = 0
    for number in range(source.num_lines, 0, -1):
        found[number] = following or number
        text = source.line(number).strip()
        if text and not text.startswith("#"):
            following = number
    return found


def _problems(suppression: Suppression, known: frozenset[str]) -> Iterator[Diagnostic]:
    """`known`: the codes of which it is certain that they do not occur here."""
    if not suppression.reason:
        yield Diagnostic(
            code="N902",
            name="bare-suppression",
            severity=Severity.WARNING,
            message="this suppression gives no reason",
            span=suppression.span,
            help="`# forge: allow[CODE] why it is right here`",
        )
    unused = [c for c in suppression.codes if c in known - LOCAL - suppression.used]
    if unused:
        edit = Edit(text="", span=suppression.line_span)
        whole = len(unused) == len(suppression.codes)
        yield Diagnostic(
            code="N903",
            name="unused-suppression",
            severity=Severity.WARNING,
            message=f"nothing here gives {', '.join(unused)}",
            span=suppression.span,
            # the reason is somebody's text
            fix=Fix(message="remove the comment", edits=(edit,), safe=False) if whole else None,
        )
