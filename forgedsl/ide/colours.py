"""Semantic tokens: classifies names for highlighting.

Keywords, strings and numbers are highlighted by grammar/forge.tmLanguage.json. This module
classifies parameters, locals, declarations, modules, settings, columns, methods and built-in
functions.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.hir.table import part_span
from forgedsl.ide.hover import settings_of
from forgedsl.ide.uses import Use, target_at, uses_of
from forgedsl.ide.workspace import Document
from forgedsl.records import dataclass
from forgedsl.schema import builtins
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.syntax.walk import reads, walk

TYPES = ("namespace", "class", "parameter", "variable", "property", "function", "method")
MODIFIERS = ("declaration", "readonly", "defaultLibrary")
FUNCTIONS = frozenset({"loss", "advantage", "filter", "fn", "reward", "rubric", "python"})
LOCALS = frozenset({"local", "stream"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A name, with its type (of TYPES) and modifiers (of MODIFIERS)."""

    span: Span
    type: str
    modifiers: tuple[str, ...] = ()


def tokens(document: Document) -> list[Token]:
    """Return the names of a text in order, without overlaps."""
    found: dict[int, Token] = {}
    for token in (*_uses(document), *_settings(document), *_calls(document), *_columns(document)):
        if token.span.file == document.name and "\n" not in _text(document, token.span):
            found.setdefault(token.span.start, token)
    ordered = [found[start] for start in sorted(found)]
    kept: list[Token] = []
    for token in ordered:
        if token.span.end > token.span.start and (
            not kept or kept[-1].span.end <= token.span.start
        ):
            kept.append(token)
    return kept


def _text(document: Document, span: Span) -> str:
    return document.text[span.start : span.end]


def _uses(document: Document) -> Iterator[Token]:
    for use in uses_of(document).uses:
        if _text(document, use.span).startswith('"'):
            continue
        if use.definition is None:
            yield _member(document, use)
            continue
        kind = use.definition.kind
        new = ("declaration",) if use.span == use.definition.span else ()
        if kind == "import":
            yield Token(span=use.span, type="namespace", modifiers=new)
        elif kind == "param":
            yield Token(span=use.span, type="variable", modifiers=(*new, "readonly"))
        elif kind == "field":
            yield Token(span=use.span, type="parameter", modifiers=new)
        elif kind in LOCALS:
            yield Token(span=use.span, type="variable", modifiers=new)
        elif kind in FUNCTIONS:
            yield Token(span=use.span, type="function", modifiers=new)
        else:
            yield Token(span=use.span, type="class", modifiers=new)


def _member(document: Document, use: Use) -> Token:
    target = target_at(document, use.span.start)
    if target is not None and target[1].kind == "param":
        return Token(span=use.span, type="variable", modifiers=("readonly",))
    if target is not None and target[1].kind not in FUNCTIONS:
        return Token(span=use.span, type="class")
    return Token(span=use.span, type="function")


def _settings(document: Document) -> Iterator[Token]:
    for written in settings_of(document):
        yield Token(span=written.span, type="property")


def _calls(document: Document) -> Iterator[Token]:
    """Functions of the language, and methods of the flow."""
    for node in walk(document.tree.decls):
        if isinstance(node, ast.Call):
            path = node.function
            if len(path.parts) == 1 and path.parts[0] in builtins.FUNCTIONS:
                span = part_span(path, 0, 0)
                yield Token(span=span, type="function", modifiers=("defaultLibrary",))
            elif len(path.parts) == 2 and path.parts[0] not in uses_of(document).imports:
                yield Token(span=part_span(path, 1, 1), type="method")


def _columns(document: Document) -> Iterator[Token]:
    for decl in document.tree.decls:
        if isinstance(decl, ast.BlockDecl) and decl.kind == "dataset":
            for _, node in reads(decl.block, "row"):
                if isinstance(node, ast.Path) and len(node.parts) > 1:
                    yield Token(span=part_span(node, 1), type="property")
