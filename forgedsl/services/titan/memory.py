"""Memory of one rank of a torchtitan service, per phase of a step, item by item.

    shape of a rank -> items (name, bytes, formula with its numbers) per phase

The formulas describe the components that run: torchtitan with FSDP and float32 master weights, and
the loss head in chunks. The tensors that a layer keeps for its backward pass were counted one by
one (`compiler_tests/passes/test_memory_model.py` counts them again); those of compiled layers were
measured on an H200 (docs/benchmarks.md). Phases of a step: rollout (sampling, log-probs of frozen
models), sync (weights are sent), train (the optimizer step). Allocators do not return freed memory
to the system; idle phases have an item for it. While training, CUDA's caching allocator also holds
blocks that fit no tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from forgedsl.families.base import Dims
from forgedsl.ir.graph import losses_of
from forgedsl.ir.program import Program
from forgedsl.records import dataclass, replace
from forgedsl.services.titan.optimizers import momentum
from forgedsl.sizes.experts import (
    compiled_mlp_bytes,
    expert_params,
    gathered,
    gathered_tokens,
    largest_tensor,
    mlp_bytes,
)
from forgedsl.sizes.memory import (
    Item,
    Phase,
    RankMemory,
    Request,
    count_text,
    item_of,
    itemsize,
    kept_item,
    phase_of,
)
from forgedsl.sizes.meshes import MeshPlan, number, transport_of, value
from forgedsl.sizes.optimizers import moment_bytes
from forgedsl.sizes.params import (
    PRECISIONS,
    adapter_params,
    dense_layer,
    kv_width,
    layer_matrices,
    layers_of_stage,
    num_params,
    over_layers,
    query_width,
    repeated,
    stage_layers,
    stage_params,
    vocab_params,
)
from forgedsl.transports import ON_GPUS

HEAD_ELEMENTS = {"cpu": 1 << 22, "gpu": 1 << 29}
"""maximum number of logits in a chunk of the loss head; equal to that of
runtime/forgedsl_runtime/losses/head.py"""
HEAD_MIN_ROWS = 64
FREED_KEPT = {"cpu": 0.7, "gpu": 1.0}
"""fraction of freed memory that the allocator keeps: glibc (measured), CUDA caching allocator"""
UNUSED_BLOCKS = 0.3
"""memory that CUDA's caching allocator holds without using it while a rank trains, as a fraction of
what a microbatch needs (measured: 0.15 to 0.46)"""
FRAGMENTED = {"cpu": 0.5, "gpu": 0.0}
"""further fraction of a frozen model's working set that the allocator keeps: its calls differ in
size, so that memory freed by one does not fit the next (measured: 0.0 to 1.2)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerShape:
    """The facts that the memory of a torchtitan rank depends on."""

    dims: Dims
    device: str
    degrees: Mapping[str, int]
    itemsize: int
    trained: bool
    checkpointing: str
    seq_len: int
    rows: int
    precision: str = "f32"
    offload: bool = False
    compiled: bool = False
    """True if layers are compiled"""
    fused: bool = False
    """True if the loss runs as generated kernels"""
    keeps_weights: bool = False
    """True if gathered weights are kept until the last microbatch of an update"""
    adapters: int | None = None
    """number of LoRA parameters, which are trained instead of the weights"""
    ep: int = 1
    """expert parallelism: number of ranks that share the experts"""
    optimizer: str = "adamw"
    momentum: float = 0.0
    published: int
    """bytes per parameter of the weights published for generators; 0: none are published"""
    adapter_alone: bool = False
    """True if the adapter is published without the weights"""
    on_gpus: bool = False
    """True if each rank's GPU keeps a shard of the published weights; else they are in host
    memory"""
    stage: int = 0
    """index of the pipeline stage"""

    @property
    def params(self) -> int:
        """Number of parameters of the model, or of this pipeline stage."""
        pp = self.degrees["pp"]
        return num_params(self.dims) if pp == 1 else stage_params(self.dims, self.stage, pp)

    @property
    def num_published(self) -> int:
        """Number of parameters of a publication; of this pipeline stage's share."""
        if not self.adapter_alone:
            return self.params
        return (self.adapters or 0) * self.layers // self.dims.layers

    @property
    def is_last(self) -> bool:
        return self.stage == self.degrees["pp"] - 1

    @property
    def in_flight(self) -> int:
        """Maximum number of microbatches between their forward and backward passes."""
        return self.degrees["pp"] - self.stage

    @property
    def shard(self) -> int:
        """Number of ranks over which one copy of the parameters is sharded."""
        d = self.degrees
        return d["dp_shard"] * d["cp"] * d["tp"]

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch on this rank."""
        return self.rows * self.seq_len // self.degrees["cp"]

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return the memory that a rank holds in each phase of a step."""
        return titan_phases(self)

    @property
    def layers(self) -> int:
        return len(self.own_layers)

    @property
    def own_layers(self) -> range:
        """The layers of this pipeline stage, counted from 0."""
        return layers_of_stage(self.dims, self.stage, self.degrees["pp"])

    @property
    def layers_with_experts(self) -> int:
        """Number of layers of this stage that have experts."""
        return sum(self.dims.has_experts(layer) for layer in self.own_layers)


