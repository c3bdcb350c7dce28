"""An operation from outside: `louder(rollout, mark = "!")` puts a mark behind each answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forgedsl.ir.graph import Input, Node
from forgedsl.ir.program import Program
from forgedsl.operations.base import Level, Lowering, Operation, Stream, Wanted
from forgedsl.operations.statements import Form
from forgedsl.records import replace


class Louder(Operation):
    name = "louder"
    stream = Stream.ROLLOUT
    level = Level.ROLLOUT
    extra = frozenset({"marks"})
    forms = (
        Form(
            owner="",
            method="louder",
            params=("rollout", "marks"),
            streams=("rollout",),
            counts=("marks",),
            required=("marks",),
            shown="louder(rollout, marks = n)",
            doc="the answers with so many exclamation marks behind them",
        ),
    )

    def typed(
        self, node: Node, read: Sequence[Node], nodes: Mapping[str, Node], all_: Sequence[Node]
    ) -> Node:
        node = super().typed(node, read, nodes, all_)
        return replace(node, level=read[0].level) if read else node

    def wanted(self, program: Program, node: Node, read: Input) -> Wanted:
        return Wanted(streams=(Stream.ROLLOUT,), text="rollouts")

    def call_text(self, node: Node) -> str:
        return f"louder(marks = {node.settings['marks']})"

    def fields(self, node: Node, to: Lowering) -> dict[str, Any]:
        return {"marks": node.settings["marks"]}


OPERATIONS = (Louder(),)
