"""View of a loss for lint rules: its tree, the roles of its fields, facts, slopes and spans.

role        fields
policy      logprob and the other row statistics of the trained model
sampler     behavior, and proximal log-probs of the trainer: older weights of the same policy
reference   log-probs of another model
weight      all other numbers: advantages, rewards
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, TypeVar

from forgedsl.diagnostics import Label
from forgedsl.ir.program import FlowInput, FlowStep, Function, Program, Value
from forgedsl.lint.facts import Facts
from forgedsl.losses.forward_mode import Point
from forgedsl.losses.source_spans import Located
from forgedsl.losses.tree import ROW_STATISTICS, Tree
from forgedsl.operations.registry import operation
from forgedsl.records import dataclass
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.types.flow import Role

T = TypeVar("T")
STANDARD = "forgedsl:"
COUNTS = ("num_tokens", "num_steps", "truncated", "mask", "last")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Place of a finding. `also` are the lines of library functions between the place and the
    cause of the finding, `related` is the innermost of them."""

    span: Span
    chain: tuple[ast.Expr, ...] = ()
    also: tuple[Span, ...] = ()
    related: tuple[Label, ...] = ()

    @property
    def node(self) -> ast.Expr | None:
        """The expression, if it is written at the place where the finding is shown."""
        return self.chain[0] if self.chain and self.chain[0].span == self.span else None

    def suppressible_at(self, code: str) -> tuple[tuple[str, Span], ...]:
        return tuple((code, span) for span in self.also)