def layer_bytes(shape: TrainerShape, checkpointing: str) -> float:
    """Return the bytes per token that a layer keeps for its backward pass, rotary tables included;
    in a model with two kinds of layers, one with experts.

    Without checkpointing, norms and rotary embeddings keep float32 (4 bytes), matrix products the
    dtype of the model. A compiled layer keeps everything in the dtype of the model: inputs of norms
    and of matrix products, queries and keys before and after rotation, values, and the output of
    attention.
    """
    h, f = shape.dims.hidden, shape.dims.ffn
    q, kv, b = query_width(shape.dims), kv_width(shape.dims), shape.itemsize
    cp = shape.degrees["cp"]
    if checkpointing == "full":
        total = b * h
    elif checkpointing == "selective":
        experts = (b + 8) * shape.dims.active  # experts are recomputed, shared ones are not
        experts += b * shape.dims.shared * f if shape.dims.shared else -b * h
        total = b * (2 * h + q + 2 * kv) + (experts if shape.dims.experts else b * f)
    elif shape.compiled and shape.device == "gpu":
        rotated = q + kv if shape.dims.qk_norm else 0
        total = b * (4 * h + 2 * q + 2 * kv + rotated) + compiled_mlp_bytes(shape.dims, b)
    else:
        total = 4 * (4 * h + 2 * q + 2 * kv) + b * (2 * h + 2 * q + 2 * kv)
        total += mlp_bytes(shape.dims, b)
        if shape.device == "cpu":  # SDPA keeps the attention mask in float, one row per token
            total += b * shape.seq_len * cp
    if cp > 1:  # received tensors are kept besides the sent ones
        sent_kv = kv * repeated(shape.dims, shape.degrees)
        kept = {"none": q + 4 * sent_kv - 2 * kv, "selective": 2 * q + 2 * sent_kv, "full": 0}
        total += b * kept[checkpointing]
    return total / shape.degrees["tp"] + 4 * shape.dims.rotated_dim


def stage_bytes(shape: TrainerShape, checkpointing: str) -> float:
    """Return the bytes per token that all layers of the stage keep for their backward pass."""
    return sum(count * layer_bytes(kind, checkpointing) for kind, count in _kinds(shape))


def largest_layer_bytes(shape: TrainerShape) -> float:
    """Return the bytes per token of the largest layer of the stage, without checkpointing."""
    return max(layer_bytes(kind, "none") for kind, count in _kinds(shape) if count)


def _kinds(shape: TrainerShape) -> list[tuple[TrainerShape, int]]:
    """Return the shapes of the kinds of layers of the stage, and their numbers."""
    if not shape.dims.dense_first:
        return [(shape, shape.layers)]
    experts = sum(shape.dims.has_experts(layer) for layer in shape.own_layers)
    dense = replace(shape, dims=dense_layer(shape.dims))
    return [(shape, experts), (dense, shape.layers - experts)]


