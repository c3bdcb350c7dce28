"""Memory of one rank of a service, per phase of a step, item by item.

    shape of a rank -> items (name, bytes, formula with its numbers) per phase

The formulas are those of the parts that run: torchtitan with FSDP and float32 masters, the loss
head in chunks, vLLM's pool. What a layer keeps for its backward was counted tensor by tensor
(`compiler_tests/passes/test_memory_model.py` counts it again). A phase is what a rank does:
rollout (sampling, log-probs of frozen models), sync (weights travel), train (the optimizer step).
An allocator does not give back what it freed; that is an item of its own in the idle phases.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm

from forgedsl.families.base import Dims
from forgedsl.plan.optimizers import moment_bytes
from forgedsl.plan.params import (
    kv_bytes,
    kv_width,
    largest_unit,
    layer_matrices,
    num_params,
    query_width,
    stage_layers,
    stage_params,
    vocab_params,
)
from forgedsl.records import dataclass, replace
from forgedsl.services.titan import PRECISIONS

PHASES = ("rollout", "sync", "train")
GIB = 2**30

HEAD_ELEMENTS = {"cpu": 1 << 22, "gpu": 1 << 29}
"""logits of one chunk of the loss head; those of runtime/losses/head.py"""
HEAD_MIN_ROWS = 64
KEPT = {"cpu": 0.7, "gpu": 1.0}
"""part of the freed memory that stays with the process: glibc (measured), CUDA caching allocator"""
SPLIT = {"cpu": 0.5, "gpu": 0.0}
"""more of the working set of a frozen model that stays: calls for its log-probs differ in size, so
that what one freed does not fit the next (measured: 0.0 to 1.2)"""
CPU_POOL = 1 * GIB
"""KV pool of an engine on a CPU; that of runtime/services/vllm/upstream/engine.py"""
BATCHED_TOKENS = 8192
"""tokens of one engine step"""
GRAPHS = 1.5 * GIB
MAX_RUNNING = 256
PROCESS = {"reward": 0.2 * GIB, "controller": 0.5 * GIB, "environment": 0.15 * GIB}
"""resident memory of processes that hold no model (measured); of services see their kinds"""
TOKENIZER = 700
"""bytes of an entry of a vocabulary in a process that makes tokens (measured)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One line of the table; `formula` has its numbers."""

    name: str
    bytes: int
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    name: str
    items: tuple[Item, ...]

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)


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
    adapters: int | None = None
    """parameters that are trained instead of the weights"""
    optimizer: str = "adamw"
    momentum: float = 0.0
    published: int
    """bytes per parameter of the weights made ready for generators; 0: none are"""
    on_gpus: bool = False
    """where they lie: a share of them on each rank's GPU, or in the host's memory"""
    stage: int = 0
    """of a pipeline"""

    @property
    def params(self) -> int:
        """Number of parameters of the model, or of this pipeline stage."""
        pp = self.degrees["pp"]
        return num_params(self.dims) if pp == 1 else stage_params(self.dims, self.stage, pp)

    @property
    def is_last(self) -> bool:
        return self.stage == self.degrees["pp"] - 1

    @property
    def in_flight(self) -> int:
        """Microbatches between their forward and backward passes, at most."""
        return self.degrees["pp"] - self.stage

    @property
    def shard(self) -> int:
        """Ranks that share one copy of the parameters."""
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
        return stage_layers(self.dims, self.degrees["pp"])[self.stage]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    """The facts that the memory of a vLLM rank depends on. `claim`: bytes it may take on a GPU."""

    dims: Dims
    device: str
    degrees: Mapping[str, int]
    itemsize: int
    kv_itemsize: int
    context: int
    graphs: bool
    synced: bool
    claim: int

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return the memory that a rank holds in each phase of a step."""
        return vllm_phases(self)


# ---- torchtitan


