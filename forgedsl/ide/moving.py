"""Edits that take a setting out of a block, and put one into another."""

from __future__ import annotations

from forgedsl.diagnostics import Edit
from forgedsl.ide.workspace import Document
from forgedsl.records import dataclass
from forgedsl.source import Span
from forgedsl.syntax import ast


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """A declaration that a setting moves to; a block of `kind` is made if `decl` is None."""

    name: str
    decl: ast.BlockDecl | None
    kind: str = ""


def removed(text: str, span: Span) -> Edit:
    """Return the edit that removes a statement, with its comma, and with its line if nothing else
    is in it."""
    start, end = span.start, span.end
    begin = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", end)
    stop = len(text) if stop < 0 else stop
    if not text[begin:start].strip() and not text[end:stop].strip(" \t,"):
        return Edit(text="", span=Span(span.file, begin, min(stop + 1, len(text))))
    after = text[end:].lstrip(" \t")
    if after.startswith(","):
        end += len(text[end:]) - len(after[1:].lstrip(" \t"))
    else:
        before = text[:start].rstrip()
        if before.endswith(","):
            start = len(before) - 1
    return Edit(text="", span=Span(span.file, start, end))


def insert(document: Document, home: Home, line: str) -> tuple[Edit, ...]:
    """Return the edits that put a setting into a block, as its first."""
    text = document.text
    if home.decl is None:
        end = Span(document.name, len(text), len(text))
        gap = "\n" if text.endswith("\n") else "\n\n"
        return (Edit(text=f"{gap}{home.kind} {{ {line} }}\n", span=end),)
    block = home.decl.block
    start = block.span.start + 1
    place = Span(document.name, start, start)
    if text[start:].lstrip(" \t").startswith("\n"):
        return (Edit(text=f"\n  {line}", span=place),)
    return (Edit(text=f" {line}{',' if block.items else ' '}", span=place),)