def head_rows(shape: TrainerShape) -> int:
    """Return the number of tokens whose logits are computed at once."""
    chunk = max(HEAD_MIN_ROWS, HEAD_ELEMENTS[shape.device] // shape.dims.vocab)
    return min(shape.tokens, chunk)


def activation_items(shape: TrainerShape) -> tuple[Item, ...]:
    """Return the memory that forward and backward of one microbatch add."""
    dims, tokens, mode = shape.dims, shape.tokens, shape.checkpointing
    per_layer = stage_bytes(shape, mode) / shape.layers
    times, batches = shape.in_flight, ""
    kept = times * tokens * (per_layer * shape.layers + 8 * dims.hidden)
    if times > 1:
        batches = f"{times} microbatches x "
    items = [
        item_of(
            "activations" if mode == "none" else f"activations ({mode})",
            kept,
            f"{batches}{tokens:,} tokens x {shape.layers} layers x {per_layer:,.0f} B",
        )
    ]
    if mode != "none":
        whole = largest_layer_bytes(shape)
        items.append(
            item_of("recomputed layer", tokens * whole, f"{tokens:,} tokens x {whole:,.0f} B")
        )
    items += _gathered_tokens(shape)
    if shape.device == "cpu":  # attention on GPUs uses sequence boundaries, no mask
        mask = shape.rows * shape.seq_len**2
        items.append(item_of("attention mask", mask, f"{shape.rows} rows x {shape.seq_len}^2"))
    return (*items, _head_item(shape)) if shape.is_last else tuple(items)


def _gathered_tokens(shape: TrainerShape) -> list[Item]:
    """Return the item of the tokens of all ranks that share experts, during one layer."""
    if not shape.layers_with_experts:
        return []
    tokens = shape.tokens // shape.degrees["tp"]
    size = gathered_tokens(shape.dims, tokens, shape.ep, shape.itemsize)
    formula = f"{shape.ep} x {tokens:,} tokens x {shape.itemsize} x {shape.dims.hidden:,}"
    return [item_of("tokens for experts", size, formula)] if size else []


def _head_item(shape: TrainerShape) -> Item:
    """Return the item of the loss head: logits, softmax and gradient of one chunk, and the
    gradients of its weight and of the hidden states. Generated kernels overwrite logits by their
    gradient."""
    dims, rows = shape.dims, head_rows(shape)
    vocab = dims.vocab // shape.degrees["tp"]
    chunk = rows * vocab * (4 if shape.fused else 8 if shape.itemsize == 4 else 10)
    weight = 4 * vocab * dims.hidden * (1 if shape.itemsize == 4 or shape.device == "gpu" else 2)
    # ranks of context parallelism exchange whole sequences if the loss reads them
    hidden = 2 * max(shape.tokens, shape.seq_len) * dims.hidden * shape.itemsize
    formula = f"{rows:,} x {vocab:,} logits at once, d weight"
    return item_of("loss head", chunk + weight + hidden, formula)


def titan_phases(shape: TrainerShape) -> tuple[Phase, ...]:
    """Return the three phases of a rank."""
    return _trainer_phases(shape) if shape.trained else _frozen_phases(shape)


def _trainer_phases(shape: TrainerShape) -> tuple[Phase, ...]:
    *kept, gradients = state_items(shape)
    resident = [] if shape.offload else kept
    if shape.published and (shape.device == "cpu" or shape.on_gpus):
        ranks = shape.degrees["dp_replicate"] * shape.shard if shape.on_gpus else 1
        size = 2 * shape.published * shape.num_published / ranks
        formula = f"2 buffers x {shape.published} x {count_text(shape.num_published)}"
        formula += f" / {ranks}" * (ranks > 1) + ", shared memory" * (shape.device == "cpu")
        resident.append(item_of("published weights", size, formula))
    working = [*([] if shape.offload else [gradients]), _gathered(shape), *_added_gradients(shape)]
    if shape.device == "cpu" and shape.precision == "bf16_moments":
        size = 2 * next(item.bytes for item in kept if "moments" in item.name)
        working.append(item_of("moments f32", size, "on a CPU, AdamW computes in f32"))
    working += activation_items(shape)
    if shape.device == "gpu":
        needed = sum(item.bytes for item in working if "gradients" not in item.name)
        unused = UNUSED_BLOCKS * needed
        working.append(item_of("unused blocks", unused, "of the CUDA allocator"))
    freed = FREED_KEPT[shape.device] * sum(item.bytes for item in working)
    unit = largest_tensor(shape.dims)
    copy = shape.published * unit if shape.shard > 1 else 0
    formula = f"{shape.published} x {count_text(unit)} of the largest tensor"
    sync = [item_of("gathered tensor", copy, formula)]
    if shape.adapter_alone:
        adapter = 4 * shape.num_published
        sync.append(item_of("gathered adapter", adapter, f"4 x {count_text(shape.num_published)}"))
    elif shape.adapters is not None and shape.published:
        sync.append(replace(kept[0], name=kept[0].name.replace("weights", "merged weights")))
    return (
        phase_of("rollout", resident, [kept_item(freed, shape.device)]),
        phase_of("sync", resident, sync, [kept_item(freed - copy, shape.device)]),
        phase_of("train", resident, working),
    )


def state_items(shape: TrainerShape) -> list[Item]:
    """Return the memory of a rank's state: parameters, optimizer and, as the last item,
    gradients."""
    dtype = {"f32": "f32", "bf16_moments": "f32", "bf16": "bf16"}[shape.precision]
    weight, _, gradient = PRECISIONS[shape.precision]
    total = shape.params
    learnt = total if shape.adapters is None else shape.adapters * shape.layers // shape.dims.layers

    def item(name: str, size: int, count: int) -> Item:
        share = f" / {shape.shard}" if shape.shard > 1 else ""
        return item_of(name, size * count / shape.shard, f"{size} x {count_text(count)}{share}")

    adapters = [item(f"adapters {dtype}", weight, learnt)] if shape.adapters is not None else []
    return [
        item(f"weights {dtype}", weight, total),
        *_moments(shape, learnt),
        *adapters,
        item(f"gradients {dtype}", gradient, learnt),
    ]


def _moments(shape: TrainerShape, learnt: int) -> list[Item]:
    """Return the optimizer state of `learnt` parameters on this rank."""
    matrices = learnt
    if shape.adapters is None:
        matrices = over_layers(shape.dims, layer_matrices, shape.own_layers)
    size = moment_bytes(shape.optimizer, shape.precision, momentum=shape.momentum, params=learnt,
                        matrices=matrices)  # fmt: skip
    if not size:
        return []
    dtype = "f32" if shape.precision == "f32" else "bf16"
    name = {"muon": "momentum, AdamW moments", "sgd": "momentum"}.get(shape.optimizer)
    each = f"{size / learnt:.3g} x {count_text(learnt)}"
    share = f" / {shape.shard}" if shape.shard > 1 else ""
    return [item_of(f"{name or 'AdamW moments'} {dtype}", size / shape.shard, each + share)]


def offloaded(shape: TrainerShape) -> int:
    """Return the bytes of a rank that are offloaded to the host's memory."""
    if not shape.offload:
        return 0
    if not shape.trained:
        return round(shape.itemsize * shape.params / shape.shard)
    return sum(item.bytes for item in state_items(shape))


def _frozen_phases(shape: TrainerShape) -> tuple[Phase, ...]:
    total = shape.params
    of = f"{count_text(total)}" + (f" / {shape.shard}" if shape.shard > 1 else "")
    size = 0 if shape.offload else shape.itemsize * total / shape.shard
    resident = [item_of("weights", size, f"{shape.itemsize} x {of}")]
    whole = largest_layer_bytes(shape)
    formula = f"{shape.tokens:,} tokens x {whole:,.0f} B"
    rows = head_rows(shape)
    vocab = shape.dims.vocab // shape.degrees["tp"]
    copied = 4 * vocab_params(shape.dims) if shape.itemsize < 4 and shape.device == "cpu" else 0
    working = [
        _gathered(shape),
        item_of("forward of a layer", shape.tokens * whole, formula),
        *_gathered_tokens(shape),
    ]
    if shape.is_last:
        formula = f"12 x {rows:,} x {vocab:,} logits"
        working.append(item_of("log-prob head", 12 * rows * vocab + copied, formula))
    size = sum(item.bytes for item in working)
    split = FRAGMENTED[shape.device] * size
    kept = [kept_item((1.0 if split else FREED_KEPT[shape.device]) * size + split, shape.device)]
    return (
        phase_of("rollout", resident, working, [kept_item(split, shape.device)]),
        phase_of("sync", resident, kept),
        phase_of("train", resident, kept),
    )


def _gathered(shape: TrainerShape) -> Item:
    """Return the memory of parameters that FSDP has gathered: the unit in use and the next one, and
    the gradient of one, which a GPU reduces in f32. A pipeline stage keeps all its parameters
    gathered until its last microbatch, with gradients in f32."""
    if shape.degrees["pp"] > 1:
        size = shape.itemsize + 4 * shape.trained
        count = whole_params(shape) // shape.degrees["tp"]
        return item_of("gathered by FSDP", size * count, f"{size} x {count_text(count)}, a stage")
    whole = max(gathered(shape.dims, shape.ep), vocab_params(shape.dims))
    unit = whole // shape.degrees["tp"]
    reduced = 4 * (shape.trained and shape.device == "gpu")
    if shape.keeps_weights:
        count = whole_params(shape) // shape.degrees["tp"]
        formula = f"{shape.itemsize} x {count_text(count)} kept, 1 gradient"
        size = shape.itemsize * (count + unit) + reduced * unit
        return item_of("gathered by FSDP", size, formula)
    count = 3 if shape.trained else 2
    formula = f"{count} x {shape.itemsize} x {count_text(unit)} of the largest unit"
    on_the_way = 8 * unit / shape.shard if shape.offload else 0
    needed = (count * shape.itemsize + reduced) * unit + on_the_way
    return item_of("gathered by FSDP", needed, formula)


def whole_params(shape: TrainerShape) -> int:
    """Return the number of parameters that ranks of this stage compute with, if all are gathered:
    without the experts that expert parallelism has elsewhere."""
    experts = expert_params(shape.dims)
    return shape.params - shape.layers_with_experts * (experts - experts // shape.ep)


def added_gradients(shape: TrainerShape) -> int:
    """Return the number of gradients that add up over microbatches before FSDP reduces them: those
    of weights that are not sharded, if weights are kept."""
    if not shape.keeps_weights:
        return 0
    if shape.shard == 1:
        return shape.params if shape.adapters is None else shape.adapters
    alone = shape.ep == shape.shard and shape.adapters is None
    return shape.layers_with_experts * expert_params(shape.dims) // shape.ep if alone else 0


def sums_become_gradients(shape: TrainerShape) -> bool:
    """True if gradients that add up over microbatches need no reduction: no other rank has the
    same weights, and they stay on their device. With experts on several ranks the memory of their
    reduction still counts, because a run without it was not measured."""
    return shape.degrees["dp_replicate"] == 1 and shape.ep == 1 and not shape.offload


def _added_gradients(shape: TrainerShape) -> list[Item]:
    """Return the memory of sums of gradients over microbatches, in f32, beside the gradients that
    they become."""
    count = added_gradients(shape)
    _, _, gradient = PRECISIONS[shape.precision]
    size = 4 - gradient if sums_become_gradients(shape) else 4
    formula = f"{size} x {count_text(count)} over microbatches"
    return [item_of("added gradients f32", size * count, formula)] if size * count else []


def shape_of(request: Request, mesh: MeshPlan) -> TrainerShape:
    """Return the shape of a rank of a torchtitan service; in a pipeline, of the fullest stage."""
    decl = request.program.services[mesh.service]
    dims = request.dims[mesh.service]
    assert dims is not None
    rows, seq_len = request.rows[mesh.service]
    trained, rank = mesh.service == request.trainer, number(decl, "lora.rank", 0)
    targets = [request.program.services[name] for name in sorted(request.synced)]
    shape = TrainerShape(
        dims=dims, device=mesh.device, degrees=mesh.degrees, ep=mesh.ep,
        itemsize=itemsize(request.program, decl), trained=trained,
        checkpointing=str(value(decl, "memory.activation_checkpoint")) if trained else "none",
        seq_len=seq_len, rows=rows, precision=str(value(decl, "optimizer.precision")),
        offload=bool(value(decl, "memory.offload")),
        compiled=bool(value(decl, "compile", mesh.device == "gpu")),
        fused=mesh.device == "gpu" and not _has_python_loss(request.program),
        keeps_weights=trained and bool(value(decl, "memory.keep_weights")),
        optimizer=str(value(decl, "optimizer.kind", "adamw")), momentum=momentum(decl),
        adapters=adapter_params(dims, rank) if trained and rank else None,
        published=itemsize(request.program, targets[0]) if trained and targets else 0,
        on_gpus=publishes_on_gpus(request, mesh),
        adapter_alone=trained and request.adapter_rank(mesh.service) is not None,
    )  # fmt: skip
    if mesh.degrees["pp"] == 1:
        return shape
    stages = [replace(shape, stage=stage) for stage in range(mesh.degrees["pp"])]
    return max(stages, key=lambda each: peak(each))


def _has_python_loss(program: Program) -> bool:
    """True if a loss of the flow is a Python class: these have no generated kernels."""
    functions = (program.functions.get(name) for name in losses_of(program))
    return any(function is not None and function.python is not None for function in functions)


def publishes_on_gpus(request: Request, mesh: MeshPlan) -> bool:
    """True if the weights that a trainer publishes stay on its GPUs."""
    return mesh.device == "gpu" and any(
        transport_of(request.host, request.meshes, sync) in ON_GPUS
        for sync in request.syncs
        if sync.target == mesh.service
    )


def rank(request: Request, mesh: MeshPlan) -> RankMemory:
    """Return the memory of a rank; in a pipeline, of the fullest stage."""
    shape = shape_of(request, mesh)
    in_host = mesh.device == "gpu" and not shape.on_gpus
    note = ""
    if (pp := shape.degrees["pp"]) > 1:
        layers = " + ".join(map(str, stage_layers(shape.dims, pp)))
        note = f"layers {layers}, of stage {shape.stage + 1}"
    return RankMemory(
        service=mesh.service,
        ranks=mesh.total_procs,
        phases=shape.phases,
        rows=shape.rows,
        trained=shape.trained,
        on_host=offloaded(shape),
        published=2 * shape.published * request.num_published(mesh.service) if in_host else 0,
        note=note,
    )


def peak(shape: TrainerShape) -> int:
    """Return the bytes of a rank in its fullest phase."""
    return max(phase.bytes for phase in shape.phases)


def remedies(request: Request, mesh: MeshPlan, available: float, host: int) -> Iterator[str]:
    """Yield remedies that fit: activation checkpointing, else offload to the host, else more ranks;
    each with a single row if needed. A rank may take `available` bytes; the host has `host` bytes
    free."""
    name, shape = mesh.service, shape_of(request, mesh)
    if shape.keeps_weights:
        shape = replace(shape, keeps_weights=False)
        if peak(shape) <= available:
            yield f"`{name}.memory.keep_weights = false` fits"
            return
    if shape.checkpointing != "full":
        full = replace(shape, checkpointing="full")
        for rows in (shape.rows, 1):
            if peak(replace(full, rows=rows)) <= available:
                more = "" if rows == shape.rows else f" with `{name}.batch.rows = 1`"
                yield f"`{name}.memory.activation_checkpoint = full`{more} fits"
                return
    one = "" if shape.rows == 1 else f" and `{name}.batch.rows = 1`"
    away = replace(shape, offload=True, checkpointing="full", rows=1)
    fits = peak(away) <= available and mesh.procs * offloaded(away) <= host
    if fits and not shape.offload:
        yield f"`{name}.memory.offload = true` with full activation checkpointing{one} fits"
    for factor in (2, 4, 8, 16, 32, 64):
        degrees = {**shape.degrees, "dp_shard": factor * shape.degrees["dp_shard"]}
        wide = replace(shape, degrees=degrees, checkpointing="full", rows=1)
        if peak(wide) <= available:
            yield (
                f"{factor * mesh.world} processes (`{name}.parallel.dp_shard = "
                f"{degrees['dp_shard']}`) with full activation checkpointing{one} fit"
            )
            return
    yield "shard it over more GPUs, with tensor parallelism too"
