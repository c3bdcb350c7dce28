"""Outline of a text: symbols as a tree, and folding ranges.

Both come from the syntax tree, which has the finished parts of an incomplete text.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.ide import names
from forgedsl.ide.workspace import Document
from forgedsl.records import dataclass
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.syntax.trivia import comments
from forgedsl.syntax.walk import walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """A declaration, or a part of one. `span` is the whole, `name_span` its name."""

    name: str
    kind: str
    detail: str
    span: Span
    name_span: Span
    children: tuple[Symbol, ...] = ()
    doc: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A range of lines (from 0) that can be folded; `kind` is region, comment or imports."""

    first: int
    last: int
    kind: str = "region"


def symbols(document: Document) -> list[Symbol]:
    """The declarations in order."""
    return [s for decl in document.tree.decls if (s := _symbol(document, decl)) is not None]


def _symbol(document: Document, decl: ast.Decl) -> Symbol | None:
    match decl:
        case ast.Param() | ast.FnDecl() | ast.BindDecl():
            kind = "param" if isinstance(decl, ast.Param) else decl.kind
            body = decl.body if isinstance(decl, ast.FnDecl) else None
            return Symbol(
                name=decl.name, kind=kind, detail=names.signature(decl), span=decl.span,
                name_span=decl.name_span,
                children=tuple(_items(body)) if isinstance(body, ast.Block) else (),
            )  # fmt: skip
        case ast.BlockDecl():
            return Symbol(
                name=decl.name or decl.kind, kind=decl.kind, detail=names.signature(decl),
                span=decl.span, name_span=decl.name_span or decl.kind_span,
                children=tuple(_items(decl.block)), doc=decl.doc.partition("\n")[0],
            )  # fmt: skip
        case ast.ImportForge() | ast.ImportPython():
            return Symbol(
                name=decl.target or "import", kind="import", detail=names.signature(decl),
                span=decl.span.to(decl.target_span), name_span=decl.target_span,
            )  # fmt: skip
    return None


def _items(block: ast.Block) -> Iterator[Symbol]:
    for item in block.items:
        match item:
            case ast.Assign():
                yield Symbol(name=item.path.text, kind="setting", detail="", span=item.span,
                             name_span=item.path.span)  # fmt: skip
            case ast.TypedAssign():
                span = Span(item.span.file, item.span.start, item.span.start + len(item.name))
                yield Symbol(name=item.name, kind="setting", detail="", span=item.span,
                             name_span=span)  # fmt: skip
            case ast.Nested():
                inner = tuple(_items(item.block))
                yield Symbol(name=item.name, kind="block", detail=item.label or "", span=item.span,
                             name_span=item.name_span, children=inner)  # fmt: skip
            case ast.Report():
                yield Symbol(name=item.name, kind="report", detail="report", span=item.span,
                             name_span=item.name_span)  # fmt: skip
            case ast.Sync():
                name = f"sync {item.source.text} -> {item.target.text}"
                yield Symbol(name=name, kind="sync", detail="", span=item.span, name_span=item.span)


def folds(document: Document) -> list[Fold]:
    """Blocks and calls of several lines, runs of comments, runs of imports."""
    found = {_fold(document, node.span) for node in walk(document.tree.decls) if _has_end(node)}
    found |= {*_comments(document)}
    imports = [d for d in document.tree.decls if isinstance(d, ast.ImportForge | ast.ImportPython)]
    if imports:
        first, last = imports[0].span, imports[-1].span
        fold = _fold(document, Span(first.file, first.start, last.end))
        found.add(Fold(first=fold.first, last=fold.last, kind="imports"))
    return sorted((f for f in found if f.last > f.first), key=lambda f: (f.first, -f.last))


def _has_end(node: object) -> bool:
    return isinstance(node, ast.Block | ast.Call | ast.List | ast.FnDecl | ast.BlockDecl)


def _fold(document: Document, span: Span) -> Fold:
    """Make a fold that leaves the last line, with the closing bracket, visible."""
    first, _ = document.source.position(span.start)
    last, _ = document.source.position(max(span.end - 1, span.start))
    closes = document.source.line(last).lstrip()[:1] in {"}", ")", "]"}
    return Fold(first=first - 1, last=last - 2 if closes else last - 1)


def _comments(document: Document) -> Iterator[Fold]:
    lines = [
        document.source.position(c.span.start)[0] - 1
        for c in comments(document.source)
        if c.own_line
    ]
    start = previous = None
    for line in [*lines, None]:
        if start is not None and previous is not None and line != previous + 1:
            if previous > start:
                yield Fold(first=start, last=previous, kind="comment")
            start = None
        start = line if start is None else start
        previous = line
