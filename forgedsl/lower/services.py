"""Services of a plan -> those of a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forgedsl import extensions
from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Decl, Program, model_of
from forgedsl.lower import job
from forgedsl.plan.meshes import MeshPlan, number, value
from forgedsl.plan.optimizers import momentum, nesterov
from forgedsl.plan.plan import Plan


def lower_services(program: Program, graph: Graph, plan: Plan) -> dict[str, job.Service]:
    """Every live service, with its mesh."""
    found: dict[str, job.Service] = {}
    for name in graph.services:
        decl, mesh = program.services[name], plan.mesh(name)
        dtype = str(value(decl, "dtype") or program.models[model_of(decl)].settings["dtype"].value)
        rows = (*LOWERED, *extensions.added("LOWERED", tuple))
        make = next(make for kind, make in rows if kind == decl.ctor)
        found[name] = make(decl, mesh, plan, dtype, stepped=name == graph.trainer)
    return found


def lower_mesh(mesh: MeshPlan) -> job.Mesh:
    return job.Mesh(
        name=mesh.name,
        hosts=mesh.hosts,
        procs=mesh.procs,
        gpus=mesh.gpus,
        cpus=mesh.cpus,
        device="gpu" if mesh.device == "gpu" else "cpu",
        replicas=mesh.replicas,
        places=tuple(
            job.Place(replica=p.replica, host=p.host, gpus=p.gpus)
            for p in mesh.places
            if any(place.gpus or place.host for place in mesh.places)
        ),
    )


def _titan(
    decl: Decl, mesh: MeshPlan, plan: Plan, dtype: str, *, stepped: bool
) -> job.TitanService:
    rows = plan.rows[decl.name]
    accumulate = value(decl, "batch.accumulate")
    return job.TitanService(
        model=model_of(decl),
        mesh=lower_mesh(mesh),
        dtype=dtype,  # type: ignore[arg-type]  # the schema admits only these words
        temperature=_plain(decl, "temperature"),
        parallel=job.TitanParallel(**mesh.degrees, ep=number(decl, "parallel.ep", 1)),
        optimizer=_optimizer(decl) if stepped else None,
        lora=_lora(decl) if stepped else None,
        value_head=decl.head,
        batch=job.BatchShape(
            seq_len=rows.seq_len,
            rows=rows.rows,
            pack=_plain(decl, "batch.pack"),
            accumulate=accumulate if isinstance(accumulate, int) else None,
        ),
        activation_checkpoint=_plain(decl, "memory.activation_checkpoint"),
        offload=_plain(decl, "memory.offload"),
        compile=bool(value(decl, "compile", mesh.device == "gpu")),
    )


def _lora(decl: Decl) -> job.Lora | None:
    rank = number(decl, "lora.rank", 0)
    return None if not rank else job.Lora(rank=rank, alpha=_plain(decl, "lora.alpha"))


def _optimizer(decl: Decl) -> job.Optimizer:
    names = job.Optimizer.model_fields
    given = {name: _plain(decl, f"optimizer.{name}") for name in names}
    return job.Optimizer(**given | {"momentum": momentum(decl), "nesterov": nesterov(decl)})


def _vllm(decl: Decl, mesh: MeshPlan, plan: Plan, dtype: str, *, stepped: bool) -> job.VllmService:
    prefix = "engine.extra."
    extra: dict[str, Any] = {}
    for key in (key for key in decl.settings if key.startswith(prefix)):
        *blocks, name = key.removeprefix(prefix).split(".")
        place = extra
        for block in blocks:
            place = place.setdefault(block, {})
        place[name] = decl.settings[key].value
    return job.VllmService(
        model=model_of(decl),
        mesh=lower_mesh(mesh),
        dtype=dtype,  # type: ignore[arg-type]  # the schema admits only these words
        parallel=job.VllmParallel(**mesh.degrees),
        sampling=lower_sampling(decl),
        route=_plain(decl, "route"),
        gpu_memory=_gpu_memory(decl, mesh, plan),
        prefix_caching=_plain(decl, "engine.prefix_caching"),
        cuda_graphs=mesh.device == "gpu" and _plain(decl, "engine.cuda_graphs"),
        max_running=_plain(decl, "engine.max_running"),
        kv_dtype=_plain(decl, "engine.kv_dtype"),
        extra=extra,
    )


def _gpu_memory(decl: Decl, mesh: MeshPlan, plan: Plan) -> float | None:
    """The part of its GPU that an engine takes: as planned, None on a CPU."""
    rank = plan.memory.rank(decl.name)
    if rank is not None:
        return rank.fraction
    return _plain(decl, "engine.gpu_memory") if mesh.device == "gpu" else None


def lower_sampling(decl: Decl) -> job.Sampling:
    """`sampling { ... }` of a generator."""
    names = job.Sampling.model_fields
    given = {name: _plain(decl, f"sampling.{name}") for name in names}
    given["stop"] = tuple(given["stop"] or ())
    given["max_tokens"] = given["max_tokens"] or 1  # what judges only samples nothing
    return job.Sampling(**given)


def _plain(decl: Decl, key: str) -> Any:
    """A setting as the job has it: None where the runtime derives it."""
    return value(decl, key)


Lower = Callable[..., job.Service]
LOWERED: tuple[tuple[str, Lower], ...] = (("titan", _titan), ("vllm", _vllm))
"""how each kind is lowered: (decl, mesh, plan, dtype, stepped) -> service of a job"""
