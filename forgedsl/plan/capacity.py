"""Memory of the plan: shared memories, whether their ranks fit, and the largest microbatch that
fits.

Program + meshes + dims -> shapes of ranks -> MemoryPlan -> P205 memory, P211 kv-starved

A GPU holds the ranks that are placed on it, phase by phase. A host holds the processes without a
GPU, the published weights, and the base memory of every process. From 92 % on there is a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import floor

from forgedsl import extensions
from forgedsl.families.base import Dims
from forgedsl.ir.graph import Node
from forgedsl.ir.program import Decl, Program
from forgedsl.plan.host import Host
from forgedsl.plan.memory import (
    PHASES,
    PROCESS,
    TOKENIZER,
    EngineShape,
    Phase,
    TrainerShape,
    kv_per_token,
    offloaded,
    vllm_pool,
)
from forgedsl.plan.meshes import MeshPlan, number, pools_host, transport_of, value
from forgedsl.plan.optimizers import momentum
from forgedsl.plan.params import ITEMSIZE, adapter_params, num_params, vocab_params
from forgedsl.records import dataclass, field, replace
from forgedsl.services.registry import kind_of
from forgedsl.transports import ON_GPUS, row

TIGHT = 0.92
"""part of a memory from which on the plan warns"""
ALONE = 0.9
"""part of a GPU that an engine takes where it is alone and nothing is set"""
SHARED = 0.85
"""part of a GPU that an engine fills together with those it shares it with, where nothing is set"""
MAX_ROWS = 4096
SHORTEST = 64
"""tokens of a row below which a shorter one is no remedy"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """One rank of a service. `fraction` is the part of a GPU that an engine claims."""

    service: str
    ranks: int
    shape: TrainerShape | EngineShape
    phases: tuple[Phase, ...]
    fraction: float | None = None

    def bytes(self, phase: str) -> int:
        return next(p.bytes for p in self.phases if p.name == phase)

    @property
    def peak(self) -> int:
        return max(phase.bytes for phase in self.phases)

    @property
    def trainer(self) -> TrainerShape | None:
        """Its shape, if it is a rank of a model that is trained or measures log-probs."""
        return self.shape if isinstance(self.shape, TrainerShape) else None

    @property
    def engine(self) -> EngineShape | None:
        """Its shape, if it is a rank of an engine."""
        return self.shape if isinstance(self.shape, EngineShape) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A memory and who uses it: `count` GPUs alike, or one host."""

    name: str
    kind: str
    services: tuple[str, ...]
    count: int
    capacity: int
    parts: Mapping[str, int]
    """bytes at the fullest phase, by service or purpose"""
    phase: str

    @property
    def bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def share(self) -> float:
        return self.bytes / self.capacity if self.capacity else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """`unknown` are the services whose model has no known dimensions."""

    ranks: tuple[RankMemory, ...]
    stores: tuple[Store, ...]
    unknown: tuple[str, ...]
    request: Request

    def rank(self, service: str) -> RankMemory | None:
        return next((rank for rank in self.ranks if rank.service == service), None)

    def fitting_rows(self, service: str) -> int | None:
        """The most rows of a microbatch that fit, where the service is trained."""
        rank = self.rank(service)
        trained = rank is not None and rank.trainer is not None and rank.trainer.trained
        return _fitting_rows(self.request, service) if trained else None

    def fitting_seq_len(self, service: str) -> int:
        """The longest row, a power of two, that fits alone; 0 if none does."""
        length = 2 ** (self.request.rows[service][1].bit_length() - 1)
        while length >= SHORTEST and not _fits(self.request, service, 1, length):
            length //= 2
        return length if length >= SHORTEST else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Facts about each service that the memory estimate starts from."""

    program: Program
    meshes: tuple[MeshPlan, ...]
    host: Host
    dims: Mapping[str, Dims | None]
    """by service"""
    contexts: Mapping[str, int | None]
    """by service"""
    rows: Mapping[str, tuple[int, int]]
    """(rows, seq_len) by titan service"""
    trainer: str
    syncs: tuple[Node, ...]
    held: Mapping[str, int] = field(default_factory=dict)
    """bytes of each buffer of samples"""
    played: tuple[str, ...] = ()
    """the environments in use"""

    @property
    def synced(self) -> frozenset[str]:
        """The services that take weights."""
        return frozenset(str(sync.settings["target"]) for sync in self.syncs)

    def mesh(self, service: str) -> MeshPlan:
        return next(mesh for mesh in self.meshes if mesh.service == service)


def plan_memory(request: Request) -> MemoryPlan:
    """Every rank, every shared memory."""
    known = [mesh for mesh in request.meshes if request.dims[mesh.service] is not None]
    ranks = ranks_of(request)
    return MemoryPlan(
        ranks=ranks,
        stores=stores(request, ranks),
        unknown=tuple(m.service for m in request.meshes if m not in known),
        request=request,
    )


def ranks_of(request: Request) -> tuple[RankMemory, ...]:
    """Estimate the memory of a rank of each service whose model has a known size."""
    meshes = [mesh for mesh in request.meshes if request.dims[mesh.service] is not None]
    found: dict[str, RankMemory] = {}
    for kind, rank in (*RANKS, *extensions.added("RANKS", tuple)):
        for mesh in meshes:
            if mesh.kind == kind:
                found[mesh.service] = rank(request, mesh, found)
    return tuple(found[mesh.service] for mesh in meshes if mesh.service in found)


def _titan_rank(request: Request, mesh: MeshPlan, others: Mapping[str, RankMemory]) -> RankMemory:
    return rank_of(mesh, titan_shape(request, mesh))


def _vllm_rank(request: Request, mesh: MeshPlan, others: Mapping[str, RankMemory]) -> RankMemory:
    fraction = claim(request, mesh, others)
    return rank_of(mesh, vllm_shape(request, mesh, fraction), fraction)


def rank_of(
    mesh: MeshPlan, shape: TrainerShape | EngineShape, fraction: float | None = None
) -> RankMemory:
    return RankMemory(
        service=mesh.service,
        ranks=mesh.total_procs,
        shape=shape,
        phases=shape.phases,
        fraction=fraction if mesh.device == "gpu" else None,
    )


def titan_shape(request: Request, mesh: MeshPlan) -> TrainerShape:
    """The shape of one rank of a torchtitan service, in a pipeline of the fullest stage."""
    decl = request.program.services[mesh.service]
    dims = request.dims[mesh.service]
    assert dims is not None
    rows, seq_len = request.rows[mesh.service]
    trained, rank = mesh.service == request.trainer, number(decl, "lora.rank", 0)
    targets = [request.program.services[name] for name in sorted(request.synced)]
    shape = TrainerShape(
        dims=dims, device=mesh.device, degrees=mesh.degrees,
        itemsize=itemsize(request.program, decl), trained=trained,
        checkpointing=str(value(decl, "memory.activation_checkpoint")) if trained else "none",
        seq_len=seq_len, rows=rows, precision=str(value(decl, "optimizer.precision")),
        offload=bool(value(decl, "memory.offload")),
        optimizer=str(value(decl, "optimizer.kind", "adamw")), momentum=momentum(decl),
        adapters=adapter_params(dims, rank) if trained and rank else None,
        published=itemsize(request.program, targets[0]) if trained and targets else 0,
        on_gpus=publishes_on_gpus(request, mesh),
    )  # fmt: skip
    stages = [replace(shape, stage=stage) for stage in range(mesh.degrees["pp"])]
    return max(stages, key=lambda each: rank_of(mesh, each).peak)


def publishes_on_gpus(request: Request, mesh: MeshPlan) -> bool:
    """True if the weights that a trainer publishes stay on its GPUs."""
    return mesh.device == "gpu" and any(
        transport_of(request.host, request.meshes, sync) in ON_GPUS
        for sync in request.syncs
        if sync.target == mesh.service
    )


def vllm_shape(request: Request, mesh: MeshPlan, fraction: float) -> EngineShape:
    """The shape of one rank of an engine that claims `fraction` of its GPU."""
    decl = request.program.services[mesh.service]
    dims = request.dims[mesh.service]
    assert dims is not None
    return EngineShape(
        dims=dims, device=mesh.device, degrees=mesh.degrees,
        itemsize=itemsize(request.program, decl),
        kv_itemsize=kv_itemsize(request.program, decl),
        context=request.contexts[mesh.service] or 0,
        graphs=mesh.device == "gpu" and bool(value(decl, "engine.cuda_graphs")),
        synced=mesh.service in request.synced, claim=floor(fraction * request.host.gpu_memory),
    )  # fmt: skip


def itemsize(program: Program, decl: Decl) -> int:
    """Bytes of a number in the dtype of a service."""
    argument = decl.ctor_args[0]
    model = program.models[argument.name]
    return ITEMSIZE[str(value(decl, "dtype") or model.settings["dtype"].value)]


def kv_itemsize(program: Program, decl: Decl) -> int:
    """Bytes of a number among the keys and values of an engine."""
    rounded = value(decl, "engine.kv_dtype", "auto") == "fp8"
    return 1 if rounded else itemsize(program, decl)


def claim(request: Request, mesh: MeshPlan, ranks: Mapping[str, RankMemory]) -> float:
    """The part of a GPU for an engine: as set, else 0.9 alone, else what others leave of 0.85."""
    given = value(request.program.services[mesh.service], "engine.gpu_memory")
    if isinstance(given, float | int):
        return float(given)
    others = sharing(request, mesh.service)
    if not others or not request.host.gpu_memory:
        return ALONE
    engines = 1 + sum(kind_of(request.mesh(name).kind).samples for name in others)
    dims = request.dims[mesh.service]
    assert dims is not None
    reload = itemsize(request.program, request.program.services[mesh.service]) * vocab_params(dims)
    known = [ranks[name] for name in others if name in ranks]  # engines claim what these leave
    taken = sum(rank.peak for rank in known if rank.trainer is not None)
    left = (SHARED * request.host.gpu_memory - taken) / engines - reload
    return max(0.05, floor(100 * left / request.host.gpu_memory) / 100)


def sharing(request: Request, service: str) -> tuple[str, ...]:
    """Other services with a rank on a GPU of `service`."""
    mine = {(p.host, gpu) for p in request.mesh(service).places for gpu in p.gpus}
    return tuple(
        mesh.service
        for mesh in request.meshes
        if mesh.service != service
        and mine & {(p.host, gpu) for p in mesh.places for gpu in p.gpus}
        and request.dims[mesh.service] is not None
    )


# ---- stores


def stores(request: Request, ranks: Sequence[RankMemory]) -> tuple[Store, ...]:
    """GPUs with the same services, counted, then the hosts with the most on them."""
    return (*_gpu_stores(request, ranks), _host_store(request, ranks))


def _gpu_stores(request: Request, ranks: Sequence[RankMemory]) -> list[Store]:
    users: dict[tuple[int, int], list[str]] = {}
    for rank in ranks:
        for place in request.mesh(rank.service).places:
            for gpu in place.gpus:
                users.setdefault((place.host, gpu), []).append(rank.service)
    counted = Counter(tuple(names) for _, names in sorted(users.items()))
    by_service = {rank.service: rank for rank in ranks}
    found = []
    for names, count in counted.items():
        phase = _fullest({p: sum(by_service[n].bytes(p) for n in names) for p in PHASES})
        found.append(
            Store(
                name=f"GPU of {' + '.join(names)}",
                kind="gpu",
                services=names,
                count=count,
                capacity=request.host.gpu_memory,
                parts={name: by_service[name].bytes(phase) for name in names},
                phase=phase,
            )
        )
    return found


def _fullest(totals: Mapping[str, int]) -> str:
    """The phase with the most bytes; `train` where it is as good, for it shows what they are."""
    return "train" if totals["train"] >= 0.99 * max(totals.values()) else max(
        totals, key=lambda phase: totals[phase]
    )  # fmt: skip


def _host_store(request: Request, ranks: Sequence[RankMemory]) -> Store:
    """The fullest host. Its allocators keep what they had, so phases do not take turns here."""
    totals: dict[int, dict[str, int]] = {}
    by_service = {rank.service: rank for rank in ranks}
    for mesh in request.meshes:
        for place in mesh.places:
            parts = totals.setdefault(place.host, {})
            own = mesh.procs * (
                kind_of(mesh.kind).process + _on_host(by_service.get(mesh.service), mesh)
            )
            parts[mesh.service] = parts.get(mesh.service, 0) + round(own)
        rank = by_service.get(mesh.service)
        shape = None if rank is None else rank.trainer
        if mesh.device == "gpu" and shape is not None and not shape.on_gpus:
            first = mesh.places[0].host
            if size := 2 * shape.published * num_params(shape.dims):
                totals[first]["published weights"] = size
    for index, name, size in _received(request):
        totals[index][name] = totals[index].get(name, 0) + size
    pools = sum(int(r.settings["procs"].value) for r in request.program.rewards.values())
    index = pools_host(request.meshes, request.trainer, request.host.hosts)
    controller, rewards = round(PROCESS["controller"]), round(pools * PROCESS["reward"])
    totals.setdefault(0, {}).update(request.held)
    if index:
        totals[0]["controller"], totals[index]["rewards"] = controller, rewards
    else:
        totals[0]["controller and rewards"] = controller + rewards
    totals[index].update(_environments(request))
    index = max(totals, key=lambda host: sum(totals[host].values()))
    return Store(
        name=f"memory of host {index}" if request.host.hosts > 1 else "memory of the host",
        kind="host", services=tuple(name for name in totals[index] if name in request.dims),
        count=1, capacity=request.host.memory, parts=totals[index], phase="all phases",
    )  # fmt: skip


def _environments(request: Request) -> dict[str, int]:
    """Return the bytes of each environment's processes, with the largest tokenizer."""
    vocab = max((dims.vocab for dims in request.dims.values() if dims is not None), default=0)
    each = PROCESS["environment"] + TOKENIZER * vocab
    decls = request.program.environments
    return {name: round(decls[name].settings["procs"].value * each) for name in request.played}


