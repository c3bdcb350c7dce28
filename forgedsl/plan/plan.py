"""The plan: every `auto` resolved, meshes placed, queues sized, the age bounded.

    Program + Graph + Host -> Plan

Nothing is launched or probed here; the host is a description. Lowering reads the plan and makes no
decisions of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from forgedsl.diagnostics import Diagnostic, Reporter
from forgedsl.families.base import Dims
from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Decl, Program, Ref, engine_of, is_tenant, model_of
from forgedsl.plan import checks, tenants
from forgedsl.plan.capacity import MemoryPlan, plan_memory
from forgedsl.plan.cost import Cost, check_bottleneck, plan_cost
from forgedsl.plan.environments import check_environments, check_tools, played
from forgedsl.plan.host import launcher_of, resolve_host
from forgedsl.plan.kept_weights import with_kept_weights
from forgedsl.plan.liveness import check_liveness
from forgedsl.plan.memory_checks import check_memory, check_pools
from forgedsl.plan.meshes import CHOSEN, Advice, place, plan_mesh
from forgedsl.plan.model_dims import check_family, dims_of
from forgedsl.plan.pairs import check_pairs
from forgedsl.plan.queues import capacities, slots_of
from forgedsl.plan.router_replay import check_router_replay
from forgedsl.plan.schedule import SchedulePlan, plan_schedule
from forgedsl.plan.sizes import held_bytes, lengths
from forgedsl.plan.support import check_support
from forgedsl.plan.without_effect import check_without_effect
from forgedsl.records import dataclass, replace
from forgedsl.services.registry import kind_of
from forgedsl.settings import Auto
from forgedsl.sizes.hosts import Host
from forgedsl.sizes.memory import GIB, Request
from forgedsl.sizes.meshes import MeshPlan, number, value
from forgedsl.types.flow import Role

MICROBATCH_TOKENS = 16_384
"""Tokens of a microbatch where neither `rows` nor `tokens` is set."""

AS_SHORT = 1.01
"""`auto` takes a step of up to this multiple of the shortest one, if that avoids P211"""
TRIED = 60
"""maximum number of placements to plan: some violate a rule that the search does not know"""

UNKNOWN_CONTEXT = 4096
"""Tokens of a row if neither the file nor the model limits the length of a sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Shape of a microbatch of one rank: `rows` rows of `seq_len` tokens."""

    seq_len: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Placement, schedule and estimates of a job. Mappings are by service, node or model name."""

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
    chosen: Mapping[str, str]
    """settings chosen by the plan, as overrides; `request.program` has their values"""

    @property
    def hosts_used(self) -> int:
        """Number of hosts that have a process."""
        return len({place.host for mesh in self.meshes for place in mesh.places}) or 1

    def mesh(self, service: str) -> MeshPlan:
        return self.request.mesh(service)


def plan(
    program: Program,
    graph: Graph,
    *,
    reporter: Reporter,
    host: Host | None = None,
    base_dir: Path | None = None,
) -> Plan | None:
    """Plan a legal graph; None after reporting why there is no plan."""
    begin = len(reporter.diagnostics)
    read = _report(reporter, check_without_effect(program, graph), begin)
    if any(is_tenant(program, name) for name in graph.services):
        start = len(reporter.diagnostics)
        if not _report(reporter, tenants.check_tenants(program, graph, base_dir), start):
            return None
    shared = program.singletons["colocate"].settings["value"].value
    services = [program.services[name].settings for name in graph.services]
    values = [settings[key].value for settings in services for key in CHOSEN if key in settings]
    free = any(isinstance(value, Auto) for value in (shared, *values))
    made = (_chosen if free else _planned)(program, graph, reporter, host, base_dir)
    return made if read else None


def _chosen(
    program: Program, graph: Graph, reporter: Reporter, host: Host | None, base_dir: Path | None
) -> Plan | None:
    """Return the plan with the shortest step that fits; of those that take about as long, the first
    without a starved engine (P211). If none fits, the smallest is planned, to report what is
    missing."""
    from forgedsl.plan import search  # most files set everything

    base = request_of(program, graph, (), Reporter(), host, base_dir)
    launcher = launcher_of(program)
    if launcher.max_hosts is not None:  # P209 reports more hosts
        reached = min(base.host.hosts, launcher.max_hosts)
        base = replace(base, host=replace(base.host, hosts=reached))
    space = search.auto_space(program, graph)
    refused = checks.check_auto(program, graph, base.dims, sorted(space.free))
    schedule = plan_schedule(program, graph, reporter)
    if not _report(reporter, refused, len(reporter.diagnostics)) or schedule is None:
        return None
    candidates = search.search(base, graph, schedule, space)
    best: tuple[float, Plan, Reporter] | None = None
    for candidate, _ in zip(candidates, range(TRIED), strict=False):
        seconds = candidate.key[0]
        if best is not None and seconds > AS_SHORT * best[0]:
            break
        tried = Reporter()
        made = _planned(candidate.program, graph, tried, host, base_dir)
        if made is None:
            continue
        made = replace(made, chosen=search.chosen(space, candidate.program))
        starves = any(each.code == "P211" for each in advice(candidate.program, graph, made))
        if best is None or not starves:
            best = seconds, made, tried
        if not starves:
            break
    if best is not None:
        _, made, tried = best
        _report(reporter, list(tried), 0)
        return made
    least = search.smallest(base, graph, schedule, space)
    made = _planned(least, graph, reporter, host, base_dir)
    return None if made is None else replace(made, chosen=search.chosen(space, least))


