"""Invariants of each IR: one table per pass of (invariant, function that yields violations).

A rule yields a text for each violation. Rules are about our passes; mistakes in the user's file are
diagnostics.
"""

from __future__ import annotations

import ast as python
from collections import Counter
from collections.abc import Callable, Iterator
from math import prod
from pathlib import PurePath
from typing import Any

from forgedsl.ir.program import Ref, engine_of
from forgedsl.passes.state import State
from forgedsl.records import dataclass
from forgedsl.schema import KINDS, SERVICES
from forgedsl.syntax.walk import walk
from forgedsl.types.flow import Role

Check = Callable[[State], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Rule:
    """An invariant `what`; `violations` yields a text for each violation."""

    what: str
    violations: Check


Rules = tuple[Rule, ...]


# ---- tokens and tree


def _token_places(state: State) -> Iterator[str]:
    end = 0
    for token in state.tokens or ():
        start = token.start_pos
        if start is None or start < end or not state.source.text.startswith(str(token), start):
            yield f"{token.type} {str(token)!r} at {start}"
        else:
            end = start + len(token)


def _spans_inside(state: State) -> Iterator[str]:
    size, name = len(state.source.text), state.source.name
    for node in walk(state.ast):
        span = node.span
        if span.file != name or not 0 <= span.start <= span.end <= size:
            yield f"{type(node).__name__} {span}"


# ---- HIR


def _decls(state: State) -> list[Any]:
    program: Any = state.hir
    found = [
        *program.models.values(),
        *program.datasets.values(),
        *program.services.values(),
        *program.rubrics.values(),
        *program.for_operations,
        *program.evals.values(),
        *program.singletons.values(),
    ]
    return found + ([program.schedule] if program.schedule is not None else [])  # fmt: skip


def _settings_complete(state: State) -> Iterator[str]:
    for decl in _decls(state):
        schema = SERVICES[decl.ctor] if decl.kind == "service" else KINDS[decl.kind]
        missing = {setting.name for setting in schema.settings} - set(decl.settings)
        if missing:
            yield f"{decl.kind} {decl.name} lacks {', '.join(sorted(missing))}"


def _nothing_reported(state: State) -> Iterator[str]:
    from forgedsl.hir.context import ERROR

    for decl in _decls(state):
        for key, value in decl.settings.items():
            if value.value is ERROR:
                yield f"{decl.name}.{key}"


def _models_known(state: State) -> Iterator[str]:
    program: Any = state.hir
    for name, decl in program.services.items():
        model = decl.ctor_args[0]
        if isinstance(model, Ref) and model.name not in program.models:
            yield f"{name}: {model.name}"


def _flow_downwards(state: State) -> Iterator[str]:
    program: Any = state.hir
    known: set[str] = set()
    for step in program.flow:
        yield from (f"{step.op} reads {i.edge}" for i in step.inputs if i.edge not in known)
        known.add(step.name or step.op)


# ---- graph


def _ids_unique(state: State) -> Iterator[str]:
    graph: Any = state.graph
    for what, values in (
        ("id", [n.id for n in graph.nodes]),
        ("name", [n.name for n in graph.nodes]),
    ):
        yield from (f"{what} {value}" for value, count in Counter(values).items() if count > 1)


def _topological(state: State) -> Iterator[str]:
    graph: Any = state.graph
    known: set[str] = set()
    for node in graph.nodes:
        yield from (f"{node.name} reads {i.edge}" for i in node.inputs if i.edge not in known)
        known.add(node.name)


def _edges_fit(state: State) -> Iterator[str]:
    graph: Any = state.graph
    by_id = {node.id: node for node in graph.nodes}
    data = Counter((e.source, e.target, e.label) for e in graph.edges if e.kind == "data")
    reads = Counter(
        (graph.node(i.edge).id, node.id, i.text) for node in graph.nodes for i in node.inputs
    )
    yield from (f"edge {s} -> {t} ({label})" for s, t, label in (data - reads) + (reads - data))
    for edge in graph.edges:
        if edge.source not in by_id or edge.target not in by_id:
            yield f"edge {edge.source} -> {edge.target}"


def _graph_names(state: State) -> Iterator[str]:
    graph: Any = state.graph
    program: Any = state.hir
    yield from (f"service {name}" for name in graph.services if name not in program.services)
    yield from (f"dataset {name}" for name in graph.datasets if name not in program.datasets)
    if len(updates := graph.having(Role.UPDATES)) != 1:
        yield f"{len(updates)} steps"
    samplers = {node.name for node in graph.having(Role.SAMPLES)}
    for node in graph.nodes:
        yield from (f"{node.name} samples by {name}" for name in node.samplers - samplers)


# ---- plan


def _plan_complete(state: State) -> Iterator[str]:
    graph: Any = state.graph
    plan: Any = state.plan
    yield from (f"slots of {n.name}" for n in graph.nodes if plan.slots.get(n.name, 0) < 1)
    yield from (f"queue of {n.name}" for n in graph.nodes
                if n.stream and plan.capacities.get(n.name, 0) < 1)  # fmt: skip
    planned = {mesh.service for mesh in plan.meshes}
    engines = {name: engine_of(plan.request.program, name) for name in graph.services}
    yield from (f"mesh of {name}" for name, own in engines.items() if own not in planned)


def _places_fit(state: State) -> Iterator[str]:
    """Check that every GPU exists, and that only services that share GPUs have the same one."""
    plan: Any = state.plan
    held: dict[tuple[int, int], str] = {}
    for mesh in plan.meshes:
        for place in mesh.places:
            if not 0 <= place.host < plan.host.hosts:
                yield f"{mesh.service} on host {place.host} of {plan.host.hosts}"
            for gpu in place.gpus:
                if not 0 <= gpu < plan.host.gpus:
                    yield f"{mesh.service} on GPU {gpu} of {plan.host.gpus}"
                other = held.setdefault((place.host, gpu), mesh.service)
                if other != mesh.service and not {other, mesh.service} <= set(plan.colocate):
                    yield f"GPU {gpu} of host {place.host} is held by {other} and {mesh.service}"


def _degrees_fill(state: State) -> Iterator[str]:
    plan: Any = state.plan
    for mesh in plan.meshes:
        ranks = mesh.hosts * mesh.procs
        if prod(mesh.degrees.values()) != ranks:
            yield f"{mesh.service}: {dict(mesh.degrees)} over {ranks} processes"


def _age_bound(state: State) -> Iterator[str]:
    plan: Any = state.plan
    s = plan.schedule.staleness
    if plan.schedule.every is None:
        return
    worst = (s.credits + s.window - 2) // s.prompts + s.every - 1
    if worst != s.age_bound:
        yield f"{s.age_bound} is not {s.formula}"
    if s.credits < s.prompts:
        yield f"{s.credits} credits cannot fill a step of {s.prompts}"
    limit = plan.schedule.max_policy_age
    if limit is not None and s.age_bound > limit:
        yield f"age {s.age_bound} is over max_policy_age {limit}"


# ---- job


def _sealed(state: State) -> Iterator[str]:
    job = state.job.job  # type: ignore[union-attr]
    if job.digest() != job.content_hash:
        yield job.content_hash


def _job_round_trip(state: State) -> Iterator[str]:
    job = state.job.job  # type: ignore[union-attr]
    if type(job).model_validate_json(job.model_dump_json()) != job:
        yield job.name


def _job_names(state: State) -> Iterator[str]:
    job = state.job.job  # type: ignore[union-attr]
    defined = {n.name for n in python.parse(job.program).body if isinstance(n, python.FunctionDef)}
    wanted = [node.target for node in job.nodes if Role.COMPUTES in node.roles]
    wanted += [rubric.function for rubric in job.rubrics.values()]
    wanted += [r.function for r in job.rewards.values() if r.kind == "program"]
    wanted += [f for d in job.datasets.values()
               for f in (d.prompt, d.target, d.chat, d.chosen, d.rejected) if f]  # fmt: skip
    yield from (f"function {name}" for name in wanted if name not in defined)
    yield from (f"loss {n.loss}" for n in job.nodes if n.loss and n.loss not in job.losses)
    for name, service in job.services.items():
        if service.model not in job.models:
            yield f"{name}: model {service.model}"


def _hermetic(state: State) -> Iterator[str]:
    """Check that paths and spans written by the compiler are relative. Strings of the user (an
    export, an argument, a text) may be absolute paths; P224 reports these."""
    job = state.job.job  # type: ignore[union-attr]
    sources = [model.source for model in job.models.values()]
    sources += [model.tokenizer for model in job.models.values() if model.tokenizer is not None]
    sources += [part for d in job.datasets.values() for part in _leaves(d.source)]
    parts = (*sources, *job.rewards.values(), *job.environments.values())
    files = [part.path for part in parts if getattr(part, "path", None) is not None]
    files += [path for found in job.environments.values() for path in found.scripts]
    importing = (*job.rewards.values(), *job.environments.values())
    files += [module.path for found in importing for module in found.modules.values()]
    places = [*job.origins.values(), *(node.origin for node in job.nodes)]
    places += [kink.rpartition(" ")[2] for loss in job.losses.values() for kink in loss.kinks]
    yield from (path for path in (*files, *places) if PurePath(path).is_absolute())


def _leaves(source: Any) -> Iterator[Any]:
    """Yield the sources of a mixture, or the source itself."""
    parts = getattr(source, "sources", None)
    yield from (leaf for part in parts for leaf in _leaves(part)) if parts else (source,)


of_tokens: Rules = (Rule("tokens cover the text in order", _token_places),)
of_ast: Rules = (Rule("every node has a span in the text", _spans_inside),)
of_hir: Rules = (
    Rule("every setting of a declaration has a value", _settings_complete),
    Rule("no reported error is left as a value", _nothing_reported),
    Rule("every service has a declared model", _models_known),
    Rule("a step reads results of earlier steps", _flow_downwards),
)
of_graph: Rules = (
    Rule("ids and names are unique", _ids_unique),
    Rule("nodes are in topological order", _topological),
    Rule("data edges are the inputs of nodes", _edges_fit),
    Rule("names in the graph are declared", _graph_names),
)
of_plan: Rules = (
    Rule("every node has slots and a queue, every service a mesh", _plan_complete),
    Rule("GPUs exist and none is used twice", _places_fit),
    Rule("parallel degrees fill the processes", _degrees_fill),
    Rule("the worst age follows from credits and window", _age_bound),
)
of_job: Rules = (
    Rule("the hash matches", _sealed),
    Rule("JSON round trip returns the same job", _job_round_trip),
    Rule("names in nodes, datasets and services are defined in the job", _job_names),
    Rule("files and places of the job are named relative to it", _hermetic),
)
