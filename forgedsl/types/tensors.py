"""Tensor types over named axes: `[B, T] f32 diff`.

Axes have names, not positions: B sequences, T tokens of a sequence (ragged), G completions of a
group, P preference pairs. Each side of a pair has its own tokens, so `x.chosen` of `x: [P, T]` has
the axis `T.chosen`. The result of an elementwise operation has the union of the operands' axes.

    [B, T] * [B]  is  [B, T]          [B] * [G]  is an error (T704)

`ERROR` is the type of an expression that has a diagnostic. It unifies with everything, so that one
mistake gives one message.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from forgedsl.records import dataclass
from forgedsl.syntax import ast

AXES = ("B", "P", "G", "T")
SIDES = ("chosen", "rejected")
DTYPES = ("f32", "bf16", "i64", "bool")


@dataclass(frozen=True, slots=True)
class TensorType:
    """Axes by name, dtype (f32, i64, bool, or error) and whether gradient flows through it."""

    axes: frozenset[str]
    dtype: str
    diff: bool = False

    def __str__(self) -> str:
        if self.dtype == "error":
            return "?"
        axes = sorted(self.axes, key=lambda axis: AXES.index(axis[0]))
        shape = f"[{', '.join(axes)}] " if axes else ""
        return f"{'diff ' if self.diff else ''}{shape}{self.dtype}"

    @property
    def tokens(self) -> str | None:
        """Its token axis (T, T.chosen or T.rejected), if it has one."""
        return next((axis for axis in self.axes if axis[0] == "T"), None)

    @property
    def is_error(self) -> bool:
        return self.dtype == "error"


ERROR = TensorType(frozenset(), "error")
SCALAR = TensorType(frozenset(), "f32")


def axes_of(node: ast.TensorType) -> frozenset[str] | None:
    """Return the axis names of a written tensor type; None if one is not an axis."""
    names = [axis.text if isinstance(axis, ast.Path) else "" for axis in node.axes]
    return frozenset(names) if all(name in AXES for name in names) else None


NO_AXES: frozenset[str] = frozenset()


def union(many: Iterable[frozenset[str]]) -> frozenset[str]:
    """Return the union of the axes of several tensors."""
    found = NO_AXES
    for axes in many:
        if axes is not found and axes != found:
            found = found | axes if found and axes else found or axes
    return found


@cache
def clash(axes: frozenset[str]) -> tuple[str, str] | None:
    """Return two axes that cannot be in one tensor. Only T combines with B or P, and only one token
    axis is possible."""
    owners = sorted(axes & {"B", "P", "G"})
    if len(owners) > 1:
        return owners[0], owners[1]
    tokens = sorted(axis for axis in axes if axis[0] == "T")
    if len(tokens) > 1:
        return tokens[0], tokens[1]
    return ("G", tokens[0]) if "G" in axes and tokens else None