def _planned(
    program: Program, graph: Graph, reporter: Reporter, host: Host | None, base_dir: Path | None
) -> Plan | None:
    """Plan a program in which nothing is `auto`."""
    start = len(reporter.diagnostics)
    listed = _colocate(program, graph)
    request = request_of(program, graph, listed, reporter, host, base_dir)
    colocate = tuple(name for name in listed if request.mesh(name).gpus)
    schedule = plan_schedule(program, graph, reporter)
    found = _checks(request, graph, colocate, schedule, base_dir)
    if not _report(reporter, found, start) or schedule is None:
        return None
    request, memory = with_kept_weights(request)
    limits = capacities(graph, schedule.staleness)
    found = check_memory(request, memory) + check_liveness(graph, schedule, limits)
    if not _report(reporter, found, start):
        return None
    models = {name: model_of(program.services[name]) for name in graph.services}
    return Plan(
        host=request.host, meshes=request.meshes, schedule=schedule,
        slots={node.name: slots_of(node, schedule.staleness) for node in graph.nodes},
        capacities=limits, dims={model: request.dims[name] for name, model in models.items()},
        contexts={model: request.contexts[name] for name, model in models.items()},
        rows={name: Rows(rows=r, seq_len=s) for name, (r, s) in request.rows.items()},
        colocate=colocate, request=request, memory=memory,
        cost=plan_cost(request, graph, schedule, colocate, memory.ranks), chosen={},
    )  # fmt: skip


def request_of(
    program: Program,
    graph: Graph,
    colocate: tuple[str, ...],
    reporter: Reporter,
    host: Host | None,
    base_dir: Path | None,
) -> Request:
    """Return the placed meshes, and the dimensions of their models."""
    resolved = resolve_host(program, host)
    decls = {name: program.services[name] for name in graph.services}
    own = [decl for name, decl in decls.items() if not is_tenant(program, name)]
    meshes = tuple(plan_mesh(decl, reporter) for decl in own)
    models = {name: program.models[model_of(decl)] for name, decl in decls.items()}
    dims = {name: dims_of(model, base_dir) for name, model in models.items()}
    contexts = {name: _context(model, dims[name]) for name, model in models.items()}

    def fits(names: tuple[str, ...]) -> str:
        """Return the use of the fullest GPU if these services shared theirs, "61.2 of 80 GiB"; ""
        if it does not fit or is unknown."""
        problems = Reporter()
        shared = request_of(program, graph, names, problems, host, base_dir)
        if problems.has_errors:
            return ""
        gpus = [s for s in plan_memory(shared).stores if s.kind == "gpu"]
        worst = max(gpus, key=lambda s: s.share, default=None)
        if worst is None or worst.share > 1:  # the memory of a model of unknown size is unknown
            return ""
        full = f"{worst.bytes / GIB:.1f} of {worst.capacity / GIB:.0f} GiB"
        is_async = program.schedule is not None and program.schedule.label == "async"
        turns = is_async and len(checks.concurrent_sharers(graph, names)) > 1
        return f"{full}, with `schedule sync`" if turns else full

    advice = Advice(host_name=_host_name(program, resolved), fits=fits)
    spread = launcher_of(program).max_hosts is None
    request = Request(
        program=program,
        meshes=place(meshes, decls, resolved, colocate, reporter, advice, spread=spread),
        host=resolved,
        dims=dims,
        contexts=contexts,
        rows={d.name: _rows(d, contexts[d.name]) for d in own if kind_of(d.ctor).trains},
        trainer=graph.trainer,
        syncs=tuple(graph.syncs),
        detected=host,
        base_dir=base_dir,
    )
    if len(own) < len(decls):
        request = tenants.with_ranks(request, decls, base_dir)
    return replace(request, held=held_bytes(request, graph), played=played(program, graph))


def _host_name(program: Program, host: Host) -> str:
    gpu = program.singletons["cluster"].settings["gpu"]
    if gpu.origin.layer != "default" and gpu.value is not None:
        return f'host "{gpu.value.lower()}"'
    return "this host" if host.said == "this host" else "the host"


