"""How `louder` fires: once for each answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from forgedsl.lower.job import Job, Node
from forgedsl_runtime.flow import Edge
from forgedsl_runtime.operations.base import Call, Operation, Run


class Louder(Operation):
    name = "louder"

    def edge(self, node: Node, read: Sequence[Edge], job: Job, edges: Mapping[str, Edge]) -> Edge:
        return replace(super().edge(node, read, job, edges), rollouts=True)

    async def fire(self, run: Run, call: Call) -> Any:
        marks = (call.node.model_extra or {})["marks"]
        return replace(call.args[0], text=call.args[0].text + "!" * marks)


OPERATIONS = (Louder(),)
