"""One evaluation: a run over the held-out prompts.

    Evals.run(name)  --evaluate_sample, evaluate_score--> mean score, events
    Evals.loss(name) --evaluate_loss--> loss of held-out data, events

An evaluation measures one version of the sampler's weights: the queue of the sampler in
`versions.py` starts the next sync only after the evaluation is done. Completions that fail or are
dropped count in `failed`, not in the mean.
"""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass

from forgedsl.errors import RunError
from forgedsl.lower.job import Eval, Job, Node
from forgedsl.types.flow import Role
from forgedsl_runtime.controller.context import Context
from forgedsl_runtime.controller.firing import ask, demand
from forgedsl_runtime.data_types import Prompt
from forgedsl_runtime.endpoints import DropRollout, RolloutError, seed_of
from forgedsl_runtime.guards import DeadlinePassed
from forgedsl_runtime.operations.sample import span_fields
from forgedsl_runtime.step_metrics import finite

MIN_RUNNING = 64
TIMEOUT, LOSS_TIMEOUT = 300.0, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    name: str
    version: int
    value: float | None


class Evals:
    """Runs the evals of a job."""

    def __init__(self, context: Context) -> None:
        job, flow = context.job, context.flow
        self._job = job
        self._endpoints = context.endpoints
        self._events = context.events
        self._meter = context.meter
        self._failures = context.failures
        samplers = [e.node for e in flow.edges.values() if Role.SAMPLES in e.node.roles]
        self._nodes = {name: _node(name, spec, job, samplers) for name, spec in job.evals.items()}
        self._prompts: dict[str, list[Prompt]] = {}

    async def loss(self, name: str, *, version: int, step: int) -> EvalResult:
        """Return the loss on the held-out rows under the trainer's current weights.

        Raises:
            RunError: no row can be used.
        """
        node = self._nodes[name]
        where = {"name": name, "service": node.target, "step": step, "version": version}
        with self._events.span("eval", **where) as end:
            found = await demand(node, self._endpoints.evaluate_loss(name))
            if found.value is None:
                raise RunError(f"eval {name} has no usable rows", origin=node.origin)
            value = finite({"value": found.value})["value"]
            end.update(value=value, std=None, samples=found.samples, failed=0)
            end["metrics"] = finite(dict(found.reports))
        self._meter.progress += 1
        return EvalResult(name=name, version=version, value=value)

    async def run(self, name: str, *, version: int, step: int) -> EvalResult:
        """Evaluate all held-out prompts, `n` completions each, under the sampler's current weights.

        Raises:
            RunError: there are no prompts.
        """
        spec, node = self._job.evals[name], self._nodes[name]
        if name not in self._prompts:
            prompts = await demand(node, self._endpoints.eval_prompts(name))
            if not prompts:
                raise RunError(f"eval {name} has no prompts", origin=node.origin)
            self._prompts[name] = prompts
        prompts = self._prompts[name]
        scores: list[float] = []
        room = asyncio.Semaphore(max(MIN_RUNNING, node.slots))
        where = {"name": name, "service": spec.service, "step": step, "version": version}
        with self._events.span("eval", **where, prompts=len(prompts)) as end:
            async with asyncio.TaskGroup() as tasks:
                for index, prompt in enumerate(prompts):
                    for sibling in range(spec.n):
                        tasks.create_task(self._one(name, prompt, index, sibling, room, scores))
            end["value"] = statistics.fmean(scores) if scores else None
            end["std"] = statistics.pstdev(scores) if scores else None
            end["samples"] = len(scores)
            end["failed"] = len(prompts) * spec.n - len(scores)
        return EvalResult(name=name, version=version, value=end["value"])

    async def _one(
        self,
        name: str,
        prompt: Prompt,
        index: int,
        sibling: int,
        room: asyncio.Semaphore,
        scores: list[float],
    ) -> None:
        node = self._nodes[name]
        seed = seed_of(self._job.seed, f"eval {name}", index, sibling)
        where = {"eval": name, "service": node.target, "row": index, "sibling": sibling}
        async with room:
            try:
                with self._meter, self._events.span("sample", **where) as end:
                    call = self._endpoints.evaluate_sample(name, prompt, sibling, seed)
                    rollout = await ask(node, call)
                    end.update(span_fields(rollout))
                call_ = self._endpoints.evaluate_score(name, rollout)
                score = await ask(node, call_, patient=True)
            except (DeadlinePassed, RolloutError) as error:
                self._failures.failed(node, error)
                message = f"{type(error).__name__}: {error}"
                self._events.emit("rollout.failed", **where, message=message)
            except DropRollout as drop:
                self._events.emit("rollout.dropped", **where, reason=drop.reason, message=str(drop))
            else:
                self._failures.succeeded(node)
                scores.append(score.value)
                self._meter.progress += 1


def _node(name: str, spec: Eval, job: Job, samplers: list[Node]) -> Node:
    """Make a node for the eval. Its slots are the largest n * slots of the flow's nodes on that
    service. Its timeout is the longest of theirs, or LOSS_TIMEOUT if the eval measures a loss."""
    peers = [node for node in samplers if node.target == spec.service]
    return Node(
        id=f"eval/{name}",
        name=name,
        op="sample" if spec.loss is None else "step",
        target=spec.service,
        level="rollout",
        slots=max((node.slots * (node.n or 1) for node in peers), default=MIN_RUNNING),
        timeout=max((node.timeout for node in peers), default=TIMEOUT)
        if spec.loss is None
        else LOSS_TIMEOUT,
        env=spec.env,
        origin=job.origins.get(name, ""),
    )
