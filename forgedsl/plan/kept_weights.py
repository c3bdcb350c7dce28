"""`memory.keep_weights = auto`: gathered weights are kept on GPUs where they fit.

A trainer then gathers its weights once an update instead of for each microbatch. On H200 this took
2 % off the training of a dense model of 0.6 B parameters, and 7 to 14 % off that of a mixture of
4.2 B (docs/benchmarks.md). With `memory.offload` it took 74 % off that of the dense model, because
weights and gradients cross the bus only once an update. It takes memory, so it must not leave
another service too little.
"""

from __future__ import annotations

from forgedsl.ir.program import Decl
from forgedsl.plan.capacity import TIGHT, MemoryPlan, plan_memory, starved
from forgedsl.records import replace
from forgedsl.settings import Auto
from forgedsl.sizes.memory import Request
from forgedsl.sizes.meshes import MeshPlan

KEEP = "memory.keep_weights"
LEAST_POOL = 0.9
"""fraction of its tokens that the KV pool of an engine must keep"""


def with_kept_weights(
    request: Request, known: MemoryPlan | None = None
) -> tuple[Request, MemoryPlan]:
    """Return the request in which the trainer keeps its gathered weights, with its memory; both
    without them if the file decides itself, or they do not fit. `known` is the memory without them,
    if it was planned before."""
    services = request.program.services
    trainer, mesh = services[request.trainer], request.mesh(request.trainer)
    keeping = keeping_weights(trainer, mesh)
    if keeping is trainer:
        return request, known or plan_memory(request)
    program = replace(request.program, services={**services, request.trainer: keeping})
    kept = replace(request, program=program)
    planned = plan_memory(kept)
    if not _fits(planned, request.trainer):
        return request, known or plan_memory(request)
    if _has_pool_beside(request, planned):
        without = known or plan_memory(request)
        if _crowds(without, planned):
            return request, without
    # Larger microbatches are judged without kept weights, which give way to them.
    return kept, replace(planned, request=request)


def keeping_weights(trainer: Decl, mesh: MeshPlan) -> Decl:
    """Return the trainer with kept weights, if the plan may choose this; else as given."""
    setting = trainer.settings.get(KEEP)
    is_open = setting is not None and isinstance(setting.value, Auto)
    keeps_by_itself = mesh.degrees.get("pp", 1) > 1
    if not is_open or not mesh.gpus or keeps_by_itself:
        return trainer
    assert setting is not None
    return replace(trainer, settings={**trainer.settings, KEEP: replace(setting, value=True)})


def _fits(plan: MemoryPlan, trainer: str) -> bool:
    """True if no memory of the trainer is tight, and no engine has too small a KV pool."""
    names = [rank.service for rank in plan.ranks]
    loose = all(s.share < TIGHT for s in plan.stores if trainer in s.services)
    return loose and not starved(plan.ranks, names)


def _has_pool_beside(request: Request, plan: MemoryPlan) -> bool:
    """True if an engine has a KV pool on a GPU of the trainer."""
    own = _gpus(request.mesh(request.trainer))
    return any(rank.pool and own & _gpus(request.mesh(rank.service)) for rank in plan.ranks)


def _gpus(mesh: MeshPlan) -> set[tuple[int, int]]:
    return {(place.host, gpu) for place in mesh.places for gpu in place.gpus}


def _crowds(before: MemoryPlan, after: MemoryPlan) -> bool:
    """True if the KV pool of an engine shrinks too much."""
    pools = ((rank.pool, after.rank(rank.service)) for rank in before.ranks)
    return any(
        pool is not None
        and new is not None
        and new.pool is not None
        and new.pool.tokens < LEAST_POOL * pool.tokens
        for pool, new in pools
    )