def layer_bytes(shape: TrainerShape, checkpointing: str) -> float:
    """Bytes per token that one layer keeps for its backward, rows of the rotation included.

    Without checkpointing norms and rotations keep float32 (4 bytes); products are in the dtype.
    """
    h, f = shape.dims.hidden, shape.dims.ffn
    q, kv, b = query_width(shape.dims), kv_width(shape.dims), shape.itemsize
    cp = shape.degrees["cp"]
    if checkpointing == "full":
        total = b * h
    elif checkpointing == "selective":
        total = b * (2 * h + q + 2 * kv + f)
    else:
        total = 4 * (4 * h + 2 * q + 2 * kv) + b * (2 * h + 2 * q + 2 * kv + 4 * f)
        if shape.device == "cpu":  # SDPA keeps the mask as numbers, a row of it per token
            total += b * shape.seq_len * cp
    if cp > 1:  # what was exchanged is kept beside what was sent
        dealt = kv * repeated(shape.dims, shape.degrees)
        kept = {"none": q + 4 * dealt - 2 * kv, "selective": 2 * q + 2 * dealt, "full": 0}
        total += b * kept[checkpointing]
    return total / shape.degrees["tp"] + 4 * shape.dims.head_dim


def repeated(dims: Dims, degrees: Mapping[str, int]) -> int:
    """Return how many copies of each key head context parallelism makes to deal heads to its
    ranks.
    """
    heads = max(1, dims.kv_heads // degrees["tp"])
    return lcm(heads, degrees["cp"]) // heads


def head_rows(shape: TrainerShape) -> int:
    """Rows of the vocabulary that are computed at once."""
    chunk = max(HEAD_MIN_ROWS, HEAD_ELEMENTS[shape.device] // shape.dims.vocab)
    return min(shape.tokens, chunk)


def activation_items(shape: TrainerShape) -> tuple[Item, ...]:
    """Return the memory that forward and backward of one microbatch add."""
    dims, tokens, mode = shape.dims, shape.tokens, shape.checkpointing
    per_layer = layer_bytes(shape, mode)
    times, batches = shape.in_flight, ""
    kept = times * tokens * (per_layer * shape.layers + 8 * dims.hidden)
    if times > 1:
        batches = f"{times} microbatches x "
    items = [
        _item(
            "activations" if mode == "none" else f"activations ({mode})",
            kept,
            f"{batches}{tokens:,} tokens x {shape.layers} layers x {per_layer:,.0f} B",
        )
    ]
    if mode != "none":
        whole = layer_bytes(shape, "none")
        items.append(
            _item("recomputed layer", tokens * whole, f"{tokens:,} tokens x {whole:,.0f} B")
        )
    if shape.device == "cpu":  # GPUs attend by stretches
        mask = shape.rows * shape.seq_len**2
        items.append(_item("attention mask", mask, f"{shape.rows} rows x {shape.seq_len}^2"))
    return (*items, _head_item(shape)) if shape.is_last else tuple(items)


def _head_item(shape: TrainerShape) -> Item:
    """Logits, their softmax and gradient of one chunk; gradients of weight and hidden states."""
    dims, rows = shape.dims, head_rows(shape)
    vocab = dims.vocab // shape.degrees["tp"]
    chunk = rows * vocab * (8 if shape.itemsize == 4 else 10)
    weight = 4 * vocab * dims.hidden * (1 if shape.itemsize == 4 or shape.device == "gpu" else 2)
    # ranks that share rows deal out whole sequences, where a loss looks at these
    hidden = 2 * max(shape.tokens, shape.seq_len) * dims.hidden * shape.itemsize
    formula = f"{rows:,} x {vocab:,} logits at once, d weight"
    return _item("loss head", chunk + weight + hidden, formula)


def titan_phases(shape: TrainerShape) -> tuple[Phase, ...]:
    """The three phases of a rank."""
    return _trainer_phases(shape) if shape.trained else _frozen_phases(shape)


def _trainer_phases(shape: TrainerShape) -> tuple[Phase, ...]:
    total = shape.params
    *kept, gradients = state_items(shape)
    resident = [] if shape.offload else kept
    if shape.published and (shape.device == "cpu" or shape.on_gpus):
        ranks = shape.degrees["dp_replicate"] * shape.shard if shape.on_gpus else 1
        size = 2 * shape.published * total / ranks
        formula = f"2 buffers x {shape.published} x {count_text(total)}"
        formula += f" / {ranks}" * (ranks > 1) + ", shared memory" * (shape.device == "cpu")
        resident.append(_item("published weights", size, formula))
    working = [*([] if shape.offload else [gradients]), _gathered(shape)]
    if shape.device == "cpu" and shape.precision == "bf16_moments":
        size = 2 * next(item.bytes for item in kept if "moments" in item.name)
        working.append(_item("moments f32", size, "Adam steps in f32 there"))
    working += activation_items(shape)
    freed = KEPT[shape.device] * sum(item.bytes for item in working)
    unit = vocab_params(shape.dims)
    copy = shape.published * unit if shape.shard > 1 else 0
    formula = f"{shape.published} x {count_text(unit)} of the largest tensor"
    sync = [_item("gathered tensor", copy, formula)]
    if shape.adapters is not None and shape.published:
        sync.append(replace(kept[0], name=kept[0].name.replace("weights", "merged weights")))
    return (
        _phase("rollout", resident, [_kept(freed, shape.device)]),
        _phase("sync", resident, sync, [_kept(freed - copy, shape.device)]),
        _phase("train", resident, working),
    )


def state_items(shape: TrainerShape) -> list[Item]:
    """Return the memory of a rank's trained state: parameters and optimizer; gradients last."""
    dtype = {"f32": "f32", "bf16_moments": "f32", "bf16": "bf16"}[shape.precision]
    weight, _, gradient = PRECISIONS[shape.precision]
    total = shape.params
    learnt = total if shape.adapters is None else shape.adapters * shape.layers // shape.dims.layers

    def item(name: str, size: int, count: int) -> Item:
        share = f" / {shape.shard}" if shape.shard > 1 else ""
        return _item(name, size * count / shape.shard, f"{size} x {count_text(count)}{share}")

    adapters = [item(f"adapters {dtype}", weight, learnt)] if shape.adapters is not None else []
    return [
        item(f"weights {dtype}", weight, total),
        *_moments(shape, learnt),
        *adapters,
        item(f"gradients {dtype}", gradient, learnt),
    ]


def _moments(shape: TrainerShape, learnt: int) -> list[Item]:
    """Return what the optimizer keeps of `learnt` parameters, on this rank."""
    matrices = learnt if shape.adapters is not None else shape.layers * layer_matrices(shape.dims)
    size = moment_bytes(shape.optimizer, shape.precision, momentum=shape.momentum, params=learnt,
                        matrices=matrices)  # fmt: skip
    if not size:
        return []
    dtype = "f32" if shape.precision == "f32" else "bf16"
    name = {"muon": "momentum, AdamW moments", "sgd": "momentum"}.get(shape.optimizer)
    each = f"{size / learnt:.3g} x {count_text(learnt)}"
    share = f" / {shape.shard}" if shape.shard > 1 else ""
    return [_item(f"{name or 'AdamW moments'} {dtype}", size / shape.shard, each + share)]


def offloaded(shape: TrainerShape) -> int:
    """Bytes of a rank that are in the host's memory."""
    if not shape.offload:
        return 0
    if not shape.trained:
        return round(shape.itemsize * shape.params / shape.shard)
    return sum(item.bytes for item in state_items(shape))


def _frozen_phases(shape: TrainerShape) -> tuple[Phase, ...]:
    total = shape.params
    of = f"{count_text(total)}" + (f" / {shape.shard}" if shape.shard > 1 else "")
    size = 0 if shape.offload else shape.itemsize * total / shape.shard
    resident = [_item("weights", size, f"{shape.itemsize} x {of}")]
    whole = layer_bytes(shape, "none")
    formula = f"{shape.tokens:,} tokens x {whole:,.0f} B"
    rows = head_rows(shape)
    vocab = shape.dims.vocab // shape.degrees["tp"]
    copied = 4 * vocab_params(shape.dims) if shape.itemsize < 4 and shape.device == "cpu" else 0
    working = [
        _gathered(shape),
        _item("forward of a layer", shape.tokens * whole, formula),
    ]
    if shape.is_last:
        formula = f"12 x {rows:,} x {vocab:,} logits"
        working.append(_item("log-prob head", 12 * rows * vocab + copied, formula))
    size = sum(item.bytes for item in working)
    split = SPLIT[shape.device] * size
    kept = [_kept((1.0 if split else KEPT[shape.device]) * size + split, shape.device)]
    return (
        _phase("rollout", resident, working, [_kept(split, shape.device)]),
        _phase("sync", resident, kept),
        _phase("train", resident, kept),
    )


def _gathered(shape: TrainerShape) -> Item:
    """FSDP gathers the next unit while one is in use, and holds the gradient of one; those of a
    stage stay whole until its last microbatch, the gradients in f32."""
    if shape.degrees["pp"] > 1:
        size, count = shape.itemsize + 4 * shape.trained, shape.params // shape.degrees["tp"]
        return _item("gathered by FSDP", size * count, f"{size} x {count_text(count)}, a stage")
    unit = largest_unit(shape.dims) // shape.degrees["tp"]
    count = 3 if shape.trained else 2
    formula = f"{count} x {shape.itemsize} x {count_text(unit)} of the largest unit"
    on_the_way = 8 * unit / shape.shard if shape.offload else 0
    return _item("gathered by FSDP", count * shape.itemsize * unit + on_the_way, formula)


# ---- vLLM


def vllm_phases(shape: EngineShape) -> tuple[Phase, ...]:
    """The three phases of a rank; the KV pool is what its claim leaves."""
    fixed = vllm_fixed(shape)
    pool, per_token = vllm_pool(shape), kv_per_token(shape)
    what = f"{pool // per_token:,} tokens x {per_token:,} B"
    resident = [*fixed, _item("KV pool", pool, what)]
    total = num_params(shape.dims)
    weights = fixed[0].bytes
    sync: list[Item] = []
    idle: list[Item] = []
    if shape.synced and shape.device == "cpu":
        idle = [_item("reloaded copy", weights, "one more copy, kept by the allocator")]
        sync = [_item("mapped weights", shape.itemsize * total, "read from shared memory")]
    elif shape.synced:
        unit = shape.itemsize * vocab_params(shape.dims)
        sync = [_item("reload staging", unit, "the largest tensor")]
    return (
        _phase("rollout", resident, idle),
        _phase("sync", resident, idle, sync),
        _phase("train", resident, idle),
    )


def vllm_fixed(shape: EngineShape) -> tuple[Item, ...]:
    """Return the memory of a vLLM rank besides its KV cache."""
    dims, split = shape.dims, shape.degrees["tp"] * shape.degrees["pp"]
    total = num_params(dims)
    of = f"{count_text(total)}" + (f" / {split}" if split > 1 else "")
    tokens = max(BATCHED_TOKENS, shape.context) if shape.device == "cpu" else BATCHED_TOKENS
    width = (dims.hidden + 3 * dims.ffn) // shape.degrees["tp"]
    logits = 8 * MAX_RUNNING * dims.vocab // shape.degrees["tp"]
    items = [
        _item("weights", shape.itemsize * total / split, f"{shape.itemsize} x {of}"),
        _item(
            "workspace",
            shape.itemsize * tokens * width + logits,
            f"{tokens:,} tokens x (h + 3 ffn), {MAX_RUNNING} x V",
        ),
    ]
    if shape.graphs:
        items.append(_item("CUDA graphs", GRAPHS, "recorded decode steps"))
    return tuple(items)


def kv_per_token(shape: EngineShape) -> int:
    """Bytes of one token in the pool of one rank."""
    d = shape.degrees
    return kv_bytes(shape.dims, tp=d["tp"], pp=d["pp"], itemsize=shape.kv_itemsize)


def vllm_pool(shape: EngineShape) -> int:
    """Bytes of the KV pool; not positive if the claim does not even hold the rest."""
    if shape.device == "cpu":
        return CPU_POOL
    return shape.claim - sum(item.bytes for item in vllm_fixed(shape))


# ---- parts


def _phase(name: str, *groups: list[Item]) -> Phase:
    return Phase(name=name, items=tuple(item for group in groups for item in group if item.bytes))


def _item(name: str, size: float, formula: str) -> Item:
    return Item(name=name, bytes=round(size), formula=formula)


def _kept(size: float, device: str) -> Item:
    what = {"cpu": "freed by the step, kept by malloc", "gpu": "freed, kept by PyTorch's allocator"}
    return _item("kept by the allocator", max(0.0, size), what[device])


def count_text(parameters: float) -> str:
    """A number of parameters for people, e.g. "1.72 B"."""
    if parameters >= 1e9:
        return f"{parameters / 1e9:.2f} B"
    return f"{parameters / 1e6:.1f} M" if parameters >= 1e6 else f"{parameters / 1e3:.0f} k"
