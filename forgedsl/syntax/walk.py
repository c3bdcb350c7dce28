"""Walks over the syntax tree: a node and all nodes in it, outer ones first, in source order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from forgedsl.records import fields
from forgedsl.syntax import ast

_PLAIN = ("Span", "str", "int", "float", "bool", "tuple[str, ...]", "str | None", "Span | None")
_children: dict[type, tuple[str, ...]] = {}


def walk(node: Any) -> Iterator[Any]:
    """The nodes of a node, of a tuple of nodes, or of nothing (None)."""
    pending = [node]
    while pending:
        current = pending.pop()
        if type(current) is tuple:
            pending.extend(reversed(current))
        elif current is not None:
            yield current
            pending.extend(getattr(current, name) for name in _child_fields(type(current)))


def names(node: Any) -> Iterator[tuple[str, ...]]:
    """The parts of every dotted name in it."""
    return (found.parts for found in walk(node) if type(found) is ast.Path)


def _child_fields(cls: type) -> Iterable[str]:
    """The fields of a kind of node that may hold nodes, last ones first."""
    found = _children.get(cls)
    if found is None:
        own = fields(cls)
        found = tuple(field.name for field in reversed(own) if field.type not in _PLAIN)
        _children[cls] = found
    return found
