"""Draws a failed condition with the values of its operands below them.

    require max_prompt + max_new <= policy.context
            512        + 8192    <= 4096
            '---- 8704 ---------'    false            max_new: --set max_new=8192

An expression and its values enter; rows of text leave: the source, the values of the operands, the
values of compound parts with the result, and the origins of the operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from forgedsl.records import dataclass
from forgedsl.source import SourceFile
from forgedsl.syntax import ast

KEYWORD = "  require "
COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")
LEFT = 4
"""dashes before the value of a compound part"""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """An operand: its text, its value, and its column in the rows."""

    node: ast.Expr
    text: str
    value: str
    column: int

    @property
    def end(self) -> int:
        return self.column + max(len(self.text), len(self.value))


def hang(
    test: ast.Expr, source: SourceFile, value_of: Callable[[ast.Expr], str], origins: list[str]
) -> tuple[str, ...]:
    """Return the rows of text for a condition that does not hold."""
    leaves: list[_Leaf] = []
    above, below = KEYWORD, " " * len(KEYWORD)
    offset = test.span.start
    for node in _operands(test):
        between = " ".join(source.text[offset : node.span.start].split("\n"))
        text = " ".join(source.text[node.span.start : node.span.end].split())
        leaf = _Leaf(node, text, value_of(node), len(above) + len(between))
        above += between + text.ljust(leaf.end - leaf.column)
        below += between + leaf.value.ljust(leaf.end - leaf.column)
        leaves.append(leaf)
        offset = node.span.end
    rest = source.text[offset : test.span.end]
    above, below = (above + rest).rstrip(), (below + rest).rstrip()
    parts = ""
    for part in _parts(test):
        inside = [x for x in leaves if part.span.start <= x.node.span.start < part.span.end]
        parts = parts.ljust(inside[0].column)
        parts += _brace(value_of(part), inside[-1].end - inside[0].column + 1)
    verdict = f"{parts}    false" if parts else " " * leaves[0].column + "false"
    first, *others = origins or [""]
    column = max(len(above), len(below), len(verdict)) + 4
    rows = [above, below, (verdict.ljust(column) + first).rstrip()]
    return (*rows, *(" " * column + other for other in others))


def _brace(value: str, width: int) -> str:
    """Draw a value as wide as its part: `'---- 8704 ---------'`."""
    room = max(width - 2 - len(value) - 2, 2)
    left = min(LEFT, room // 2)
    return f"'{'-' * left} {value} {'-' * (room - left)}'"


def _operands(expr: ast.Expr) -> Iterator[ast.Expr]:
    """Yield the operands of an expression. A call is one operand."""
    match expr:
        case ast.Binary():
            yield from _operands(expr.left)
            yield from _operands(expr.right)
        case ast.Unary():
            yield from _operands(expr.operand)
        case ast.Conditional():
            for part in (expr.then, expr.test, expr.otherwise):
                yield from _operands(part)
        case _:
            yield expr


def _parts(expr: ast.Expr) -> Iterator[ast.Expr]:
    """Yield the compound parts whose values to show: sides of a comparison, or sides of `and` and
    `or`."""
    match expr:
        case ast.Binary(operator="and" | "or"):
            yield expr.left
            yield expr.right
        case ast.Binary() if expr.operator in COMPARISONS:
            yield from (s for s in (expr.left, expr.right) if isinstance(s, ast.Binary))
