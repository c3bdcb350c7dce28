"""`sample`: one completion per firing; after a failure, one retry with the same seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from forgedsl.errors import InternalError
from forgedsl.lower.job import Job, Node
from forgedsl_runtime.data_types import Rollout
from forgedsl_runtime.endpoints import DropRollout, RolloutError, seed_of
from forgedsl_runtime.flow import Edge
from forgedsl_runtime.guards import DeadlinePassed
from forgedsl_runtime.operations.base import Call, Operation, Run

TRIES = 2


class Sample(Operation):
    name = "sample"

    def edge(self, node: Node, read: Sequence[Edge], job: Job, edges: Mapping[str, Edge]) -> Edge:
        """Return facts about the output: `n` completions of a prompt, or one for each input
        completion."""
        prompt, plain = read[0], super().edge(node, read, job, edges)
        if prompt.width is None:
            return replace(plain, lineage=node.name, width=node.n or 1, rollouts=True)
        if (node.n or 1) > 1:
            raise InternalError(f"{node.name} samples more than once per completion")
        return replace(plain, lineage=prompt.lineage, width=prompt.width, rollouts=True)

    async def fire(self, run: Run, call: Call) -> Rollout:
        node, group = call.node, call.group
        assert group is not None
        seed = seed_of(run.seed, group.id, call.number)
        where = {"service": node.target, "group": group.id, "sibling": call.number}
        for attempt in range(1, TRIES + 1):
            try:
                with run.meter, run.events.span("sample", **where) as end:
                    asked = run.endpoints.sample(node, call.args[0], call.number, seed)
                    rollout: Rollout = await run.ask(node, asked)
                    end.update(span_fields(rollout))
            except (DeadlinePassed, RolloutError) as error:
                run.failures.failed(node, error)
                failed = {"message": f"{type(error).__name__}: {error}", "attempt": attempt}
                run.events.emit("rollout.failed", **where, **failed)
            else:
                run.failures.succeeded(node)
                return rollout
        raise DropRollout(f"sample {node.target}")


def span_fields(rollout: Rollout) -> dict[str, Any]:
    """Return the fields of a completion for the end event of its `sample` span."""
    return {
        "version_min": rollout.version_min,
        "version_max": rollout.version_max,
        "tokens": rollout.num_tokens,
        "truncated": rollout.truncated,
        "running": rollout.running,
        "engine_start": rollout.started,
        "engine_end": rollout.finished,
        **rollout.play,
    }


OPERATIONS = (Sample(),)
