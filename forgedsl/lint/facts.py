"""Facts that follow from the structure of a loss, shared by all losses and views with that
structure.

    Tree  ->  structure (operations, operands, constants, types)  ->  Facts: gradient, intervals,
                                                                          results of rules

Names and spans are not part of the structure, so two losses that compute the same have the same
facts. Rules map the numbers of values to spans for each loss.
"""

from functools import cached_property
from typing import Any

from forgedsl.losses.grad import with_gradient
from forgedsl.losses.intervals import MASKED, Analysis
from forgedsl.losses.tree import Tree, Value, reachable
from forgedsl.records import replace
from forgedsl.source import Span
from forgedsl.types.ops import OPS

CONDITIONAL = frozenset(
    ("where", "pow", "mod", "seq_max", "seq_min", "side", "seq_count",
     *(op.name for op in OPS if op.partial))
)  # fmt: skip
"""operations whose derivative can be unsafe although the loss is safe"""
MOST_FACTS = 200
"""maximum number of structures whose facts an editor caches"""
NUMBER = "value"
"""file name of a pseudo span, whose offset is the number of a value"""


class Facts:
    """Facts of one structure. `answers` caches the results of rules, by question."""

    def __init__(self, tree: Tree) -> None:
        values = (_numbered(value, number) for number, value in enumerate(tree.values))
        self.tree = replace(tree, values=tuple(values))
        self.answers: dict[object, Any] = {}

    @cached_property
    def objective(self) -> frozenset[int]:
        """The values that the loss itself depends on."""
        return frozenset(reachable(self.tree.values, [self.tree.output("loss")]))

    @cached_property
    def read(self) -> frozenset[str]:
        """The fields that the objective depends on after folding."""
        values = (self.tree.values[node] for node in self.objective)
        return frozenset(str(value.attr) for value in values if value.op == "input")

    @cached_property
    def gradient(self) -> Tree:
        """The loss with its derivative; the loss alone if its derivative adds nothing that could
        overflow or divide by 0."""
        return self.tree if self._is_plain else with_gradient(self.tree)

    @property
    def _is_plain(self) -> bool:
        """True if the derivative is as safe as the loss: it adds no division, and no condition of
        the loss protects a value that the derivative reads without this condition."""
        values = self.tree.values
        masks = [value.args[1] for value in values if value.op in MASKED and len(value.args) > 1]
        return all(value.op not in CONDITIONAL for value in values) and all(
            values[mask].op in ("input", "valid") for mask in masks
        )

    @cached_property
    def analysis(self) -> Analysis:
        return Analysis(self.gradient.values, [value for _, value in self.gradient.outputs])

    @cached_property
    def num_primal(self) -> int:
        """Number of values in `gradient` that belong to the loss itself; they come first."""
        return len(reachable(self.tree.values, [value for _, value in self.tree.outputs]))

    def origin(self, node: int) -> int | None:
        """Return the number of the loss's value that a value of the gradient equals or was derived
        from."""
        span = self.gradient.values[node].span
        return span.start if span.file == NUMBER else None


def _numbered(value: Value, number: int) -> Value:
    span = Span(NUMBER, number, number)
    return Value(op=value.op, args=value.args, attr=value.attr, type=value.type, span=span)


def structure(tree: Tree) -> tuple[object, ...]:
    """Return a key that is equal for trees that differ only in names of values and in spans."""
    fields = tuple((field.name, field.type.axes) for field in tree.fields)
    return (*(_key(value) for value in tree.values), tree.outputs, tree.totals, fields)


def _key(value: Value) -> tuple[object, ...]:
    type_ = value.type
    attr = value.attr
    return value.op, value.args, attr, type(attr), type_.axes, type_.dtype, type_.diff
