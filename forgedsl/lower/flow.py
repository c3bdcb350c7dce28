"""Lowers the nodes, schedule and evals of a planned graph to those of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forgedsl.emit.python import call_name, scalar_name
from forgedsl.hir.judges import comparing_reward
from forgedsl.ir.graph import Graph, Node
from forgedsl.ir.program import Decl, Program, Ref, model_of, rewards_of
from forgedsl.lower import job
from forgedsl.lower.sources import eval_entry, eval_service
from forgedsl.operations.base import CALL_TIMEOUT
from forgedsl.operations.registry import operation
from forgedsl.plan.environments import environment_of
from forgedsl.plan.plan import Plan
from forgedsl.services.lowering import lower_sampling
from forgedsl.settings import Auto
from forgedsl.sizes.meshes import number, transport_of
from forgedsl.source import Span

SLOWEST_TOKENS_PER_S = 5.0
"""tokens/s; a completion that decodes more slowly times out"""

FormatSpan = Callable[[Span], str]


def lower_nodes(
    program: Program, graph: Graph, plan: Plan, place: FormatSpan
) -> tuple[job.Node, ...]:
    """Lower the nodes, in topological order."""
    return tuple(_node(program, graph, node, plan, place) for node in graph.nodes)


def longest(program: Program, graph: Graph, plan: Plan, service: str) -> int:
    """Return the maximum tokens of a trajectory: those that fit both the engine and a row of the
    trainer."""
    context, row = plan.contexts[model_of(program.services[service])], plan.rows[graph.trainer]
    return row.seq_len if context is None else min(context, row.seq_len)


class _Lowering:
    """`operations.base.Lowering` of one program."""

    def __init__(self, program: Program, graph: Graph, plan: Plan) -> None:
        self.program, self.graph, self.plan = program, graph, plan

    def function(self, name: str, settings: Mapping[str, Any]) -> str:
        return call_name(self.program.functions[name].kind, name, settings)

    def scalar(self, name: str) -> str:
        return scalar_name(self.program.functions[name])

    def longest(self, service: str) -> int:
        return longest(self.program, self.graph, self.plan, service)

    def transport(self, node: Node) -> str:
        return transport_of(self.plan.host, self.plan.meshes, node)

    def compares(self, score: str) -> bool:
        return bool(comparing_reward(self.program, rewards_of(self.program, score)))

    def timeout_of(self, score: str) -> float:
        limits = [self.program.rewards[n].settings for n in rewards_of(self.program, score)]
        return max(float(s["timeout"].value * (s["retries"].value + 1)) for s in limits)

    def turn_seconds(self, service: str) -> float:
        tokens = number(self.program.services[service], "sampling.max_tokens", 0)
        return max(CALL_TIMEOUT, tokens / SLOWEST_TOKENS_PER_S)

    def play_seconds(self, settings: Mapping[str, Any], turn: float) -> float:
        return _played(self.program, settings, turn)


def _node(program: Program, graph: Graph, node: Node, plan: Plan, place: FormatSpan) -> job.Node:
    to, unit = _Lowering(program, graph, plan), operation(node.op)
    fields: dict[str, Any] = {
        "id": node.id,
        "name": node.name,
        "op": node.op,
        "target": node.target,
        "inputs": tuple(
            job.Input(argument=i.argument, edge=i.edge, attribute=i.attribute) for i in node.inputs
        ),
        "level": node.level.value,
        "slots": plan.slots[node.name],
        "timeout": unit.timeout(node, to),
        "origin": place(node.span),
    }
    return job.Node(**fields | unit.fields(node, to))


def _played(program: Program, settings: Mapping[str, Any], turn: float) -> float:
    """Return the timeout of a call that plays a trajectory. It has time for two attempts, each of
    which ends at `deadline`."""
    env = environment_of(program, settings)
    assert env is not None
    deadline, turns = env.settings["deadline"].value, settings.get("max_turns")
    if env.body.agent:  # it may wait for other things than turns
        turns = None
    step = turn + 2 * float(env.settings["tool_timeout"].value)
    found = [d for d in (deadline, None if turns is None else turns * step) if d is not None]
    return CALL_TIMEOUT + 2 * float(min(found))


def lower_declared(program: Program, graph: Graph) -> dict[str, Any]:
    """Lower the declarations of operations that the flow uses: section of the job -> name ->
    declaration."""
    found: dict[str, Any] = {}
    for node in graph.nodes:
        if (declares := operation(node.op).declares) is not None:
            settings = program.declared[declares.kind.name][node.target].settings
            section = found.setdefault(declares.section, {})
            section[node.target] = {key: value.value for key, value in settings.items()}
    return found


def lower_schedule(plan: Plan) -> job.Schedule:
    """Lower the schedule: length, credits, window and age bound."""
    schedule, staleness = plan.schedule, plan.schedule.staleness
    return job.Schedule(
        mode="async" if schedule.mode == "async" else "sync",
        steps=schedule.steps,
        epochs=schedule.epochs,
        prompts=staleness.prompts,
        credits=staleness.credits,
        window=staleness.window,
        age_bound=staleness.age_bound,
        max_policy_age=schedule.max_policy_age,
        on_stale="error" if schedule.on_stale == "error" else "drop",
        starve_timeout=schedule.starve_timeout,
        restarts=schedule.restarts,
    )


def lower_evals(program: Program, graph: Graph, plan: Plan) -> dict[str, job.Eval]:
    """Lower the evals. Completions are sampled by a generator; losses are measured by the
    trainer."""
    return {
        name: _eval_loss(eval_entry(name, decl), decl, graph.trainer)
        if decl.settings["loss"].value is not None
        else _eval(program, graph, plan, eval_entry(name, decl), decl)
        for name, decl in program.evals.items()
    }


def _eval_loss(dataset: str, decl: Decl, trainer: str) -> job.Eval:
    settings = decl.settings
    return job.Eval(
        dataset=dataset,
        service=trainer,
        loss=settings["loss"].value.name,
        every=settings["every"].value,
        limit=settings["limit"].value,
    )


def _eval(program: Program, graph: Graph, plan: Plan, dataset: str, decl: Decl) -> job.Eval:
    settings, service = decl.settings, eval_service(graph)
    env = settings["env"].value
    score = settings["score"].value
    sampling = lower_sampling(program.services[service])
    overrides = {
        name: settings[f"sample.{name}"].value
        for name in job.Sampling.model_fields
        if f"sample.{name}" in settings and not isinstance(settings[f"sample.{name}"].value, Auto)
    }
    return job.Eval(
        dataset=dataset,
        service=service,
        score=score.name if isinstance(score, Ref) else str(score),
        every=settings["every"].value,
        limit=settings["limit"].value,
        sampling=sampling.model_copy(update=overrides),
        n=settings["sample.n"].value,
        env=env.name if isinstance(env, Ref) else None,
        max_turns=settings["max_turns"].value,
        longest=None if env is None else longest(program, graph, plan, service),
    )