def advice(program: Program, graph: Graph, plan: Plan) -> list[Diagnostic]:
    """Return warnings about speed: P211 kv-starved, which only `plan` reports, and A307
    bottleneck."""
    wanted: dict[str, int] = {}
    longest: dict[str, int] = {}
    for node in graph.having(Role.SAMPLES):
        each = min(2, int(node.settings["n"]))
        engine = engine_of(plan.request.program, node.target)
        wanted[engine] = wanted.get(engine, 0) + each * plan.slots[node.name]
        tokens = sum(lengths(plan.request, graph, node))
        longest[engine] = max(longest.get(engine, 0), tokens)
    found = check_pools(plan.request, plan.memory, wanted, longest)
    return found + check_bottleneck(plan.request.program, plan.cost)


def _checks(
    request: Request,
    graph: Graph,
    colocate: tuple[str, ...],
    schedule: SchedulePlan | None,
    base_dir: Path | None,
) -> list[Diagnostic]:
    """Return the findings of all checks that precede the memory plan."""
    program = request.program
    models = dict.fromkeys(model_of(program.services[name]) for name in request.contexts)
    found = [d for name in models for d in check_family(program.models[name], base_dir)]
    found += _adapters(request, models, base_dir)
    contexts = {
        model_of(program.services[name]): context for name, context in request.contexts.items()
    }
    seq_len = request.rows[graph.trainer][1]
    found += checks.check_names(program, request.meshes)
    found += check_support(request, graph) + checks.check_learning(program, graph)
    found += checks.check_launcher(program, request.meshes) + checks.check_threads(request)
    found += check_router_replay(program, graph, request.dims)
    found += checks.check_evals(program, graph) + check_pairs(request, graph)
    found += checks.check_transports(request, graph)
    found += checks.check_context(program, graph, contexts, seq_len)
    found += checks.check_rows_in_context(request, found)
    found += checks.check_judges(request, graph)
    found += check_environments(program, graph, contexts, seq_len)
    found += check_tools(program, graph, base_dir)
    if schedule is not None:
        found += checks.check_colocation(program, graph, colocate, schedule.mode)
    for name in request.tenant_ranks:
        if kind_of(program.services[name].ctor).samples:
            found += checks.check_sampling(program.services[name])
    for mesh in request.meshes:
        name = mesh.service
        decl = program.services[name]
        model = program.models[model_of(decl)]
        uneven = checks.check_divisibility(decl, mesh, request.dims[name], model)
        found += uneven
        dtype = str(value(decl, "dtype") or model.settings["dtype"].value)
        if kind_of(mesh.kind).samples:
            found += checks.check_sampling(decl)
            found += checks.check_fp8_weights(decl, dtype) if mesh.device == "gpu" else []
        if name in request.rows:
            found += checks.check_batch(decl) + checks.check_adapters(decl)
            found += checks.check_stored_weights(decl, mesh, dtype)
            found += kind_of(decl.ctor).check(decl, trained=name == graph.trainer)
        if name in request.rows and not uneven:
            found += checks.check_sequence_shard(decl, mesh, request.rows[name][1])
    return found


def _adapters(
    request: Request, models: Mapping[str, None], base_dir: Path | None
) -> list[Diagnostic]:
    """Yield the findings about adapters of these models, and about syncs that send one."""
    program = request.program
    adapted = [n for n in models if program.models[n].settings["adapter"].value is not None]
    sends = any(sync.settings.get("weights") == "adapter" for sync in request.syncs)
    if not adapted and not sends:
        return []
    from forgedsl.plan import adapters  # few programs have one

    found = [d for n in adapted for d in adapters.check_adapter(program.models[n], base_dir)]
    return found + (adapters.check_published_adapters(request, base_dir) if sends else [])


def _report(reporter: Reporter, found: list[Diagnostic], start: int) -> bool:
    """Report findings; True if no error has been reported since `start`."""
    for diagnostic in found:
        reporter.report(diagnostic)
    return all(d.severity != "error" for d in reporter.diagnostics[start:])


def _colocate(program: Program, graph: Graph) -> tuple[str, ...]:
    listed: list[Ref] = program.singletons["colocate"].settings["value"].value
    return tuple(item.name for item in listed if item.name in graph.services)


def _context(model: Decl, dims: Dims | None) -> int | None:
    declared = model.settings["context"].value
    if isinstance(declared, int):
        return declared
    return dims.context if dims is not None and dims.context else None


def _rows(decl: Decl, context: int | None) -> tuple[int, int]:
    """Return (rows, tokens of a row): as set, else as many rows as fit into `MICROBATCH_TOKENS`."""
    seq_len = number(decl, "batch.seq_len", context or UNKNOWN_CONTEXT)
    tokens = number(decl, "batch.tokens", MICROBATCH_TOKENS)
    return number(decl, "batch.rows", max(1, tokens // seq_len)), seq_len
