"""Lowers the settings and placement of a torchtitan model to its part of a job."""

from __future__ import annotations

from forgedsl.ir.program import Decl, model_of
from forgedsl.job.parts import BatchShape, Lora, Optimizer, TitanParallel
from forgedsl.services.base import PlannedService
from forgedsl.services.lowering import lower_mesh, plain
from forgedsl.services.titan.job import TitanService
from forgedsl.services.titan.optimizers import momentum, nesterov
from forgedsl.sizes.meshes import number, value


def lowered(placed: PlannedService) -> TitanService:
    """Make the job's form of a torchtitan model."""
    decl, mesh = placed.decl, placed.mesh
    accumulate = value(decl, "batch.accumulate")
    return TitanService(
        model=model_of(decl),
        mesh=lower_mesh(mesh),
        dtype=placed.dtype,  # type: ignore[arg-type]  # the schema admits only these words
        temperature=plain(decl, "temperature"),
        parallel=TitanParallel(**mesh.degrees, ep=mesh.ep),
        optimizer=_optimizer(decl) if placed.trained else None,
        lora=_lora(decl) if placed.trained else None,
        value_head=decl.head,
        batch=BatchShape(
            seq_len=placed.seq_len,
            rows=placed.rows,
            pack=plain(decl, "batch.pack"),
            accumulate=accumulate if isinstance(accumulate, int) else None,
        ),
        activation_checkpoint=plain(decl, "memory.activation_checkpoint"),
        offload=plain(decl, "memory.offload"),
        keep_weights=placed.trained and bool(value(decl, "memory.keep_weights")),
        compile=bool(value(decl, "compile", mesh.device == "gpu")),
        router_replay=placed.replays_routes,
        served_by=placed.served_by,
    )


def _lora(decl: Decl) -> Lora | None:
    rank = number(decl, "lora.rank", 0)
    return None if not rank else Lora(rank=rank, alpha=plain(decl, "lora.alpha"))


def _optimizer(decl: Decl) -> Optimizer:
    names = Optimizer.model_fields
    given = {name: plain(decl, f"optimizer.{name}") for name in names}
    return Optimizer(**given | {"momentum": momentum(decl), "nesterov": nesterov(decl)})
