"""Checks every gradient numerically at compile time, in Python floats.

    Tree  ->  self_check  ->  kinks, or InternalError if the symbolic gradient is wrong

The symbolic gradient is compared with central differences at a few random points. Detached values
(`stop`) are held constant. Points near a kink, where left and right differences disagree, are
skipped. The kinks, values where the gradient jumps, are returned.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from forgedsl.errors import InternalError
from forgedsl.losses.grad import differentiate
from forgedsl.losses.simplify import PYTHON
from forgedsl.losses.tree import ROW_STATISTICS, Tree, Value
from forgedsl.records import dataclass
from forgedsl.source import Span

LENGTHS = (3, 2, 2, 3)
"""Tokens of four sequences (two pairs). The second token of each is masked."""

POINTS, STEP = 3, 1e-5
KINKED = ("min", "max", "clamp", "abs", "sign", "where", "seq_max", "seq_min")
UNDEFINED = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kink:
    """A value at which the gradient of a loss jumps."""

    op: str
    span: Span


def kinks(tree: Tree) -> tuple[Kink, ...]:
    """Return the values at which the gradient of `tree` jumps, in the order of the source."""
    found: dict[int, Kink] = {}
    stack, seen = [tree.output("loss")], set[int]()
    while stack:
        node = stack.pop()
        value = tree.values[node]
        if node in seen or not value.type.diff:  # reports and conditions carry no gradient
            continue
        seen.add(node)
        stack.extend(value.args)
        if value.op in KINKED:
            found[node] = Kink(op=value.op, span=value.span)
    placed = {(kink.span.file, kink.span.start, kink.op): kink for kink in found.values()}
    return tuple(placed[key] for key in sorted(placed))


def self_check(tree: Tree) -> tuple[Kink, ...]:
    """Compare the symbolic gradient with differences. Raises InternalError if they disagree."""
    gradient = differentiate(tree)
    for point in range(POINTS):
        inputs = _inputs(tree, random.Random(point))
        frozen = _evaluate(tree, inputs, {})
        found = _evaluate(gradient, inputs, {})
        for name, node in gradient.outputs:
            for token in range(sum(LENGTHS)):
                want = _difference(tree, inputs, frozen, name, token)
                got = found[node][token] if isinstance(found[node], list) else found[node]
                noise = 1e-14 * abs(frozen[tree.output("loss")]) / STEP
                if want is not None and abs(got - want) > 1e-3 * (1.0 + abs(want)) + noise:
                    raise InternalError(
                        f"the derived gradient of loss `{tree.name}` with respect to {name} is "
                        f"{got!r}, but finite differences give {want!r}: this is a bug in forgec, "
                        "please report the loss"
                    )
    return kinks(tree)


def _difference(
    tree: Tree, inputs: dict[str, Any], frozen: list[Any], name: str, token: int
) -> float | None:
    """Return the central difference; None near a kink, or if the loss is undefined."""

    def at(shift: float) -> float:
        moved = {**inputs, name: list(inputs[name])}
        moved[name][token] += shift
        kept = {n: frozen[n] for n, value in enumerate(tree.values) if value.op == "stop"}
        return float(_evaluate(tree, moved, kept)[tree.output("loss")])

    low, middle, high = at(-STEP), at(0.0), at(STEP)
    left, right = (middle - low) / STEP, (high - middle) / STEP
    smooth = abs(left - right) <= 1e-2 * (1e-2 + abs(left) + abs(right))
    return (high - low) / (2 * STEP) if smooth and abs(high - low) < 1e3 else None


def _inputs(tree: Tree, rng: random.Random) -> dict[str, Any]:
    """Return random values for the inputs of a tree: log-probs near -1, others near 0."""
    tokens = sum(LENGTHS)
    given: dict[str, Any] = {
        name: [rng.gauss(-1.0, 0.5) for _ in range(tokens)] for name in ROW_STATISTICS
    }
    for value in tree.values:
        if value.op == "input" and value.attr not in given:
            count = tokens if value.type.tokens else 2 if "P" in value.type.axes else 4
            boolean = value.type.dtype == "bool"
            given[str(value.attr)] = [
                rng.random() > 0.3 if boolean else rng.gauss(-0.5, 0.7) for _ in range(count)
            ]
    given["mask"] = [place != 1 for length in LENGTHS for place in range(length)]
    return given


SEQUENCE = [number for number, length in enumerate(LENGTHS) for _ in range(length)]


def _evaluate(tree: Tree, inputs: Mapping[str, Any], kept: Mapping[int, Any]) -> list[Any]:
    """Evaluate all values of a tree: numbers, or lists over tokens, sequences or pairs."""
    found: list[Any] = []
    for number, value in enumerate(tree.values):
        args = [found[arg] for arg in value.args]
        found.append(kept[number] if number in kept else _value(value, args, tree, inputs))
    return found


def _value(value: Value, args: list[Any], tree: Tree, inputs: Mapping[str, Any]) -> Any:
    paired = "P" in value.type.axes
    match value.op:
        case "const":
            return value.attr
        case "input":
            return inputs[str(value.attr)]
        case "total":
            return 7.0
        case "valid":
            return [True] * (2 if paired else 4)
        case "in_side":
            return [s % 2 == (value.attr == "rejected") for s in SEQUENCE]
        case "side" | "unside":
            return args[0]
        case "expand":
            return [args[0][s // 2 if paired else s] for s in SEQUENCE]
        case "total_sum":
            return _total(args)
        case "seq_sum" | "seq_count" | "seq_max" | "seq_min":
            return _reduce(value, args, tree.values[value.args[-1]].type.tokens or "T")
    return _elementwise(value.op, args)


def _total(args: list[Any]) -> float:
    counted = args[1] if len(args) > 1 else [True] * len(args[0])
    values = args[0] if isinstance(args[0], list) else [args[0]] * len(counted)
    return float(sum(x for x, use in zip(values, counted, strict=True) if use))


def _reduce(value: Value, args: list[Any], axis: str) -> list[float]:
    """Reduce over the tokens of each sequence, or of a side of each pair."""
    mask = args[-1]
    values = args[0] if len(args) > 1 else [1.0] * len(mask)
    values = values if isinstance(values, list) else [values] * len(mask)
    paired = "P" in value.type.axes
    side = {"T.chosen": 0, "T.rejected": 1}.get(axis)
    parts: list[list[float]] = [[] for _ in range(2 if paired else 4)]
    for token, owner in enumerate(SEQUENCE):
        if mask[token] and (side is None or owner % 2 == side):
            parts[owner // 2 if paired else owner].append(values[token])
    if value.op in ("seq_sum", "seq_count"):
        return [float(sum(part)) for part in parts]
    return [float(max(part) if value.op == "seq_max" else min(part)) for part in parts]


def _elementwise(op: str, args: list[Any]) -> Any:
    size = next((len(arg) for arg in args if isinstance(arg, list)), 0)
    if not size:
        return _number(op, args)
    columns = [arg if isinstance(arg, list) else [arg] * size for arg in args]
    return [_number(op, list(row)) for row in zip(*columns, strict=True)]


def _number(op: str, args: list[Any]) -> Any:
    """Evaluate an operation on numbers. Undefined results are NaN, as on a device."""
    try:
        result = PYTHON[op](*args)
    except (ArithmeticError, ValueError):
        return UNDEFINED
    return UNDEFINED if isinstance(result, complex) else result
