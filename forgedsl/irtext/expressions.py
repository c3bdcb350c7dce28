"""Code of the language in an IR's text: as in a .forge file, with its places apart.

expression, statement or field -> "ratio = a * b", spans in order     None if it would not
"ratio = a * b", spans -> the same                                    read back
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forgedsl.records import fields, replace
from forgedsl.source import NO_SPAN, Span
from forgedsl.syntax import ast, quick

EXPRESSIONS = (ast.Path, ast.Index, ast.Integer, ast.Number, ast.Quantity, ast.String, ast.Bool,
               ast.NoneLiteral, ast.List, ast.Call, ast.Unary, ast.Binary,
               ast.Conditional)  # fmt: skip
CODE = (*EXPRESSIONS, ast.Assign, ast.TypedAssign, ast.Return, ast.Minimize, ast.Report, ast.Field)
"""what is written as code"""


def written(node: ast.Node) -> tuple[str, tuple[Span, ...]] | None:
    """Text and places, if they say all there is to say."""
    text = _text(node)
    if "`" in text or "\n" in text:
        return None
    read = _parsed(text)
    if read is None or _bare(read) != _bare(node):
        return None
    return text, tuple(_spans(node))


def read(text: str, spans: tuple[Span, ...]) -> ast.Node:
    """The code that was written."""
    found = _parsed(text)
    if found is None:
        raise ValueError(f"`{text}` is no code")
    return _spanned(found, iter(spans))  # type: ignore[no-any-return]


def _text(node: ast.Node) -> str:
    from forgedsl.format.expressions import Expressions
    from forgedsl.format.notes import Notes

    printer = Expressions(Notes(None))
    match node:
        case ast.Assign():
            return f"{node.path.text} = {printer.flat(node.value)}"
        case ast.TypedAssign():
            return f"{node.name}: {printer.type(node.type)} = {printer.flat(node.value)}"
        case ast.Return():
            return f"return {printer.flat(node.value)}"
        case ast.Minimize():
            return f"minimize {printer.flat(node.value)}"
        case ast.Report():
            return f"report {node.name} = {printer.flat(node.value)}"
        case ast.Field():
            default = "" if node.default is None else f" = {printer.flat(node.default)}"
            return f"field {node.name}: {printer.type(node.type)}{default}"
    return printer.flat(node)  # type: ignore[arg-type]


def _parsed(text: str) -> ast.Node | None:
    """An expression, else a field, else a statement of a function's body."""
    value: ast.Node | None = quick.parse(text, "", "value")
    if value is not None:
        return value
    if text.startswith("field "):
        file = quick.parse(f"fn f({text.removeprefix('field ')}) = 0\n", "", "start")
        return None if file is None else file.decls[0].fields[0]
    file = quick.parse(f"fn f() {{\n{text}\n}}\n", "", "start")
    return None if file is None else file.decls[0].body.items[0]


def _spans(node: Any) -> Iterator[Span]:
    if isinstance(node, Span):
        yield node
    elif isinstance(node, ast.Node):
        for field in fields(node):
            yield from _spans(getattr(node, field.name))
    elif isinstance(node, tuple):
        for item in node:
            yield from _spans(item)


def _spanned(node: Any, spans: Iterator[Span]) -> Any:
    """The tree with the next spans, in the order of `_spans`."""
    if isinstance(node, Span):
        return next(spans)
    if isinstance(node, ast.Node):
        parts = {f.name: _spanned(getattr(node, f.name), spans) for f in fields(node)}
        return replace(node, **parts)
    if isinstance(node, tuple):
        return tuple(_spanned(item, spans) for item in node)
    return node


def _bare(node: ast.Node) -> Any:
    """The tree without places."""
    return _spanned(node, _nowhere())


def _nowhere() -> Iterator[Span]:
    while True:
        yield NO_SPAN
