"""Memory of a rank of a vLLM engine: weights, workspace, KV pool.

settings -> shape of a rank -> items per phase, and the pool of keys and values
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor

from forgedsl.families.base import Dims
from forgedsl.ir.program import Decl, Program
from forgedsl.records import dataclass
from forgedsl.sizes.experts import largest_tensor
from forgedsl.sizes.memory import (
    BATCHED_TOKENS,
    GIB,
    MAX_RUNNING,
    Item,
    Phase,
    Pool,
    RankMemory,
    Request,
    count_text,
    item_of,
    itemsize,
    phase_of,
    sharing,
)
from forgedsl.sizes.meshes import MeshPlan, number, value
from forgedsl.sizes.params import (
    adapter_params,
    adapter_slot_rank,
    kv_bytes,
    num_params,
    weight_bytes,
)

ALONE = 0.9
"""default fraction of a GPU's memory for an engine that is alone on it"""
SHARED = 0.85
"""default fraction of a GPU's memory that an engine and the services it shares the GPU with may
fill"""
CPU_POOL = 1 * GIB
"""bytes of the KV pool on a CPU, as in runtime/forgedsl_runtime/services/vllm/upstream/engine.py"""
GRAPHS = 1.5 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    """The facts that the memory of a vLLM rank depends on. `claim` is the bytes it may take on a
    GPU."""

    dims: Dims
    device: str
    degrees: Mapping[str, int]
    itemsize: int
    kv_itemsize: int
    context: int
    running: int
    """maximum number of completions decoded at once"""
    graphs: bool
    synced: bool
    claim: int
    fp8_weights: bool = False
    """weights of layers are in fp8"""
    adapter_rank: int | None = None
    """rank of the adapter that is added to the weights; it is received instead of them"""
    other_ranks: tuple[int, ...] = ()
    """ranks of the adapters of other services that it serves"""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return the memory that a rank holds in each phase of a step."""
        return phases(self)


def phases(shape: EngineShape) -> tuple[Phase, ...]:
    """Return the three phases of a rank. The KV pool takes the rest of its claim."""
    taken = fixed(shape)
    size, per_token = pool(shape), kv_per_token(shape)
    what = f"{size // per_token:,} tokens x {per_token:,} B"
    resident = [*taken, item_of("KV pool", size, what)]
    total = num_params(shape.dims)
    weights = taken[0].bytes
    sync: list[Item] = []
    idle: list[Item] = []
    if shape.adapter_rank is not None:
        adapter = shape.itemsize * adapter_params(shape.dims, shape.adapter_rank)
        sync = [item_of("received adapter", adapter, "beside the one before")]
    elif shape.synced and shape.device == "cpu":
        idle = [item_of("reloaded copy", weights, "one more copy, kept by the allocator")]
        sync = [item_of("mapped weights", shape.itemsize * total, "read from shared memory")]
    elif shape.synced:
        unit = shape.itemsize * largest_tensor(shape.dims)
        sync = [item_of("reload staging", unit, "the largest tensor")]
    return (
        phase_of("rollout", resident, idle),
        phase_of("sync", resident, idle, sync),
        phase_of("train", resident, idle),
    )


def fixed(shape: EngineShape) -> tuple[Item, ...]:
    """Return the memory items of a vLLM rank without its KV pool."""
    dims, split = shape.dims, shape.degrees["tp"] * shape.degrees["pp"]
    size = weight_bytes(dims, shape.itemsize, rounded=shape.fp8_weights)
    each = "1 in layers, " * shape.fp8_weights + str(shape.itemsize)
    total = num_params(dims)
    of = f"{count_text(total)}" + (f" / {split}" if split > 1 else "")
    tokens = batched_tokens(shape.device, shape.context)
    width = (dims.hidden + 3 * max(dims.ffn, dims.dense_ffn)) // shape.degrees["tp"]
    logits = 8 * shape.running * dims.vocab // shape.degrees["tp"]
    items = [
        item_of("weights", size / split, f"{each} x {of}"),
        item_of(
            "workspace",
            shape.itemsize * tokens * width + logits,
            f"{tokens:,} tokens x (h + 3 ffn), {shape.running} x V",
        ),
    ]
    if shape.adapter_rank is not None:
        items.append(_adapter_item(shape, shape.adapter_rank))
    if shape.graphs:
        items.append(item_of("CUDA graphs", GRAPHS, "recorded decode steps"))
    return tuple(items)


def _adapter_item(shape: EngineShape, rank: int) -> Item:
    """Return the item of the adapters: room for them in each layer, and the copies that vLLM keeps.
    Each has the room of the largest."""
    ranks = (rank, *shape.other_ranks)
    room = adapter_slot_rank(max(ranks))
    count = adapter_params(shape.dims, room) / shape.degrees["tp"]
    copies = sum(adapter_params(shape.dims, each) for each in ranks)
    size = shape.itemsize * (len(ranks) * count + copies)
    each = f"{shape.itemsize} x {count_text(count)}, rank {room}"
    if len(ranks) == 1:
        return item_of("adapter", size, f"{each}; a copy")
    return item_of("adapters", size, f"{len(ranks)} x {each}; copies")


def batched_tokens(device: str, context: int) -> int:
    """Return the largest number of tokens in a step. CPUs compute a prompt in one step."""
    return max(BATCHED_TOKENS[device], context if device == "cpu" else 0)


def kv_per_token(shape: EngineShape) -> int:
    """Return the bytes of a token in the KV pool of a rank."""
    d = shape.degrees
    return kv_bytes(shape.dims, tp=d["tp"], pp=d["pp"], itemsize=shape.kv_itemsize)


def pool(shape: EngineShape) -> int:
    """Return the bytes of the KV pool; zero or negative if the other items fill the claim."""
    if shape.device == "cpu":
        return CPU_POOL
    return shape.claim - sum(item.bytes for item in fixed(shape))


def shape_of(request: Request, mesh: MeshPlan, fraction: float) -> EngineShape:
    """Return the shape of a rank of an engine that claims `fraction` of its GPU's memory."""
    decl = request.program.services[mesh.service]
    dims = request.dims[mesh.service]
    assert dims is not None
    return EngineShape(
        dims=dims, device=mesh.device, degrees=mesh.degrees,
        itemsize=itemsize(request.program, decl),
        kv_itemsize=kv_itemsize(request.program, decl),
        context=request.contexts[mesh.service] or 0,
        running=max_running(decl),
        graphs=mesh.device == "gpu" and bool(value(decl, "engine.cuda_graphs")),
        fp8_weights=value(decl, "engine.weight_dtype") == "fp8",
        adapter_rank=request.adapter_rank(mesh.service),
        other_ranks=tuple(r for t in request.tenants(mesh.service)
                          if (r := request.tenant_ranks[t])),
        synced=mesh.service in request.synced, claim=floor(fraction * request.host.gpu_memory),
    )  # fmt: skip


