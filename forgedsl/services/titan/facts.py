"""Service `titan`: a torchtitan model, trained if the flow steps it, else frozen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from forgedsl.diagnostics import Diagnostic
from forgedsl.families.base import Dims
from forgedsl.ir.program import Decl
from forgedsl.records import replace
from forgedsl.services.base import (
    BATCH,
    COMMON,
    GIB,
    NUM,
    OPTIONAL_COUNT,
    PLACE,
    TEMPERATURE,
    Capability,
    Placed,
    ServiceKind,
    TrainingCost,
    row,
)
from forgedsl.services.titan.optimizers import READS, check_optimizer, checkpoint_of
from forgedsl.settings import AUTO, BOOL, COUNT, NATURAL, POSITIVE, SOME, Kind, Limit, Type, word
from forgedsl.sizes.memory import RankMemory, Request
from forgedsl.sizes.meshes import MeshPlan
from forgedsl.sizes.params import PRECISIONS
from forgedsl.types.flow import Role

if TYPE_CHECKING:
    from forgedsl.job.parts import Service

_RECOMPUTED = replace(word("none", "selective", "full"), auto=True)
_BETA = Type(base="float", minimum=0.0, below=1.0)


SCHEMA = Kind(
    name="service",
    doc="a torchtitan model: trained where the flow steps it, else frozen",
    support=(
        Limit(setting="dtype", words=("f16",), instead="`bf16` has the range that gradients need, "
              "with as many bytes; an engine may have `dtype = f16`"),
        Limit(setting="parallel.tp", beside="parallel.pp",
              instead="`parallel.dp_shard` spreads the weights of each stage over ranks"),
        Limit(setting="memory.offload", most=0, beside="parallel.pp",
              instead="more stages: each keeps the weights and moments of its layers alone"),
        Limit(setting="parallel.tp", head=True,
              instead="`parallel.dp_shard` spreads the weights over ranks"),
        Limit(setting="batch.accumulate", role=Role.SUPERVISED,
              instead="a step takes all groups drawn for it, in microbatches of `batch.rows`"),
    ),
    settings=(
        *COMMON,
        row("procs", replace(COUNT, auto=True), 1, PLACE, "processes per host"),
        TEMPERATURE,
        row("compile", replace(BOOL, auto=True), AUTO, PLACE, "torch.compile the model"),
        row("parallel.dp_shard", replace(COUNT, auto=True), AUTO, PLACE,
             "sharded data parallel; auto is hosts x procs over the others"),
        row("parallel.dp_replicate", COUNT, 1, PLACE, "replicated data parallel"),
        row("parallel.tp", replace(COUNT, auto=True), 1, PLACE, "tensor parallel"),
        row("parallel.cp", replace(COUNT, auto=True), 1, PLACE,
             "context parallel: so many ranks share each row, in attention its heads"),
        row("parallel.pp", COUNT, 1, PLACE,
             "pipeline parallel: each process has some of the layers"),
        row("parallel.ep", replace(COUNT, auto=True), 1, PLACE,
             "expert parallel: so many of the ranks that share weights (dp_shard x cp x tp) share "
             "experts, and tokens travel to them"),
        row("optimizer.kind", word(*READS), "adamw", NUM,
             "optimizer; muon steps the matrices of the layers, and adamw beside it the rest"),
        row("optimizer.lr", replace(POSITIVE, usual=(1e-10, 0.1)), 1e-6, NUM, "learning rate"),
        row("optimizer.betas", Type(base="list", item=_BETA, size=2), [0.9, 0.95], NUM,
             "decay of the moments"),
        row("optimizer.eps", replace(POSITIVE, usual=(0.0, 1e-2)), 1e-8, NUM,
             "added to the denominator"),
        row("optimizer.weight_decay", replace(POSITIVE, usual=(0.0, 1.0)), 0.1, NUM,
             "weight decay"),
        row("optimizer.momentum", replace(_BETA, auto=True), AUTO, NUM,
             "decay of the momentum, of muon and sgd; auto is 0.95 and 0"),
        row("optimizer.nesterov", replace(BOOL, auto=True), AUTO, NUM,
             "look one step of momentum ahead, of muon and sgd; auto is true and false"),
        row("optimizer.ns_steps", replace(COUNT, maximum=99), 5, NUM,
             "steps of muon's Newton-Schulz iteration"),
        row("optimizer.adjust_lr", word("match_rms_adamw", "original"), "match_rms_adamw", NUM,
             "how muon's rate follows the shape of a matrix: as large as a step of adamw, or as in "
             "the first Muon"),
        row("optimizer.warmup", NATURAL, 0, NUM, "steps of linear warm-up"),
        row("optimizer.decay", word("none", "linear", "cosine"), "none", NUM,
             "decay of the learning rate"),
        row("optimizer.max_norm", POSITIVE, 1.0, NUM, "gradients are clipped to it"),
        row("optimizer.on_nan", word("stop", "skip"), "stop", NUM,
             "what a non-finite gradient does"),
        row("optimizer.precision", word(*PRECISIONS), "f32", NUM,
             "what is kept of a weight: all in f32; the moments in bf16; or weight, gradient and "
             "moments in bf16, where a change of less than 0.4 % of a weight is lost"),
        row("lora.rank", replace(OPTIONAL_COUNT, usual=(1, 2048)), None, NUM,
             "train adapters of this rank on every linear layer instead of the weights"),
        row("lora.alpha", SOME, 32.0, NUM, "adapters are scaled by alpha / rank"),
        *BATCH,
        row("memory.activation_checkpoint", _RECOMPUTED, "none", PLACE,
             "recompute activations in the backward pass"),
        row("memory.offload", BOOL, False, PLACE,
             "weights, gradients and moments stay in the host's memory, where the optimizer steps; "
             "a GPU has the layers in use"),
    ),
)  # fmt: skip


class Titan(ServiceKind):
    def job(self) -> type[Service]:
        from forgedsl.services.titan.job import TitanService

        return TitanService

    def lowered(self, placed: Placed) -> Service:
        from forgedsl.services.titan.lowering import lowered

        return lowered(placed)

    def rank(
        self, request: Request, mesh: MeshPlan, others: Mapping[str, RankMemory]
    ) -> RankMemory:
        from forgedsl.services.titan import memory

        return memory.rank(request, mesh)

    def remedies(
        self, request: Request, mesh: MeshPlan, available: float, host: int
    ) -> Iterator[str]:
        from forgedsl.services.titan import memory

        return memory.remedies(request, mesh, available, host)

    def training(
        self, request: Request, mesh: MeshPlan, dims: Dims, *, trained: bool
    ) -> TrainingCost:
        from forgedsl.services.titan import cost

        return cost.training(request, mesh, dims, trained=trained)

    def checkpoint_bytes(self, decl: Decl, dims: Dims) -> int:
        return checkpoint_of(decl, dims)

    def check(self, decl: Decl, *, trained: bool) -> list[Diagnostic]:
        return check_optimizer(decl) if trained else []


KIND = Titan(
    name="titan",
    in_python=True,
    schema=SCHEMA,
    can=frozenset({Capability.TRAINS, Capability.MEASURES, Capability.JUDGES}),
    degrees=("dp_replicate", "dp_shard", "cp", "tp", "pp"),
    spread="dp_shard",
    even=("heads", "kv_heads", "vocab"),
    process=round(0.7 * GIB),
    within="ep",
    learning=("optimizer.", "lora.", "batch.accumulate", "memory.activation_checkpoint"),
)
