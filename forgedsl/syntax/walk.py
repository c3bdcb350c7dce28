"""Walks over the syntax tree: a node and all nodes below it, in pre-order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any

from forgedsl.records import fields
from forgedsl.syntax import ast

_PLAIN = ("Span", "str", "int", "float", "bool", "tuple[str, ...]", "str | None", "Span | None")
_children: dict[type, tuple[str, ...]] = {}
_below: dict[type, Callable[[Any], Any] | None] = {}
"""what reads the children of a node of a class; None if it has none"""


def walk(node: Any) -> Iterator[Any]:
    """Yield a node and all nodes below it. `node` may also be a tuple of nodes, or None."""
    pending = [node]
    while pending:
        current = pending.pop()
        if type(current) is tuple:
            pending.extend(reversed(current))
        elif current is not None:
            yield current
            kind = type(current)
            below = _below[kind] if kind in _below else _reader(kind)
            if below is not None:
                pending.append(below(current))


def _reader(cls: type) -> Callable[[Any], Any] | None:
    """Make and cache the function that returns the children of a node of a class: the only child,
    or a tuple. None if the class has no children."""
    names = [*_child_fields(cls)][::-1]
    found = _below[cls] = attrgetter(*names) if names else None
    return found


def names(node: Any) -> Iterator[tuple[str, ...]]:
    """Return the parts of every dotted name in a node."""
    return (found.parts for found in walk(node) if type(found) is ast.Path)


Keys = tuple[str | int, ...]


def reads(node: Any, root: str) -> Iterator[tuple[Keys, ast.Path | ast.Index]]:
    """Return the key paths that are read of the value called `root`: for a row,
    `row.messages[0].content` gives ("messages", 0, "content"). A computed key ends the path."""
    pending = [node]
    while pending:
        current = pending.pop(0)
        if isinstance(current, ast.Path | ast.Index):
            path, keys = chain(current)
            pending += keys[len(_known(keys)) :] if isinstance(current, ast.Index) else ()
            if path.parts[0] == root:
                yield (*path.parts[1:], *_known(keys)), current
        elif isinstance(current, ast.Node):
            inside = [getattr(current, name) for name in _child_fields(type(current))][::-1]
            pending += [n for part in inside for n in (part if type(part) is tuple else (part,))]


def chain(node: ast.Path | ast.Index) -> tuple[ast.Path, list[ast.Expr]]:
    """Split `row.messages[0].content` into the name at its beginning and the keys after it."""
    keys: list[ast.Expr] = []
    current: ast.Expr = node
    while isinstance(current, ast.Index):
        keys.insert(0, current.key)
        current = current.base
    assert isinstance(current, ast.Path)
    return current, keys


def _known(keys: list[ast.Expr]) -> Keys:
    """Return the keys up to the first that is computed."""
    found: list[str | int] = []
    for key in keys:
        if isinstance(key, ast.Unary) and isinstance(key.operand, ast.Integer):
            found.append(-key.operand.value if key.operator == "-" else key.operand.value)
        elif isinstance(key, ast.String | ast.Integer):
            found.append(key.value)
        else:
            break
    return tuple(found)


def _child_fields(cls: type) -> Iterable[str]:
    """Return the fields of a class of nodes that may hold nodes, in reverse order."""
    found = _children.get(cls)
    if found is None:
        own = fields(cls)
        found = tuple(field.name for field in reversed(own) if field.type not in _PLAIN)
        _children[cls] = found
    return found
