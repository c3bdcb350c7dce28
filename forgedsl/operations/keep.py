"""`rollout.keep(mask)`: keeps the groups for which a filter is true; dropped ones are replaced by
new draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from forgedsl.ir.graph import Input
from forgedsl.operations.base import Operation, Role, Stream, Wanted
from forgedsl.operations.statements import Form
from forgedsl.records import replace

if TYPE_CHECKING:
    from forgedsl.ir.graph import Node
    from forgedsl.ir.program import Program

FILTER = "declare it with `filter NAME(score: [G] f32) -> bool = ...`"


class Keep(Operation):
    name = "keep"
    owner = "program"
    roles = frozenset({Role.DROPS})
    forms = (
        Form(
            owner="stream",
            method="keep",
            params=("mask",),
            streams=("mask",),
            shown="rollout.keep(mask)",
            doc="keeps the groups for which a filter is true",
        ),
    )

    def node(self, node: Node) -> Node:
        """Put the filtered stream first among the inputs."""
        edge = Input(argument="edge", edge=node.target, attribute=None, span=node.span)
        given = node.inputs
        if node.target and all(i.edge != node.target for i in given):
            given = (edge, *given)
        return replace(node, target="", inputs=given)

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


OPERATIONS: Sequence[Operation] = (Keep(),)
