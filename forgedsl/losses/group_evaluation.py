"""Evaluates an advantage or a filter for one group, on lists of numbers.

    Tree, inputs by name (one number for each sibling)  ->  a number for each sibling, or one

A function of the whole step gets a step with this group only, of `size` completions per prompt.
Undefined results, such as a division by 0, are NaN.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from forgedsl.losses.simplify import PYTHON
from forgedsl.losses.tree import Tree, Value

Row = list[float]
OVER: dict[str, Callable[[Sequence[float]], float]] = {"sum": math.fsum, "max": max, "min": min}
SAME = ("expand", "side", "unside", "float", "stop")


def evaluate(tree: Tree, inputs: Mapping[str, Row], size: int, node: int | None = None) -> Row:
    """Return the result (or the value `node`) for each completion; for a filter all are equal."""
    length = len(next(iter(inputs.values())))
    known: list[Row] = []
    for value in tree.values:
        known.append(_row(value, [known[arg] for arg in value.args], inputs, length, size))
    return known[tree.output("result") if node is None else node]


def _row(value: Value, args: list[Row], inputs: Mapping[str, Row], length: int, size: int) -> Row:
    over, _, how = value.op.partition("_")
    if value.op == "input":
        return list(inputs[str(value.attr)])
    if value.op in ("group_size", "siblings"):
        return [float(length if value.op == "group_size" else size)] * length
    if value.op == "const":
        number = value.attr if isinstance(value.attr, int | float) else math.nan
        return [float(number)] * length
    if value.op in SAME:
        return args[0]
    if over == "group" and how in OVER:
        return [OVER[how](args[0])] * length
    if over == "sibling" and how in OVER:
        groups = [args[0][at : at + size] for at in range(0, length, size)]
        return [OVER[how](group) for group in groups for _ in group]
    return [_number(value.op, each) for each in zip(*args, strict=True)]


def _number(op: str, args: tuple[float, ...]) -> float:
    if op == "where":
        return args[1] if args[0] else args[2]
    if op == "clamp":
        return min(max(args[0], args[1]), args[2])
    try:
        return float(PYTHON[op](*args))
    except (ArithmeticError, ValueError):
        return math.nan
