"""Router replay: which trainer chooses the experts that its sampler chose, and which engines record
them (rollout routing replay, arXiv 2510.11370)."""

from __future__ import annotations

from collections.abc import Mapping

from forgedsl.diagnostics import Diagnostic, Label, error
from forgedsl.families.base import Dims
from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Decl, Program, model_of
from forgedsl.services.registry import kind_of
from forgedsl.settings import Auto
from forgedsl.sizes.meshes import written_at
from forgedsl.types.flow import Role


def could_replay(program: Program, graph: Graph, dims: Mapping[str, Dims | None]) -> Decl | None:
    """Return the trainer if its model has experts, and if an engine that gets its weights can
    record routes; else None."""
    trainer = program.services.get(graph.trainer or "")
    if trainer is None or "router_replay" not in trainer.settings:
        return None
    sizes = dims.get(trainer.name)
    return trainer if sizes is not None and sizes.experts and recording(program, graph) else None


def recording(program: Program, graph: Graph) -> tuple[str, ...]:
    """Return the services that get the trainer's weights and can record routes."""
    targets = (str(node.settings["target"]) for node in graph.having(Role.TRANSFERS))
    return tuple(
        name
        for name in dict.fromkeys(targets)
        if kind_of(program.services[name].ctor).records_routes
    )


def replays(program: Program, graph: Graph, dims: Mapping[str, Dims | None]) -> bool:
    """True if the trainer replays routes. The default is False with pipeline stages: they recompute
    a microbatch after the next one may have passed, and would use the routes of that one."""
    trainer = could_replay(program, graph, dims)
    if trainer is None:
        return False
    given = trainer.settings["router_replay"].value
    return bool(stages(trainer) == 1 if isinstance(given, Auto) else given)


def route_bytes(dims: Dims) -> int:
    """Return the bytes of the route of a token: one number for each layer and chosen expert."""
    return dims.layers * dims.active * (1 if dims.experts < 256 else 2)


def stages(trainer: Decl) -> int:
    """Return the number of stages of its pipeline."""
    found = trainer.settings["parallel.pp"].value
    return found if isinstance(found, int) else 1


def check_router_replay(
    program: Program, graph: Graph, dims: Mapping[str, Dims | None]
) -> list[Diagnostic]:
    """F113: `router_replay = true` where there are no routes to replay."""
    trainer = program.services.get(graph.trainer or "")
    given = None if trainer is None else trainer.settings.get("router_replay")
    if trainer is None or given is None or given.value is not True:
        return []
    sizes, model = dims.get(trainer.name), program.models[model_of(trainer)]
    at = written_at(trainer, "router_replay")
    if sizes is not None and not sizes.experts:
        return [
            error("F113", "bad-value", f"`router_replay` has no effect: model `{model.name}` has "
                  "no experts", at, related=(Label(text="the model", span=model.name_span),),
                  help="remove it")
        ]  # fmt: skip
    if recording(program, graph):
        return []
    return [
        error("F113", "bad-value", f"`router_replay` has no effect: no vllm service samples with "
              f"the weights of `{trainer.name}`", at, help="remove it")
    ]  # fmt: skip
