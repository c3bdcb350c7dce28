"""P204 and F113 for expert parallelism: experts that do not divide evenly, or a model without
experts."""

from __future__ import annotations

from forgedsl.diagnostics import Diagnostic, Label, error
from forgedsl.families.base import Dims
from forgedsl.ir.program import Decl
from forgedsl.sizes.experts import divides, fitting
from forgedsl.sizes.meshes import MeshPlan, written_at


def check_experts(decl: Decl, mesh: MeshPlan, dims: Dims, model: Decl) -> list[Diagnostic]:
    """P204: ranks cannot share the experts evenly. F113: the model has no experts."""
    shard, related = mesh.shard, (Label(text="the model", span=model.name_span),)
    if not dims.experts:
        return [] if mesh.ep == 1 else [
            error("F113", "bad-value", f"`parallel.ep = {mesh.ep}` has no effect: model "
                  f"`{model.name}` has no experts", written_at(decl, "parallel.ep"),
                  related=related, help="remove it")
        ]  # fmt: skip
    if "dp_shard" not in mesh.degrees:  # vLLM distributes experts itself
        return []
    if shard % mesh.ep:
        return [
            error("P204", "divisibility", f"ep = {mesh.ep} does not divide the {shard} ranks of "
                  f"`{decl.name}` that share weights (dp_shard x cp x tp)",
                  written_at(decl, "parallel.ep"), related=related,
                  help=_fit(dims, shard) or "`parallel.ep = 1`")
        ]  # fmt: skip
    if divides(dims, shard, mesh.ep):
        return []
    return [
        error("P204", "divisibility", f"{shard} ranks of `{decl.name}` (dp_shard x cp x tp) "
                                      f"cannot evenly share the {dims.experts} experts of model "
                                      f"`{model.name}`",
              written_at(decl, "parallel.ep"), related=related,
              help=_fit(dims, shard) or f"use a number of ranks that divides {dims.experts}; "
                                        "`parallel.dp_replicate` can use the other ranks")
    ]  # fmt: skip


def _fit(dims: Dims, shard: int) -> str:
    found = fitting(dims, shard)
    return f"set ep to one of {', '.join(map(str, found))}" if found else ""
