"""Interval analysis of a typed expression tree.

    values of a Tree, intervals of its inputs  ->  Analysis: the interval of every value,
                                                   and what is known where a value is used

A value that is read only in a branch of `where`, or only under the mask of a reduction, matters
only if that condition is true: `Analysis.guarded` narrows its operands by the conditions common to
all its uses. A difference of values that are equal up to `stop` is known to be 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forgedsl.losses.tree import REDUCTIONS, Value
from forgedsl.schema.builtins import SCANS
from forgedsl.types import intervals
from forgedsl.types.intervals import ANY, BOOL, FALSE, TRUE, Interval, interval, meet, point
from forgedsl.types.ops import TRANSFER

INPUTS: dict[str, Interval] = {
    "logprob": intervals.LOG_PROB,
    "behavior": intervals.LOG_PROB,
    "mean_logprob": intervals.LOG_PROB,
    "entropy": Interval(0.0, intervals.INF),
    "num_tokens": intervals.POSITIVE_COUNT,
    "num_steps": interval(0.0, intervals.INF),
}
"""Intervals of inputs with a fixed meaning; all others may be any finite number."""

ANYTHING = Interval(finite=False)
ACROSS = REDUCTIONS | SCANS.keys()
"""operations whose result depends on other tokens or sequences"""
Condition = tuple[int, bool]
SAME_ELEMENTS = ("expand", "stop", "side", "unside")
MASKED = ("seq_sum", "seq_max", "seq_min", "total_sum")
OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
LEAVES = ("input", "total", "valid", "group_size", "siblings", "in_side", "const")


class Analysis:
    """Intervals of `values`. `inputs` has the intervals of inputs by name, `group_size` that of
    G."""

    def __init__(
        self,
        values: Sequence[Value],
        outputs: Sequence[int],
        inputs: Mapping[str, Interval] | None = None,
        group_size: Interval = intervals.POSITIVE_COUNT,
    ) -> None:
        self.values = values
        self.inputs = {**INPUTS, **(inputs or {})}
        self.group_size = group_size
        self.canonical = _canonical(values)
        self.intervals: list[Interval] = []
        for value in values:
            self.intervals.append(self._transfer(value, self.intervals))
        self.guards = _guards(values, outputs)

    def __getitem__(self, node: int) -> Interval:
        return self.intervals[node]

    def guarded(self, node: int, arg: int) -> Interval:
        """Return the interval of `arg`, given that `node` is used."""
        conditions = self.guards[node]
        return self.under(arg, conditions) if conditions else self.intervals[arg]

    def under(self, node: int, conditions: frozenset[Condition]) -> Interval:
        """Return the interval of a value if all conditions are true."""
        known: dict[int, Interval] = {}
        for condition, holds in sorted(conditions):
            self._assume(condition, holds, known)
        narrowed: list[Interval] = []
        for number, value in enumerate(self.values[: node + 1]):
            if value.op == "seq_count" and (value.args[0], True) in conditions:
                # the mask is true for this token, so the count is at least 1
                found = intervals.POSITIVE_COUNT
            elif value.op in ACROSS:  # a condition on this token need not be true for the others
                found = self.intervals[number]
            else:
                found = self._transfer(value, narrowed)
            narrowed.append(meet(found, known[number]) if number in known else found)
        return narrowed[node]

    def _assume(self, node: int, holds: bool, known: dict[int, Interval]) -> None:
        """Collect facts that follow from a condition in `known`."""
        value = self.values[node]
        self._learn(node, TRUE if holds else FALSE, known)
        if value.op in SAME_ELEMENTS:
            self._assume(value.args[0], holds, known)
        elif value.op == "not":
            self._assume(value.args[0], not holds, known)
        elif (value.op, holds) in (("and", True), ("or", False)):
            for arg in value.args:
                self._assume(arg, holds, known)
        elif value.op == "is_finite" and holds:
            self._learn(value.args[0], ANY, known)
        elif value.op in OPPOSITE:
            left, right = value.args
            self._compare(value.op if holds else OPPOSITE[value.op], left, right, known)

    def _compare(self, op: str, left: int, right: int, known: dict[int, Interval]) -> None:
        a, b = self.intervals[left], self.intervals[right]
        if op in ("gt", "ge"):
            left, right, a, b = right, left, b, a
            op = "lt" if op == "gt" else "le"
        if op in ("lt", "le"):
            strict = op == "lt"
            self._learn(left, _below(b.hi, strict), known)
            self._learn(right, _above(a.lo, strict), known)
        elif op == "eq":
            self._learn(left, b, known)
            self._learn(right, a, known)
        elif b == point(0.0) or a == point(0.0):
            unequal = Interval(finite=False, nonzero=True)
            self._learn(left if b == point(0.0) else right, unequal, known)

    def _learn(self, node: int, fact: Interval, known: dict[int, Interval]) -> None:
        """Apply `fact` to a value and to the value that it expands."""
        while True:
            known[node] = meet(known.get(node, self.intervals[node]), fact)
            value = self.values[node]
            if value.op not in SAME_ELEMENTS:
                return
            node = value.args[0]

    def _transfer(self, value: Value, known: Sequence[Interval]) -> Interval:
        if value.op in LEAVES:
            return self._leaf(value)
        args = [known[arg] for arg in value.args]
        if value.op in ("group_sum", "sibling_sum"):
            return TRANSFER["mul"](args[0], self.group_size)
        if len(value.args) == 2 and self.canonical[value.args[0]] == self.canonical[value.args[1]]:
            if value.op == "sub" and args[0].finite:
                return point(0.0)
            if value.op == "mul":
                return intervals.square(args[0])
        if value.op == "where":
            for position, holds in ((1, True), (2, False)):
                facts: dict[int, Interval] = {}
                self._assume(value.args[0], holds, facts)
                args[position] = meet(args[position], facts.get(value.args[position], ANYTHING))
        found = TRANSFER[value.op](*args)
        if value.op == "sub" and self._is_k3(value):
            return meet(found, Interval(0.0, intervals.INF, finite=found.finite))
        return found

    def _is_k3(self, value: Value) -> bool:
        """True for expm1(x) - x, which is never negative."""
        left = self.values[value.args[0]]
        right = self.canonical[value.args[1]]
        return left.op == "expm1" and self.canonical[left.args[0]] == right

    def _leaf(self, value: Value) -> Interval:
        if value.op == "const":
            usable = isinstance(value.attr, int | float)
            return point(float(value.attr)) if usable else intervals.UNKNOWN  # type: ignore[arg-type]
        if value.op == "input":
            found = self.inputs.get(str(value.attr))
            return found or (BOOL if value.type.dtype == "bool" else ANY)
        if value.op == "total":
            is_count = str(value.attr).startswith("num_")
            return intervals.POSITIVE_COUNT if is_count else ANY
        return self.group_size if value.op in ("group_size", "siblings") else BOOL


def _below(bound: float, strict: bool) -> Interval:
    return interval(-intervals.INF, bound, finite=False, nonzero=strict and bound == 0)


def _above(bound: float, strict: bool) -> Interval:
    return interval(bound, intervals.INF, finite=False, nonzero=strict and bound == 0)


def _canonical(values: Sequence[Value]) -> list[int]:
    """Map each value to the first one that is equal if `stop` and `expand` are ignored."""
    seen: dict[tuple[object, ...], int] = {}
    found: list[int] = []
    for number, value in enumerate(values):
        if value.op in ("stop", "expand"):
            found.append(found[value.args[0]])
            continue
        args = tuple(found[arg] for arg in value.args)
        # inputs of the same name with different axes are different
        key = (value.op, args, value.attr, type(value.attr))
        found.append(seen.setdefault(key, number))
    return found


def _guards(values: Sequence[Value], outputs: Sequence[int]) -> list[frozenset[Condition]]:
    """Map each value to the conditions common to all its uses."""
    found: list[frozenset[Condition] | None] = [None] * len(values)
    for output in outputs:
        found[output] = frozenset()
    for node in range(len(values) - 1, -1, -1):
        value, own = values[node], found[node]
        if own is None:
            continue
        for position, arg in enumerate(value.args):
            conditions = own
            if value.op == "where" and position:
                conditions = own | {(value.args[0], position == 1)}
            elif value.op in ACROSS:
                # a condition on one token does not apply to the others
                kept = value.type.axes - ({"T"} if value.op in SCANS else set())
                conditions = frozenset(c for c in own if values[c[0]].type.axes <= kept)
                if value.op in MASKED and position == 0 and len(value.args) > 1:
                    conditions |= {(value.args[1], True)}
            before = found[arg]
            found[arg] = conditions if before is None else before & conditions
    return [conditions or frozenset() for conditions in found]
