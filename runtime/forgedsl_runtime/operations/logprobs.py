"""`logprobs`: one call for a group, or for a whole batch under the weights before the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from forgedsl.lower.job import Job, Node
from forgedsl_runtime.flow import Edge
from forgedsl_runtime.operations.base import Call, Operation, Run


class Logprobs(Operation):
    name = "logprobs"
    fires = "group"

    def edge(self, node: Node, read: Sequence[Edge], job: Job, edges: Mapping[str, Edge]) -> Edge:
        """Return facts about the output: one list of floats per completion."""
        first = next((edge for edge in read if edge.lineage), None)
        return replace(super().edge(node, read, job, edges), width=first.width if first else None)

    async def fire(self, run: Run, call: Call) -> list[list[float]]:
        node = call.node
        fields: dict[str, Any] = {"node": node.name, "service": node.target}
        if call.group is not None:
            fields["group"] = call.group.id
        with run.events.span("logprobs", **fields):
            found: list[list[float]] = await run.demand(
                node, run.endpoints.logprobs(node, call.args[0])
            )
        return found


OPERATIONS = (Logprobs(),)
