"""The plan: every `auto` resolved, meshes placed, queues sized, the age bounded.

    Program + Graph + Host -> Plan

Nothing here launches or probes anything; the host is a description. Lowering reads the plan and
decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forgedsl.diagnostics import Diagnostic, Reporter
from forgedsl.graph.ir import Graph
from forgedsl.graph.legality import model_of
from forgedsl.hir.ir import Decl, Program, Ref
from forgedsl.plan import checks
from forgedsl.plan.archs import Dims, dims_of
from forgedsl.plan.capacity import MemoryPlan, Request, plan_memory
from forgedsl.plan.cost import Cost, check_bottleneck, lengths, plan_cost
from forgedsl.plan.host import Host, resolve_host
from forgedsl.plan.liveness import check_liveness
from forgedsl.plan.memory_checks import check_memory, check_pools
from forgedsl.plan.meshes import MeshPlan, number, place, plan_mesh
from forgedsl.plan.queues import capacities, slots_of
from forgedsl.plan.schedule import SchedulePlan, plan_schedule

MICROBATCH_TOKENS = 16_384
"""Tokens of a microbatch where neither `rows` nor `tokens` is set."""

UNKNOWN_CONTEXT = 4096
"""Tokens of a row where neither the file nor the model says how long a sequence may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Shape of a microbatch of one rank: `rows` rows of `seq_len` tokens."""

    seq_len: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will run where. Mappings are by service, node or model name."""

    host: Host
    meshes: tuple[MeshPlan, ...]
    schedule: SchedulePlan
    slots: Mapping[str, int]
    capacities: Mapping[str, int]
    dims: Mapping[str, Dims | None]
    contexts: Mapping[str, int | None]
    rows: Mapping[str, Rows]
    colocate: tuple[str, ...]
    request: Request
    memory: MemoryPlan
    cost: Cost

    def mesh(self, service: str) -> MeshPlan:
        return next(mesh for mesh in self.meshes if mesh.service == service)


def plan(
    program: Program,
    graph: Graph,
    *,
    reporter: Reporter,
    host: Host | None = None,
    base_dir: Path | None = None,
) -> Plan | None:
    """The plan of a legal graph; None after reporting why there is none."""
    start = len(reporter.diagnostics)
    resolved = resolve_host(program, host)
    decls = {name: program.services[name] for name in graph.services}
    meshes = tuple(plan_mesh(decl, reporter) for decl in decls.values())
    colocate = _colocate(program, graph)
    meshes = place(meshes, decls, resolved, colocate, reporter)
    schedule = plan_schedule(program, graph, reporter)
    models = {model_of(decl): program.models[model_of(decl)] for decl in decls.values()}
    dims = {name: dims_of(model, base_dir) for name, model in models.items()}
    contexts = {name: _context(model, dims[name]) for name, model in models.items()}
    rows = {name: _rows(decl, contexts) for name, decl in decls.items() if decl.ctor == "titan"}
    by_service = {mesh.service: mesh for mesh in meshes}
    found = checks.check_names(program, meshes) + checks.check_launcher(program, meshes)
    found += checks.check_evals(program, graph)
    found += checks.check_context(program, graph, contexts, rows[graph.trainer].seq_len)
    if schedule is not None:
        found += checks.check_colocation(program, graph, colocate, schedule.mode)
    for name, decl in decls.items():
        model = model_of(decl)
        found += checks.check_divisibility(decl, by_service[name], dims[model], models[model])
        if name in rows:
            found += checks.check_sequence_shard(decl, by_service[name], rows[name].seq_len)
    for diagnostic in found:
        reporter.report(diagnostic)
    if schedule is None or _failed(reporter, start):
        return None
    request = Request(
        program=program,
        meshes=meshes,
        host=resolved,
        dims={name: dims[model_of(decl)] for name, decl in decls.items()},
        contexts={name: contexts[model_of(decl)] for name, decl in decls.items()},
        rows={name: (shape.rows, shape.seq_len) for name, shape in rows.items()},
        trainer=graph.trainer,
        synced=frozenset(str(sync.settings["target"]) for sync in graph.syncs),
    )
    memory = plan_memory(request)
    limits = capacities(graph, schedule.staleness)
    for diagnostic in check_memory(request, memory) + check_liveness(graph, schedule, limits):
        reporter.report(diagnostic)
    if _failed(reporter, start):
        return None
    return Plan(
        host=resolved,
        meshes=meshes,
        schedule=schedule,
        slots={node.name: slots_of(node, schedule.staleness) for node in graph.nodes},
        capacities=limits,
        dims=dims,
        contexts=contexts,
        rows=rows,
        colocate=colocate,
        request=request,
        memory=memory,
        cost=plan_cost(request, graph, schedule),
    )


def advice(program: Program, graph: Graph, plan: Plan) -> list[Diagnostic]:
    """Warnings about speed, which only `plan` gives: P211 kv-starved, A307 bottleneck."""
    slots: dict[str, int] = {}
    longest: dict[str, int] = {}
    for node in graph.of("sample"):
        slots[node.target] = slots.get(node.target, 0) + plan.slots[node.name]
        tokens = sum(lengths(plan.request, graph, node))
        longest[node.target] = max(longest.get(node.target, 0), tokens)
    found = check_pools(plan.request, plan.memory, slots, longest)
    return found + check_bottleneck(program, plan.cost)


def _failed(reporter: Reporter, start: int) -> bool:
    return any(d.severity == "error" for d in reporter.diagnostics[start:])


def _colocate(program: Program, graph: Graph) -> tuple[str, ...]:
    listed: list[Ref] = program.singletons["colocate"].settings["value"].value
    return tuple(item.name for item in listed if item.name in graph.services)


def _context(model: Decl, dims: Dims | None) -> int | None:
    declared = model.settings["context"].value
    if isinstance(declared, int):
        return declared
    return dims.context if dims is not None and dims.context else None


def _rows(decl: Decl, contexts: Mapping[str, int | None]) -> Rows:
    """Rows of a microbatch: as set, else as many as `MICROBATCH_TOKENS` holds."""
    seq_len = number(decl, "batch.seq_len", contexts[model_of(decl)] or UNKNOWN_CONTEXT)
    tokens = number(decl, "batch.tokens", MICROBATCH_TOKENS)
    return Rows(seq_len=seq_len, rows=number(decl, "batch.rows", max(1, tokens // seq_len)))
