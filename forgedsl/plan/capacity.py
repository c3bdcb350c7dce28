"""Memory of the plan: the use of each GPU and host memory, and the largest microbatch that fits.

Program + meshes + dims -> shapes of ranks -> MemoryPlan -> P205 memory, P211 kv-starved

A GPU holds the ranks placed on it, phase by phase. A host holds the processes without a GPU, the
published weights, and the base memory of every process. Above 92 % there is a warning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from forgedsl.ir.program import Constructor
from forgedsl.plan.meshes import pools_host
from forgedsl.records import dataclass, replace
from forgedsl.services.registry import kind_of, kinds
from forgedsl.sizes.memory import GIB, PHASES, RankMemory, Request, itemsize, sharing
from forgedsl.sizes.meshes import MeshPlan, transport_of
from forgedsl.transports import row

TIGHT = 0.92
"""fraction of a memory above which the plan warns"""
MAX_ROWS = 4096
SHORTEST = 64
"""shortest row in tokens that is suggested as a remedy"""
PROCESS = {"reward": 0.2 * GIB, "controller": 0.5 * GIB, "environment": 0.15 * GIB}
"""resident bytes of processes without a model (measured); kinds of services have their own
values"""
PARSER = 0.5 * GIB
"""additional bytes of each environment process, if a parser of vLLM reads tool calls"""
TOKENIZER = 700
"""bytes per vocabulary entry in a process with a tokenizer (measured)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The use of a memory: of each of `count` equal GPUs, or of a host."""

    name: str
    kind: str
    services: tuple[str, ...]
    count: int
    capacity: int
    parts: Mapping[str, int]
    """bytes in the fullest phase, by service or purpose"""
    phase: str

    @property
    def bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def share(self) -> float:
        return self.bytes / self.capacity if self.capacity else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Memory of a plan. `unknown` are the services whose models have unknown dimensions."""

    ranks: tuple[RankMemory, ...]
    stores: tuple[Store, ...]
    unknown: tuple[str, ...]
    request: Request

    def rank(self, service: str) -> RankMemory | None:
        return next((rank for rank in self.ranks if rank.service == service), None)

    def fitting_rows(self, service: str) -> int | None:
        """Return the largest number of rows of a microbatch that fits, for a trained service."""
        rank = self.rank(service)
        trained = rank is not None and rank.trained
        return _fitting_rows(self.request, service) if trained else None

    def fitting_seq_len(self, service: str) -> int:
        """Return the length of the longest row, a power of two, that fits alone; 0 if none does."""
        length = 2 ** (self.request.rows[service][1].bit_length() - 1)
        while length >= SHORTEST and not _fits(self.request, service, 1, length):
            length //= 2
        return length if length >= SHORTEST else 0


def plan_memory(request: Request) -> MemoryPlan:
    """Plan the memory of all ranks, GPUs and hosts."""
    known = [mesh for mesh in request.meshes if request.dims[mesh.service] is not None]
    ranks = ranks_of(request)
    return MemoryPlan(
        ranks=ranks,
        stores=stores(request, ranks),
        unknown=tuple(m.service for m in request.meshes if m not in known),
        request=request,
    )


def ranks_of(request: Request) -> tuple[RankMemory, ...]:
    """Estimate the memory of a rank of each service whose model has a known size. Kinds that claim
    a fraction of a GPU come last: they take what the others leave."""
    meshes = [mesh for mesh in request.meshes if request.dims[mesh.service] is not None]
    found: dict[str, RankMemory] = {}
    for kind in sorted(kinds(), key=lambda kind: bool(kind.claim)):
        for mesh in meshes:
            if mesh.kind == kind.name and (rank := kind.rank(request, mesh, found)) is not None:
                found[mesh.service] = rank
    return tuple(found[mesh.service] for mesh in meshes if mesh.service in found)


# ---- stores


def stores(request: Request, ranks: Sequence[RankMemory]) -> tuple[Store, ...]:
    """Return the memories: GPUs, with equal ones counted together, then the fullest host."""
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
    """Return the phase with the most bytes; of equal ones `train`, which lists more items."""
    return "train" if totals["train"] >= 0.99 * max(totals.values()) else max(
        totals, key=lambda phase: totals[phase]
    )  # fmt: skip


def _host_store(request: Request, ranks: Sequence[RankMemory]) -> Store:
    """Return the memory of the fullest host. Allocators keep freed host memory, so the peaks of all
    processes are added up."""
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
        if rank is not None and rank.published:
            totals[mesh.places[0].host]["published weights"] = rank.published
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
    """Return the bytes of each environment's processes, including the largest tokenizer."""
    vocab = max((dims.vocab for dims in request.dims.values() if dims is not None), default=0)
    each = PROCESS["environment"] + TOKENIZER * vocab
    models = request.program.models.values()
    if any(isinstance(model.settings["tool_calls"].value, Constructor) for model in models):
        each += PARSER
    decls = request.program.environments
    return {name: round(decls[name].settings["procs"].value * each) for name in request.played}


def _received(request: Request) -> Iterator[tuple[int, str, int]]:
    """Yield (host, purpose, bytes) of buffers for received weights: two versions in the shared
    memory of each host that forwards them, else a copy in each process that receives from another
    host."""
    for sync in request.syncs:
        mesh = request.mesh(str(sync.settings["target"]))
        way = row(transport_of(request.host, request.meshes, sync))
        dims, decl = request.dims[mesh.service], request.program.services[mesh.service]
        if dims is None or way.gpus or not way.far:
            continue
        size = itemsize(request.program, decl) * request.num_published(mesh.service)
        if way.handed_on:
            for host in sorted({place.host for place in mesh.places}):
                yield host, "weights in transfer", 2 * size
        for place in mesh.places:
            if mesh.device == "gpu" and not way.handed_on:
                yield place.host, "weights received", mesh.procs * size
            # processes map this shared memory, which is counted already
            elif mesh.device == "cpu" and way.handed_on:
                yield place.host, mesh.service, -mesh.procs * size


def _on_host(rank: RankMemory | None, mesh: MeshPlan) -> int:
    """Return the bytes of a process in host memory, without shared code."""
    if rank is None or mesh.device == "cpu":
        return rank.peak if rank is not None else 0
    return rank.on_host


def _fits(request: Request, name: str, rows: int, seq_len: int) -> bool:
    """True if microbatches of this shape keep every memory below 92 %."""
    ranks = ranks_of(replace(request, rows={**request.rows, name: (rows, seq_len)}))
    mine = [s for s in stores(request, ranks) if name in s.services]
    return all(s.share <= TIGHT for s in mine) and not starved(ranks, sharing(request, name))


def _fitting_rows(request: Request, name: str) -> int:
    """Return the largest number of rows that keeps every memory below 92 %; 0 if none does."""

    def fits(rows: int) -> bool:
        return _fits(request, name, rows, request.rows[name][1])

    low, high = 0, 1
    most = max(MAX_ROWS, request.rows[name][0])
    while high <= most and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def starved(ranks: Sequence[RankMemory], names: Sequence[str]) -> list[RankMemory]:
    """Return the engines whose KV pool is smaller than one sequence of the context: they refuse to
    start."""
    return [
        rank
        for rank in ranks
        if rank.service in names and rank.pool is not None and rank.pool.is_starved
    ]
