"""Walks over expressions of the syntax tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forgedsl.records import fields
from forgedsl.syntax import ast


def walk(node: Any) -> Iterator[Any]:
    """A node of the syntax tree and all nodes in it, outer ones first."""
    if isinstance(node, tuple):
        for item in node:
            yield from walk(item)
    elif isinstance(node, ast.Node):
        yield node
        for field in fields(node):
            yield from walk(getattr(node, field.name))
