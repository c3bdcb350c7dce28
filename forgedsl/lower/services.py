"""Lowers the services of a plan to those of a job."""

from __future__ import annotations

from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Decl, Program, engine_of, model_of
from forgedsl.lower import job
from forgedsl.plan.plan import Plan
from forgedsl.plan.router_replay import recording, replays
from forgedsl.plan.tenants import OWN_SETTINGS
from forgedsl.records import replace
from forgedsl.services.base import PlannedService
from forgedsl.services.registry import kind_of
from forgedsl.sizes.meshes import value


def lower_services(program: Program, graph: Graph, plan: Plan) -> dict[str, job.Service]:
    """Lower every live service, with its mesh."""
    found: dict[str, job.Service] = {}
    routed: set[str] = set()
    if graph.trainer is not None and replays(program, graph, plan.request.dims):
        routed = {graph.trainer, *recording(program, graph)}
    for name in graph.services:
        decl, engine = program.services[name], engine_of(program, name)
        shape = plan.rows.get(engine)
        if engine != name:
            decl = _as_served(decl, program.services[engine])
        dtype = str(value(decl, "dtype") or program.models[model_of(decl)].settings["dtype"].value)
        placed = PlannedService(
            decl=decl, mesh=plan.mesh(name), dtype=dtype, rank=plan.memory.rank(engine),
            served_by=engine if engine != name else None,
            rows=0 if shape is None else shape.rows,
            seq_len=0 if shape is None else shape.seq_len, trained=name == graph.trainer,
            replays_routes=name in routed, adapter_rank=plan.request.adapter_rank(name),
        )  # fmt: skip
        found[name] = kind_of(decl.ctor).lowered(placed)
    return found


def _as_served(tenant: Decl, engine: Decl) -> Decl:
    """Return a tenant with the settings of the engine that serves it, except for those of its own
    log-probs."""
    own = {key: value for key, value in tenant.settings.items() if key.startswith(OWN_SETTINGS)}
    return replace(tenant, settings={**engine.settings, **own})
