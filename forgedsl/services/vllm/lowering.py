"""Lowers the settings and placement of an engine to its part of a job."""

from __future__ import annotations

from typing import Any

from forgedsl.ir.program import model_of
from forgedsl.job.parts import VllmParallel
from forgedsl.services.base import PlannedService
from forgedsl.services.lowering import lower_mesh, lower_sampling, plain
from forgedsl.services.vllm.job import VllmService
from forgedsl.sizes.meshes import value


def lowered(placed: PlannedService) -> VllmService:
    """Make the job's form of an engine."""
    decl, mesh = placed.decl, placed.mesh
    prefix = "engine.extra."
    extra: dict[str, Any] = {}
    for key in (key for key in decl.settings if key.startswith(prefix)):
        *blocks, name = key.removeprefix(prefix).split(".")
        place = extra
        for block in blocks:
            place = place.setdefault(block, {})
        place[name] = decl.settings[key].value
    return VllmService(
        model=model_of(decl),
        mesh=lower_mesh(mesh),
        dtype=placed.dtype,  # type: ignore[arg-type]  # the schema admits only these words
        parallel=VllmParallel(**mesh.degrees),
        sampling=lower_sampling(decl),
        route=plain(decl, "route"),
        served_by=placed.served_by,
        gpu_memory=_gpu_memory(placed),
        prefix_caching=plain(decl, "engine.prefix_caching"),
        cuda_graphs=mesh.device == "gpu" and plain(decl, "engine.cuda_graphs"),
        max_running=plain(decl, "engine.max_running"),
        kv_dtype=plain(decl, "engine.kv_dtype"),
        weight_dtype=plain(decl, "engine.weight_dtype"),
        adapter_rank=placed.adapter_rank,
        record_routes=placed.replays_routes,
        extra=extra,
    )


def _gpu_memory(placed: PlannedService) -> Any:
    """Return the planned fraction of its GPU's memory; None on a CPU."""
    if placed.rank is not None:
        return placed.rank.fraction
    return value(placed.decl, "engine.gpu_memory") if placed.mesh.device == "gpu" else None
