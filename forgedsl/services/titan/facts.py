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
    PlannedService,
    ServiceKind,
    TrainingCost,
    row,
)
from forgedsl.services.titan.optimizers import SETTINGS_BY_OPTIMIZER, check_optimizer, checkpoint_of
from forgedsl.settings import (
    AUTO,
    BOOL,
    COUNT,
    NATURAL,
    NON_NEGATIVE,
    POSITIVE,
    Kind,
    Limit,
    Type,
    word,
)
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
    doc="a torchtitan model; trained if the flow has a `step` of it, else frozen",
    support=(
        Limit(setting="dtype", words=("f16",),
              instead="use `bf16`: it has the range that gradients need, and is as small; only an "
              "engine can have `dtype = f16`"),
        Limit(setting="parallel.tp", beside="parallel.pp",
              instead="use `parallel.dp_shard` to shard the weights of each stage over ranks"),
        Limit(setting="memory.offload", most=0, beside="parallel.pp",
              instead="use more stages: each stores only the weights and moments of its layers"),
        Limit(setting="memory.keep_weights", most=0, beside="parallel.pp",
              instead="remove it: a pipeline stage keeps its gathered weights anyway"),
        Limit(setting="router_replay", most=0, beside="parallel.pp",
              instead="use `parallel.ep` or `parallel.dp_shard` instead of a pipeline"),
        Limit(setting="parallel.tp", head=True,
              instead="use `parallel.dp_shard` to shard the weights over ranks"),
        Limit(setting="batch.accumulate", role=Role.SUPERVISED,
              instead="remove it: a step takes all groups drawn for it, in microbatches of "
              "`batch.rows`"),
    ),
    settings=(
        *COMMON,
        row("procs", replace(COUNT, auto=True), 1, PLACE, "processes per host"),
        row("served_by", Type(base="ref", kinds=("service",), optional=True), None, PLACE,
            "trained service whose processes compute the log-probs of this one, with their LoRA "
            "adapters left out; none: processes of its own"),
        TEMPERATURE,
        row("compile", replace(BOOL, auto=True), AUTO, PLACE, "compile the model with "
            "torch.compile"),
        row("parallel.dp_shard", replace(COUNT, auto=True), AUTO, PLACE,
             "sharded data-parallel degree (FSDP); auto: hosts x procs divided by the other "
             "degrees"),
        row("parallel.dp_replicate", COUNT, 1, PLACE, "replicated data-parallel degree"),
        row("parallel.tp", replace(COUNT, auto=True), 1, PLACE, "tensor-parallel degree"),
        row("parallel.cp", replace(COUNT, auto=True), 1, PLACE,
             "context-parallel degree: number of ranks that split each row; in attention they "
             "split the heads"),
        row("parallel.pp", COUNT, 1, PLACE,
             "pipeline-parallel degree: number of stages that split the layers"),
        row("parallel.ep", replace(COUNT, auto=True), 1, PLACE,
             "expert-parallel degree: number of ranks, among dp_shard x cp x tp, that split the "
             "experts; tokens are sent to them"),
        row("router_replay", replace(BOOL, auto=True), AUTO, NUM,
             "choose for each token the experts that the engine chose when it sampled the token; "
             "auto: if the model has experts, a vllm service samples from it, and "
             "`parallel.pp = 1`"),
        row("optimizer.kind", word(*SETTINGS_BY_OPTIMIZER), "adamw", NUM,
             "optimizer; muon updates the matrices of the layers, and adamw all other weights"),
        row("optimizer.lr", replace(NON_NEGATIVE, usual=(1e-10, 0.1)), 1e-6, NUM, "learning rate"),
        row("optimizer.betas", Type(base="list", item=_BETA, size=2), [0.9, 0.95], NUM,
             "decay rates of the moments"),
        row("optimizer.eps", replace(NON_NEGATIVE, usual=(0.0, 1e-2)), 1e-8, NUM,
             "constant added to the denominator"),
        row("optimizer.weight_decay", replace(NON_NEGATIVE, usual=(0.0, 1.0)), 0.1, NUM,
             "weight decay"),
        row("optimizer.momentum", replace(_BETA, auto=True), AUTO, NUM,
             "momentum of muon and sgd; auto: 0.95 for muon, 0 for sgd"),
        row("optimizer.nesterov", replace(BOOL, auto=True), AUTO, NUM,
             "Nesterov momentum for muon and sgd; auto: true for muon, false for sgd"),
        row("optimizer.ns_steps", replace(COUNT, maximum=99), 5, NUM,
             "number of Newton-Schulz iterations of muon"),
        row("optimizer.adjust_lr", word("match_rms_adamw", "original"), "match_rms_adamw", NUM,
             "how muon scales its learning rate by the shape of a matrix: to the RMS of an adamw "
             "update, or as in the original Muon"),
        row("optimizer.warmup", NATURAL, 0, NUM, "updates of linear warm-up"),
        row("optimizer.decay", word("none", "linear", "cosine"), "none", NUM,
             "schedule by which the learning rate decays"),
        row("optimizer.max_norm", NON_NEGATIVE, 1.0, NUM, "maximum gradient norm; gradients are "
            "clipped to it"),
        row("optimizer.on_nan", word("stop", "skip"), "stop", NUM,
             "what to do at a non-finite gradient: stop the run, or skip the update"),
        row("optimizer.precision", word(*PRECISIONS), "f32", NUM,
             "dtypes of stored weights, gradients and moments. f32: all in f32; bf16_moments: only "
             "moments in bf16; bf16: all in bf16, where updates below 0.4 % of a weight are lost"),
        row("lora.rank", replace(OPTIONAL_COUNT, usual=(1, 2048)), None, NUM,
             "rank of LoRA adapters, which are trained on every linear layer instead of the "
             "weights"),
        row("lora.alpha", POSITIVE, 32.0, NUM, "scale of LoRA adapters: alpha / rank"),
        *BATCH,
        row("memory.activation_checkpoint", _RECOMPUTED, "none", PLACE,
             "which activations are recomputed in the backward pass"),
        row("memory.offload", BOOL, False, PLACE,
             "keep weights, gradients and moments in host memory and update there; a GPU holds "
             "only the layers in use"),
        row("memory.keep_weights", replace(BOOL, auto=True), AUTO, PLACE,
             "keep gathered weights, in the dtype of computation, until the last microbatch of an "
             "update, instead of gathering them for each one; auto: on GPUs, if they fit"),
    ),
)  # fmt: skip


class Titan(ServiceKind):
    def job(self) -> type[Service]:
        from forgedsl.services.titan.job import TitanService

        return TitanService

    def lowered(self, placed: PlannedService) -> Service:
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
    learning=(
        "optimizer.",
        "lora.",
        "batch.accumulate",
        "memory.activation_checkpoint",
        "memory.keep_weights",
        "router_replay",
    ),
)