def max_running(decl: Decl) -> int:
    """Return the maximum number of completions that an engine decodes at once."""
    return number(decl, "engine.max_running", MAX_RUNNING)


def kv_itemsize(program: Program, decl: Decl) -> int:
    """Return the bytes of an element of an engine's KV cache."""
    rounded = value(decl, "engine.kv_dtype", "auto") == "fp8"
    return 1 if rounded else itemsize(program, decl)


def claim(request: Request, mesh: MeshPlan, ranks: Mapping[str, RankMemory]) -> float:
    """Return the fraction of a GPU's memory for an engine: as set; else 0.9 if it is alone; else
    what others leave of 0.85, divided among the engines."""
    given = value(request.program.services[mesh.service], "engine.gpu_memory")
    if isinstance(given, float | int):
        return float(given)
    others = sharing(request, mesh.service)
    if not others or not request.host.gpu_memory:
        return ALONE
    kinds = {decl.name: decl.ctor for decl in request.program.services.values()}
    engines = 1 + sum(kinds[name] == kinds[mesh.service] for name in others)
    dims = request.dims[mesh.service]
    assert dims is not None
    size = itemsize(request.program, request.program.services[mesh.service])
    rank = request.adapter_rank(mesh.service)
    reload = size * (largest_tensor(dims) if rank is None else adapter_params(dims, rank))
    # Other services were estimated before. The engines share what these leave.
    known = [ranks[name] for name in others if name in ranks]
    taken = sum(rank.peak for rank in known if rank.pool is None)
    left = (SHARED * request.host.gpu_memory - taken) / engines - reload
    return max(0.05, floor(100 * left / request.host.gpu_memory) / 100)


def rank(request: Request, mesh: MeshPlan, others: Mapping[str, RankMemory]) -> RankMemory:
    """Return the memory of one rank, with its pool."""
    fraction = claim(request, mesh, others)
    shape = shape_of(request, mesh, fraction)
    return RankMemory(
        service=mesh.service,
        ranks=mesh.total_procs,
        phases=shape.phases,
        fraction=fraction if mesh.device == "gpu" else None,
        pool=Pool(
            bytes=pool(shape), per_token=kv_per_token(shape), context=shape.context,
            claim=shape.claim, taken=fixed(shape),
        ),
        note="" if shape.adapter_rank is None else "decodes slower, because it adds an adapter",
    )  # fmt: skip
