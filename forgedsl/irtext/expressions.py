"""Expressions of the language in an IR's text: as in a .forge file, with their places apart.

expr -> "ratio * adv", spans of its nodes in order        None where that would not read back
"ratio * adv", spans -> expr
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forgedsl.records import fields, replace
from forgedsl.source import NO_SPAN, Span
from forgedsl.syntax import ast, quick


def written(expr: ast.Expr) -> tuple[str, tuple[Span, ...]] | None:
    """Text and places, if they say all there is to say."""
    from forgedsl.format.expressions import Expressions
    from forgedsl.format.notes import Notes

    text = Expressions(Notes(None)).flat(expr)
    if "`" in text or "\n" in text:
        return None
    read = quick.parse(text, "", "value")
    if read is None or _bare(read) != _bare(expr):
        return None
    return text, tuple(_spans(expr))


def read(text: str, spans: tuple[Span, ...]) -> ast.Expr:
    """The expression that was written."""
    found: ast.Expr = quick.parse(text, "", "value")
    return _spanned(found, iter(spans))  # type: ignore[no-any-return]


def _spans(node: Any) -> Iterator[Span]:
    if isinstance(node, ast.Node):
        yield node.span
        for name in _parts(node):
            yield from _spans(getattr(node, name))
    elif isinstance(node, tuple):
        for item in node:
            yield from _spans(item)


def _spanned(node: Any, spans: Iterator[Span]) -> Any:
    """The tree with the next spans, in the order of `_spans`."""
    if isinstance(node, ast.Node):
        span = next(spans)
        parts = {name: _spanned(getattr(node, name), spans) for name in _parts(node)}
        return replace(node, span=span, **parts)
    if isinstance(node, tuple):
        return tuple(_spanned(item, spans) for item in node)
    return node


def _bare(node: ast.Expr) -> Any:
    """The tree without places."""
    return _spanned(node, _nowhere())


def _nowhere() -> Iterator[Span]:
    while True:
        yield NO_SPAN


def _parts(node: ast.Node) -> list[str]:
    return [field.name for field in fields(node) if field.name != "span"]