class LossView:
    """A loss. `step` is the flow statement that minimizes it, if there is one; `named` is its name
    in that statement, and `reads` are the batches it is computed on."""

    def __init__(
        self,
        program: Program,
        function: Function,
        located: Located,
        facts: Facts,
        step: FlowStep | None,
        named: Value | None,
        reads: tuple[FlowInput, ...],
    ) -> None:
        self.program = program
        self.function = function
        self.located = located
        self.facts = facts
        self.tree: Tree = located.tree
        self.step = step
        self._named, self._reads = named, reads
        self._points: dict[tuple[object, ...], Point] = {}

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def updates(self) -> int:
        """Number of updates of a step; 0 if no step minimizes this loss."""
        if self.step is None:
            return 0
        settings = self.step.settings
        return int(settings["epochs"].value) * int(settings["minibatches"].value)

    @property
    def updates_of_run(self) -> int:
        """Number of updates of the run; 0 if it is not known, or if no step minimizes this loss."""
        schedule = self.program.schedule
        steps = schedule.settings["steps"].value if schedule is not None else None
        return steps * self.updates if isinstance(steps, int) else 0

    # ---- fields

    @cached_property
    def bound(self) -> dict[str, FlowStep]:
        """The statement that produces each field of the first batch, by field name."""
        return dict(reversed(self.sources))

    @cached_property
    def sources(self) -> tuple[tuple[str, FlowStep], ...]:
        """(field, statement that produces it) for all batches. For a field drawn from a buffer, the
        statement is the one whose result was put there."""
        by_name = {step.name: step for step in self.program.flow if step.name}

        def source(read: FlowInput) -> FlowStep:
            step = by_name[read.edge]
            put = operation(step.op).stands_for(step, self.program.flow)
            fields = () if put is None else put.inputs
            kept = (i for i in fields if i.argument == read.attribute and i.attribute is None)
            return next((by_name[i.edge] for i in kept), step)

        batches = [by_name[read.edge] for read in self._reads if read.edge in by_name]
        return tuple(
            (i.argument, source(i))
            for batch in batches
            if Role.PACKS in batch.roles
            for i in batch.inputs
            if i.edge in by_name
        )

    @property
    def place(self) -> Span:
        """The span at which the step names the loss."""
        assert self.step is not None
        origin = self._named.origin.span if self._named is not None else None
        return origin or self.step.span

    @cached_property
    def _behind(self) -> tuple[FlowStep, ...]:
        """The statements that its batches depend on, back to the sampling ones. Draws from a buffer
        depend on what was put there."""
        by_name = {step.name: step for step in self.program.flow if step.name}
        pending, found = [read.edge for read in self._reads], dict[str, FlowStep]()
        while pending:
            step = by_name.get(name := pending.pop())
            if step is None or name in found:
                continue
            found[name] = step
            put = operation(step.op).stands_for(step, self.program.flow)
            if Role.SAMPLES not in operation(step.op).roles:
                pending += [i.edge for i in (step if put is None else put).inputs]
        return tuple(found.values())

    @cached_property
    def samplers(self) -> tuple[FlowStep, ...]:
        """The statements that sample the completions of its batches."""
        return tuple(step for step in self._behind if Role.SAMPLES in step.roles)

    @cached_property
    def recalls(self) -> tuple[FlowStep, ...]:
        """The statements that draw some of its completions from a buffer."""
        return tuple(s for s in self._behind if Role.RECALLS in operation(s.op).roles)

    @cached_property
    def roles(self) -> dict[str, str]:
        return {field.name: self._role(field.name) for field in self.tree.fields}

    def _role(self, name: str) -> str:
        source = self.bound.get(name)
        if name in ROW_STATISTICS:
            return "policy"
        if name in COUNTS:
            return "count"
        if source is not None and source.is_logprobs:
            trained = self.step is not None and source.receiver == self.step.receiver
            return "sampler" if trained else "reference"
        if name in ("behavior", "proximal"):
            return "sampler"
        return "reference" if name == "ref" and source is None else "weight"

    def fields(self, role: str) -> list[str]:
        return [name for name, found in self.roles.items() if found == role]

    @property
    def older(self) -> list[str]:
        """The fields it reads that are log-probs of older weights of the trained model."""
        return [name for name in self.fields("sampler") if name in self.read]

    @property
    def is_pairs(self) -> bool:
        return any("P" in field.type.axes for field in self.tree.fields)

    @property
    def objective(self) -> frozenset[int]:
        """The values that the loss itself depends on."""
        return self.facts.objective

    @property
    def read(self) -> frozenset[str]:
        """The fields that the objective depends on after folding."""
        return self.facts.read

    @cached_property
    def live(self) -> set[int]:
        """The values through which gradient can flow, so none that is only read under `stop`."""
        live, pending = set[int](), [self.tree.output("loss")]
        while pending:
            value = self.tree.values[node := pending.pop()]
            live.add(node)
            pending += () if value.op == "stop" else (a for a in value.args if a not in live)
        return live

    def cached(self, question: Callable[[LossView], T]) -> T:
        """Return `question(self)`, cached for all losses with the same structure and roles. So the
        result must not contain names or spans."""
        key = (question, *self.roles.values())
        answers = self.facts.answers
        if key not in answers:
            answers[key] = question(self)
        answer: T = answers[key]
        return answer

    # ---- slopes

    def point(
        self, *, ratio: float = 1.0, weight: float = 1.0, distance: float = 0.0, side: str = "",
        logprob: float = -1.0, entropy: float = 0.5, masked: bool = False, wrt: str = "logprob",
        num_steps: float = 1.0, older: float = 1.0, truncated: float = 0.0,
    ) -> Point:  # fmt: skip
        """Return the loss of a single token at a ratio to the sampler and a log-ratio `distance` to
        the reference. `logprob` is its log-prob; a `masked` token was not written by the policy.
        `older` is the ratio of `proximal` to `behavior`, `num_steps` counts updates before it, and
        `truncated` is 1 if its answer was cut."""
        key = (ratio, weight, distance, side, logprob, entropy, masked, wrt, num_steps, older,
               truncated)  # fmt: skip
        if key not in self._points:
            at = {
                "policy": logprob,
                "sampler": logprob - math.log(ratio),
                "reference": logprob - distance,
                "weight": weight,
                "count": 1.0,
            }
            inputs = self._inputs(at, entropy, masked=masked)
            inputs["num_steps"] = num_steps
            inputs |= {name: truncated for name in inputs if name.startswith("truncated")}
            if older != 1.0:
                inputs["behavior"] = at["sampler"] - math.log(older)
            wrt = f"{wrt}.{side}" if side else wrt
            totals = self._statistics
            self._points[key] = Point(self.tree.values, inputs, wrt=wrt, totals=totals)
        return self._points[key]

    def _inputs(self, at: dict[str, float], entropy: float, *, masked: bool) -> dict[str, float]:
        """Return the values of all fields, by the values of their roles."""
        inputs: dict[str, float] = {}
        for name, role in self.roles.items():
            number = entropy if role == "policy" and name == "entropy" else at[role]
            number = 0.0 if masked and name in ("mask", "last") else number
            inputs |= dict.fromkeys((name, f"{name}.chosen", f"{name}.rejected"), number)
        return inputs

    @cached_property
    def _statistics(self) -> dict[str, float]:
        """Sums for `batch_mean` and `batch_std` over a step of on-policy tokens, half with
        advantage 1, half with -1. (A single token would equal its own mean.)"""
        # set before the loop: later sums read earlier ones
        self._statistics = found = dict[str, float]()
        for name, node in self.tree.totals:
            if name.startswith("batch_sum"):
                found[name] = sum(self.point(weight=w)(node).value for w in (1.0, -1.0)) / 2
                self._points.clear()  # cached points were computed without this sum
        return found

    def slope(self, **where: Any) -> float:
        """Return d loss / d logprob of a single token, or the derivative with respect to `wrt`."""
        return self.point(**where)(self.tree.output("loss")).slope

    def gain(self, *, weight: float = 1.0, **where: Any) -> float:
        """Return the part of d loss / d logprob that is due to the advantage, or to the data if
        there is none."""
        if self.is_pairs:
            return self.slope(side="chosen", **where)
        if any(name in self.read for name in self.fields("weight")):
            return self.slope(weight=weight, **where) - self.slope(weight=0.0, **where)
        return 0.0 if self.fields("reference") else self.slope(**where)

    def dominator(self, names: list[str], found: Callable[[int], bool]) -> int:
        """Return the first value that satisfies `found` and through which every path from these
        fields to the loss goes; the loss itself if there is none."""
        tree, end = self.tree, self.tree.output("loss")
        inputs = [n for n in self.objective if tree.values[n].op == "input"]
        starts = [n for n in inputs if tree.values[n].attr in names]
        for node in sorted(self.objective):
            if node in starts or not _reaches(tree, starts, node, -1):
                continue
            if not _reaches(tree, starts, end, node) and found(node):
                return node
        return end

    # ---- spans

    def spot(self, node: int) -> Spot:
        """Return the place of value `node`: in the loss, or at its use if the loss is of the
        library."""
        chain = self.located.chains[node]
        spans = [expr.span for expr in chain] or [self.tree.values[node].span]
        shown = spans[-1]
        if shown.file.startswith(STANDARD) and self.step is not None:
            shown = self.place
        also = tuple(span for span in spans if span != shown)
        related = (Label(text="computed here", span=spans[0]),) if also else ()
        return Spot(span=shown, chain=chain, also=also, related=related)


def _reaches(tree: Tree, starts: list[int], end: int, without: int) -> bool:
    """True if `end` depends on one of `starts` by a path that avoids the value `without`."""
    reached = set(starts)
    for node, value in enumerate(tree.values[: end + 1]):
        if node != without and not reached.isdisjoint(value.args):
            reached.add(node)
    return end in reached


def conjuncts(tree: Tree, node: int) -> Iterator[int]:
    """Yield the parts of a condition that must all hold."""
    value = tree.values[node]
    yield node
    if value.op == "and":
        for arg in value.args:
            yield from conjuncts(tree, arg)
    elif value.op in ("expand", "side", "unside"):
        yield from conjuncts(tree, value.args[0])
