"""A loss as rules see it: its tree, the roles of its fields, its intervals, slopes and places.

role        fields
policy      logprob and the other row statistics: what is trained
sampler     behavior, and proximal log-probs of the trainer: older weights of the same policy
reference   log-probs of another model
weight      every other number: advantages, rewards
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from weakref import WeakKeyDictionary

from forgedsl.diagnostics import Label
from forgedsl.hir.ir import FlowStep, Function, Program
from forgedsl.losses.intervals import Analysis
from forgedsl.losses.points import Point
from forgedsl.losses.sites import Located
from forgedsl.losses.tree import ROW_STATISTICS, Tree, Value, reachable
from forgedsl.records import dataclass
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.types.intervals import Interval

STANDARD = "forgedsl:"
COUNTS = ("num_tokens", "truncated", "mask")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Where a finding is shown. `also` are the library lines on the way, `related` the inmost."""

    span: Span
    chain: tuple[ast.Expr, ...] = ()
    also: tuple[Span, ...] = ()
    related: tuple[Label, ...] = ()

    @property
    def node(self) -> ast.Expr | None:
        """The expression itself if it is written where the finding is shown."""
        return self.chain[0] if self.chain and self.chain[0].span == self.span else None

    def vouchers(self, code: str) -> tuple[tuple[str, Span], ...]:
        return tuple((code, span) for span in self.also)


class LossView:
    """One loss; `step` is the flow statement that minimizes it, if one does."""

    def __init__(
        self, program: Program, function: Function, located: Located, step: FlowStep | None
    ) -> None:
        self.program = program
        self.function = function
        self.located = located
        self.tree: Tree = located.tree
        self.step = step

    @property
    def name(self) -> str:
        return self.function.name

    # ---- fields

    @cached_property
    def bound(self) -> dict[str, FlowStep]:
        """The flow statement behind each field that `replay` names."""
        if self.step is None:
            return {}
        by_name = {step.name: step for step in self.program.flow if step.name}
        batch = by_name.get(self.step.inputs[0].edge) if self.step.inputs else None
        if batch is None or batch.op != "replay":
            return {}
        return {i.argument: by_name[i.edge] for i in batch.inputs if i.edge in by_name}

    @cached_property
    def roles(self) -> dict[str, str]:
        return {field.name: self._role(field.name) for field in self.tree.fields}

    def _role(self, name: str) -> str:
        source = self.bound.get(name)
        if name in ROW_STATISTICS:
            return "policy"
        if name in COUNTS:
            return "count"
        if source is not None and source.op == "logprobs":
            trained = self.step is not None and source.receiver == self.step.receiver
            return "sampler" if trained else "reference"
        if name in ("behavior", "proximal"):
            return "sampler"
        return "reference" if name == "ref" and source is None else "weight"

    def fields(self, role: str) -> list[str]:
        return [name for name, found in self.roles.items() if found == role]

    @property
    def is_pairs(self) -> bool:
        return any("P" in field.type.axes for field in self.tree.fields)

    @cached_property
    def objective(self) -> frozenset[int]:
        """The values that the loss itself depends on."""
        return frozenset(reachable(self.tree.values, [self.tree.output("loss")]))

    @cached_property
    def read(self) -> frozenset[str]:
        """The fields that the objective depends on after folding."""
        values = (self.tree.values[node] for node in self.objective)
        return frozenset(str(value.attr) for value in values if value.op == "input")

    # ---- intervals

    @property
    def gradient(self) -> Tree:
        """The outputs of the loss and its derivative."""
        return derived(self.located).gradient

    @property
    def analysis(self) -> Analysis:
        return derived(self.located).analysis

    @property
    def origins(self) -> tuple[int | None, ...]:
        """For each value of the gradient the value of the tree that it is, or is derived from."""
        return derived(self.located).origins

    def is_primal(self, node: int) -> bool:
        """Whether a value of the gradient is one of the loss itself."""
        origin, value = self.origins[node], self.gradient.values[node]
        return origin is not None and self.tree.values[origin].op == value.op

    def interval(self, node: int, arg: int) -> Interval:
        """The interval of an operand where a value of the gradient is used."""
        return self.analysis.guarded(node, arg)

    # ---- slopes

    def point(
        self, *, ratio: float = 1.0, weight: float = 1.0, distance: float = 0.0, side: str = ""
    ) -> Point:
        """The loss of one token, at a ratio to the sampler and a log-ratio to the reference."""
        level = {
            "policy": -1.0,
            "sampler": -1.0 - math.log(ratio),
            "reference": -1.0 - distance,
            "weight": weight,
            "count": 1.0,
        }
        inputs: dict[str, float] = {}
        for name, role in self.roles.items():
            number = 0.5 if role == "policy" and name == "entropy" else level[role]
            inputs |= dict.fromkeys((name, f"{name}.chosen", f"{name}.rejected"), number)
        return Point(self.tree.values, inputs, wrt=f"logprob.{side}" if side else "logprob")

    def slope(self, **where: float) -> float:
        """d loss / d logprob of one token."""
        return self.point(**where)(self.tree.output("loss")).slope  # type: ignore[arg-type]

    # ---- places

    def spot(self, node: int) -> Spot:
        """Where value `node` of the tree stands: in the file of the loss, or where it is used."""
        chain = self.located.chains[node]
        spans = [expr.span for expr in chain] or [self.tree.values[node].span]
        shown = spans[-1]
        if shown.file.startswith(STANDARD) and self.step is not None:
            shown = self.step.settings["loss"].origin.span or self.step.span
        also = tuple(span for span in spans if span != shown)
        related = (Label(text="computed here", span=spans[0]),) if also else ()
        return Spot(span=shown, chain=chain, also=also, related=related)


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """The derivative of a tree with its intervals, and where its values come from."""

    gradient: Tree
    analysis: Analysis
    origins: tuple[int | None, ...]


def derived(located: Located) -> Derived:
    """What follows from a tree alone, computed once."""
    if located not in _DERIVED:
        from forgedsl.losses.grad import with_gradient

        gradient = with_gradient(located.tree)
        analysis = Analysis(gradient.values, [value for _, value in gradient.outputs])
        origins = _origins(located.tree, gradient)
        _DERIVED[located] = Derived(gradient=gradient, analysis=analysis, origins=origins)
    return _DERIVED[located]


_DERIVED: WeakKeyDictionary[Located, Derived] = WeakKeyDictionary()


def _origins(tree: Tree, gradient: Tree) -> tuple[int | None, ...]:
    known = {_key(value, value.args): n for n, value in enumerate(tree.values)}
    by_span = {value.span: n for n, value in enumerate(tree.values)}
    found: list[int | None] = []
    for value in gradient.values:
        args = tuple(-1 if (a := found[arg]) is None else a for arg in value.args)
        same = known.get(_key(value, args))
        found.append(same if same is not None else by_span.get(value.span))
    return tuple(found)


def _key(value: Value, args: tuple[int, ...]) -> tuple[object, ...]:
    return value.op, args, value.attr, type(value.attr), value.type.axes, value.type.dtype


def conjuncts(tree: Tree, node: int) -> Iterator[int]:
    """The parts of a condition that must all hold."""
    value = tree.values[node]
    yield node
    if value.op == "and":
        for arg in value.args:
            yield from conjuncts(tree, arg)
    elif value.op in ("expand", "side", "unside"):
        yield from conjuncts(tree, value.args[0])
