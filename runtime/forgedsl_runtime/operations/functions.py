"""`score`, `call`, `mask`, `keep`: rewards, functions of the program, filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from forgedsl.errors import InternalError
from forgedsl.lower.job import Job, Node
from forgedsl_runtime.endpoints import GROUP, DropRollout, RewardError, RolloutError, Score
from forgedsl_runtime.flow import Edge
from forgedsl_runtime.operations.base import Call, Operation, Run, named


class Scores(Operation):
    name = "score"

    def edge(self, node: Node, read: Sequence[Edge], job: Job, edges: Mapping[str, Edge]) -> Edge:
        first = next((edge for edge in read if edge.lineage), None)
        return replace(super().edge(node, read, job, edges), width=first.width if first else None)

    async def fire(self, run: Run, call: Call) -> float:
        node, group, args = call.node, call.group, call.args
        assert group is not None
        assert call.sibling is not None
        if node.compares:
            rivals = group.live(node.inputs[0].edge).items()
            others = tuple(other.text for s, other in rivals if s != call.sibling)
            args[0] = replace(args[0], others=others)
        where = {"node": node.name, "group": group.id, "sibling": call.number}
        with run.events.span("score", **where) as end:
            asked = run.endpoints.score(node, args[0], args[1] if len(args) > 1 else None)
            try:
                # The reward client bounds each call. Waiting in its queue is no failure, so no
                # deadline here.
                score: Score = await run.ask(node, asked, patient=True)
            except RolloutError as error:
                run.failures.failed(node, error)
                raise DropRollout(f"{node.op} {node.target}") from error
            except RewardError as error:
                run.meter.count_score(error)
                run.failures.failed(node, error)
                raise
            run.meter.count_score(score)
            run.failures.succeeded(node)
            end["value"] = score.value
        group.scores.setdefault(node.name, {})[call.sibling] = score
        return score.value


class Function(Operation):
    name = "call"

    async def fire(self, run: Run, call: Call) -> Any:
        args = named(call.node, call.args)
        if call.group is None:
            args |= {GROUP: call.groups}
        return await run.demand(call.node, run.endpoints.call(call.node, args))


class Mask(Function):
    name = "mask"


class Keep(Operation):
    name = "keep"

    def edge(self, node: Node, read: Sequence[Edge], job: Job, edges: Mapping[str, Edge]) -> Edge:
        plain, kept = super().edge(node, read, job, edges), read[0]
        if plain.in_batch:
            raise InternalError(
                f"filter {node.name} reads a value that is known only for a whole batch"
            )
        return replace(plain, lineage=kept.lineage, width=kept.width, rollouts=kept.rollouts)


OPERATIONS = (Scores(), Function(), Mask(), Keep())
