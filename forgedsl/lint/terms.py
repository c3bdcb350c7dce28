"""Weights of the terms of a loss, and discounts of an advantage, read from their trees.

    LossView -> gradient of an entropy term and of a value term; how far values may move; the update
                from which on a schedule over `num_steps` is constant
    View     -> Discount of each recurrence; the largest advantage of the scores of the flow

A coefficient is found wherever it is written: as a parameter of the library, as a number in a loss
of the file, or in a function that the loss calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from forgedsl.ir.program import FlowStep
from forgedsl.lint.groups import Probe, call, probe, score_ranges
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View
from forgedsl.losses.tree import Tree, reachable
from forgedsl.records import dataclass
from forgedsl.types.flow import Role

ERROR = 2.0
"""error of the critic at the point where a loss is evaluated: its values are -1, the targets 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discount:
    """Factors per token of a recurrence. `lam` is None if the recurrence reads no later value."""

    gamma: float
    lam: float | None


def entropy_weight(loss: LossView) -> float:
    """Return the gradient of the entropy relative to that of an advantage of 1; 0 without an
    entropy term."""
    pushed = abs(loss.gain()) if "entropy" in loss.read and "logprob" in loss.read else 0.0
    return abs(loss.slope(wrt="entropy")) / pushed if pushed > 0 else 0.0


def value_weight(loss: LossView) -> float | None:
    """Return the gradient of a critic's error of 1 relative to that of an advantage of 1; None if
    the loss is not that of a policy and a critic."""
    if loss.is_pairs or not {"value", "logprob"} <= loss.read:
        return None
    pushed = abs(loss.gain())
    return abs(loss.slope(wrt="value")) / ERROR / pushed if pushed > 0 else None


def value_limits(loss: LossView) -> tuple[float, ...]:
    """Return how far values may move from those before the step, for each clip of a value: half of
    the clip's range."""
    values, found = loss.tree.values, []
    for node in sorted(loss.objective) if "value" in loss.read else ():
        value = values[node]
        read = {values[n].attr for n in reachable(values, [*value.args[:1]])}
        if value.op != "clamp" or "value" not in read or "logprob" in read:
            continue
        low, high = (loss.point(wrt="value")(bound).value for bound in value.args[1:])
        if 0 < high - low < math.inf:
            found.append((high - low) / 2)
    return tuple(found)


def settles_at(loss: LossView, end: int) -> int | None:
    """Return the update from which on `num_steps` no longer changes the loss. None if it still
    changes the loss at update `end`, or if it never does."""

    def at(update: int) -> float:
        point = loss.point(num_steps=float(update), ratio=1.1, distance=0.7)
        return point(loss.tree.output("loss")).value

    last, low, high = at(end), 0, end
    if at(end - 1) != last or at(0) == last:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle) == last else (middle, high)
    return high


def discounts(view: View) -> Iterator[tuple[FlowStep, Discount]]:
    """Yield the recurrences over tokens that the flow computes."""
    for step in view.program.flow:
        located = view.called_tree(step) if Role.COMPUTES in step.roles else None
        tree = located.tree if located is not None else None
        scans = [v for v in tree.values if v.op == "scan_back"] if tree is not None else []
        if tree is None or not scans:
            continue
        decay = tree.values[scans[0].args[1]]
        if decay.op == "const" and isinstance(decay.attr, int | float):
            rate, later = float(decay.attr), _later(tree, scans[0].args[0])
            gamma = rate if later is None else later
            yield step, Discount(gamma=gamma, lam=rate / gamma if later else None)


def _later(tree: Tree, delta: int) -> float | None:
    """Return the factor of the value of the next token in a temporal difference; None if it has
    none."""
    values = tree.values
    cone = reachable(values, [delta])
    nexts = {n for n in cone if values[n].op == "next" and values[values[n].args[0]].op == "input"}
    for node in sorted(cone) if nexts else ():
        value = values[node]
        for factor, other in (value.args, value.args[::-1]) if value.op == "mul" else ():
            number = values[factor].attr if values[factor].op == "const" else None
            inside = nexts.intersection(reachable(values, [other]))
            if isinstance(number, int | float) and 0 < number <= 1 and inside:
                return float(number)
    return 1.0 if nexts else None


def lacks_values(tree: Tree) -> bool:
    """True if a function computes temporal differences, and does not add the values to them. It is
    then an advantage. Targets of a critic add the values."""
    values = tree.values
    later = {values[v.args[0]].attr for v in values if v.op == "next"} - {None}
    pending, read = [tree.outputs[0][1]], set[object]()
    scanned = False
    while pending:
        value = values[pending.pop()]
        scanned = scanned or value.op == "scan_back"
        read.add(value.attr if value.op == "input" else None)
        pending += () if value.op == "scan_back" else value.args
    return scanned and bool(later) and not later & read


def largest_advantage(view: View, loss: LossView) -> float:
    """Return the largest advantage of the scores of the flow; 1.0 if unknown."""
    sources = [loss.bound[name] for name in loss.fields("weight") if name in loss.bound]
    for group in view.groups:
        tree = group.located.tree
        if call(view, group) not in sources or any(f.type.tokens for f in tree.fields):
            continue
        ranges, known = score_ranges(view, group), view.shared.answers
        key = (largest_advantage, view.identity(group.function), view.group_size, ranges)
        if key not in known:
            known[key] = _largest(probe(view, group), ranges)
        most: float = known[key]
        return most
    return 1.0


def _largest(of_group: Probe, ranges: tuple[tuple[float, float], ...]) -> float:
    found = [0.0]
    for low, high in ranges:
        for shares in of_group.mixed.values():
            found += map(abs, of_group([low + (high - low) * share for share in shares]))
    most = max(found)
    return most if 0 < most < math.inf else 1.0
