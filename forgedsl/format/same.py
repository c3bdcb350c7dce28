"""Compares two trees ignoring spans. `forgec fmt` never writes a text with another meaning."""

from __future__ import annotations

from typing import Any

from forgedsl.syntax import ast


def same_meaning(first: ast.Node, second: ast.Node) -> bool:
    """True if two trees are equal, ignoring spans."""
    stack: list[tuple[Any, Any]] = [(first, second)]
    while stack:
        a, b = stack.pop()
        if type(a) is not type(b):
            return False
        if isinstance(a, tuple):
            if len(a) != len(b):
                return False
            stack.extend(zip(a, b, strict=True))
        elif isinstance(a, ast.Node):
            names = (n for n in a.__dataclass_fields__ if n != "span" and not n.endswith("_span"))
            stack.extend((getattr(a, name), getattr(b, name)) for name in names)
        elif a != b:
            return False
    return True
