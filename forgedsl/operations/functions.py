"""`NAME(...)`: scores of rubrics, functions of the program, filters; `rollout.keep(mask)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forgedsl.operations.base import (
    CALL_TIMEOUT,
    Level,
    Lowering,
    Operation,
    Role,
    Stream,
    Wanted,
)
from forgedsl.records import replace
from forgedsl.syntax import ast

if TYPE_CHECKING:
    from forgedsl.ir.graph import Input, Node
    from forgedsl.ir.program import Program

NUMBERS = (Stream.SCORE, Stream.VALUE)
FILTER = "declare it with `filter NAME(score: [G] f32) -> bool = ...`"


class Score(Operation):
    name = "score"
    roles = frozenset({Role.SCORES})
    stream = Stream.SCORE
    produces = "[G] f32"

    def wanted(self, program: Program, node: Node, read: Input) -> Wanted | None:
        if read.argument == "rollout":
            return Wanted(streams=(Stream.ROLLOUT,), text="rollouts")
        help = "`prompt.target`, for example"
        return Wanted(streams=(), text="what belongs to a prompt", attribute=True, help=help)

    def reader(self, node: Node, read: Input) -> str:
        return node.target

    def slots(self, node: Node, credits: int) -> int:
        """Rewards start as rollouts finish; their pool is the limit."""
        return credits

    def fields(self, node: Node, to: Lowering) -> dict[str, Any]:
        return {"compares": to.compares(node.target)}

    def timeout(self, node: Node, to: Lowering) -> float:
        return max(CALL_TIMEOUT, to.timeout_of(node.target))


class Call(Operation):
    name = "call"
    roles = frozenset({Role.COMPUTES})
    stream = Stream.VALUE
    level = Level.GROUP
    produces = "[G] f32"

    def wanted(self, program: Program, node: Node, read: Input) -> Wanted | None:
        """By the declared type of a field of an advantage, a filter or another function."""
        fields = program.functions[node.target].fields
        field = next((f for f in fields if f.name == read.argument), None)
        if field is None or not isinstance(field.type, ast.TensorType):
            return None
        axes = ", ".join(axis.text for axis in field.type.axes if isinstance(axis, ast.Path))
        if field.type.dtype == "bool":
            text = f"decisions, [{axes}] bool"
            return Wanted(streams=(Stream.MASK,), text=text, attribute=True)
        streams = (Stream.LOGPROB,) if "T" in axes else NUMBERS
        text = f"numbers, [{axes}] {field.type.dtype}"
        return Wanted(streams=streams, text=text, attribute=True)

    def reader(self, node: Node, read: Input) -> str:
        return node.target

    def fields(self, node: Node, to: Lowering) -> dict[str, Any]:
        return {"target": to.function(node.target, node.settings)}


class Mask(Call):
    name = "mask"
    roles = frozenset({Role.COMPUTES, Role.DECIDES})
    stream = Stream.MASK
    produces = "bool"


class Keep(Operation):
    name = "keep"
    roles = frozenset({Role.DROPS})

    def typed(
        self, node: Node, read: Sequence[Node], nodes: Mapping[str, Node], all_: Sequence[Node]
    ) -> Node:
        node = super().typed(node, read, nodes, all_)
        return replace(node, stream=read[0].stream, level=read[0].level) if read else node

    def wanted(self, program: Program, node: Node, read: Input) -> Wanted | None:
        if read.argument == "edge":
            return None
        return Wanted(streams=(Stream.MASK,), text="the decisions of a filter", help=FILTER)

    def reader(self, node: Node, read: Input) -> str:
        return "keep"


OPERATIONS: Sequence[Operation] = (Score(), Call(), Mask(), Keep())