def _received(request: Request) -> Iterator[tuple[int, str, int]]:
    """Host, purpose and bytes of what weights arrive in: two versions in the shared memory of each
    host that hands them on, elsewhere a copy in each process that takes them from afar."""
    for sync in request.syncs:
        mesh = request.mesh(str(sync.settings["target"]))
        way = row(transport_of(request.host, request.meshes, sync))
        dims, decl = request.dims[mesh.service], request.program.services[mesh.service]
        if dims is None or way.gpus or not way.far:
            continue
        size = itemsize(request.program, decl) * num_params(dims)
        if way.handed_on:
            for host in sorted({place.host for place in mesh.places}):
                yield host, "weights handed on", 2 * size
        for place in mesh.places:
            if mesh.device == "gpu" and not way.handed_on:
                yield place.host, "weights received", mesh.procs * size
            elif mesh.device == "cpu" and way.handed_on:  # a process maps them, they are counted
                yield place.host, mesh.service, -mesh.procs * size


def _on_host(rank: RankMemory | None, mesh: MeshPlan) -> int:
    """Bytes of a process, its code left out."""
    if rank is None or mesh.device == "cpu":
        return rank.peak if rank is not None else 0
    return 0 if rank.trainer is None else offloaded(rank.trainer)


def _fits(request: Request, name: str, rows: int, seq_len: int) -> bool:
    """True if microbatches of so many rows of that length leave every memory below 92 %."""
    ranks = ranks_of(replace(request, rows={**request.rows, name: (rows, seq_len)}))
    mine = [s for s in stores(request, ranks) if name in s.services]
    return all(s.share <= TIGHT for s in mine) and not starved_engines(
        ranks, sharing(request, name)
    )


def _fitting_rows(request: Request, name: str) -> int:
    """The most rows that leave every memory below 92 %; 0 if not even one row does."""

    def fits(rows: int) -> bool:
        return _fits(request, name, rows, request.rows[name][1])

    low, high = 0, 1
    while high <= MAX_ROWS and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def starved_engines(ranks: Sequence[RankMemory], names: Sequence[str]) -> list[RankMemory]:
    """Engines whose pool does not hold one sequence of the context: vLLM refuses to start."""
    return [
        rank
        for rank in ranks
        if rank.service in names
        and (shape := rank.engine) is not None
        and vllm_pool(shape) < max(1, shape.context) * kv_per_token(shape)
    ]


Rank = Callable[[Request, MeshPlan, Mapping[str, RankMemory]], RankMemory]
RANKS: tuple[tuple[str, Rank], ...] = (("titan", _titan_rank), ("vllm", _vllm_rank))
"""what a rank of each kind holds, in the order in which GPUs are given out: engines take what is
left; a kind that is not here holds what its process takes"""
