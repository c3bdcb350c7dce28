"""Memory of ranks: items, phases, KV pools, and the inputs of estimates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from forgedsl.families.base import Dims
from forgedsl.ir.graph import Node
from forgedsl.ir.program import Decl, Program, engine_of
from forgedsl.records import dataclass, field
from forgedsl.sizes.hosts import Host
from forgedsl.sizes.meshes import MeshPlan, number, value
from forgedsl.sizes.params import ITEMSIZE, adapter_params, num_params

PHASES = ("rollout", "sync", "train")
GIB = 2**30
MAX_RUNNING = 256
"""completions that an engine decodes at once unless its settings say otherwise; also read by the
runtime"""
BATCHED_TOKENS = {"cpu": 8192, "gpu": 16384}
"""largest number of tokens in a step of an engine, by device. A step that contains a prompt is
launched layer by layer, which takes the host 30 ms at 28 layers for any number of tokens. Contexts
of 70,000 tokens took 1.0 s in steps of 2,048, vLLM's own limit, and 0.2 s in steps of 16,384
(0.6B, one H200)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A line of the memory table. `formula` contains its numbers."""

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
class Pool:
    """KV pool of a rank of an engine. `bytes` is zero or negative if other items (`taken`) fill the
    claim."""

    bytes: int
    per_token: int
    context: int
    claim: int
    """bytes of the GPU that the rank may use"""
    taken: tuple[Item, ...]
    """bytes of other items within the claim"""

    @property
    def tokens(self) -> int:
        return self.bytes // self.per_token

    @property
    def is_starved(self) -> bool:
        """True if the pool is smaller than one sequence of the context."""
        return self.bytes < max(1, self.context) * self.per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Memory of a rank. `fraction` is the part of a GPU that an engine claims."""

    service: str
    ranks: int
    phases: tuple[Phase, ...]
    fraction: float | None = None
    pool: Pool | None = None
    """KV pool of a sampler"""
    rows: int = 0
    """rows of a microbatch"""
    trained: bool = False
    on_host: int = 0
    """bytes of its state that are offloaded to the host's memory"""
    published: int = 0
    """bytes of published weights in the host's memory"""
    note: str = ""
    """note shown in the plan"""

    def bytes(self, phase: str) -> int:
        return next(p.bytes for p in self.phases if p.name == phase)

    @property
    def peak(self) -> int:
        return max(phase.bytes for phase in self.phases)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Inputs of the memory estimates."""

    program: Program
    meshes: tuple[MeshPlan, ...]
    host: Host
    dims: Mapping[str, Dims | None]
    """dimensions of the model, by service"""
    contexts: Mapping[str, int | None]
    """tokens of the longest sequence, by service"""
    rows: Mapping[str, tuple[int, int]]
    """(rows, seq_len) by service that trains or measures"""
    trainer: str
    syncs: tuple[Node, ...]
    held: Mapping[str, int] = field(default_factory=dict)
    """bytes of each replay buffer"""
    played: tuple[str, ...] = ()
    """environments in use"""
    tenant_ranks: Mapping[str, int] = field(default_factory=dict)
    """rank of the adapter of each service that the engine of another one serves; 0: the base"""
    detected: Host | None = None
    """the host before `cluster` of the program applies"""
    base_dir: Path | None = None
    """folder of the file"""

    def tenants(self, service: str) -> tuple[str, ...]:
        """Return the services that the engine of this one serves besides it."""
        return tuple(n for n in self.tenant_ranks if engine_of(self.program, n) == service)

    @property
    def synced(self) -> frozenset[str]:
        """The services that receive weights."""
        return frozenset(str(sync.settings["target"]) for sync in self.syncs)

    def adapter_rank(self, service: str) -> int | None:
        """Return the rank of the adapter that this service publishes or receives alone; None if
        there is none."""
        for sync in self.syncs:
            ends = (sync.target, str(sync.settings["target"]))
            if service in ends and sync.settings.get("weights") == "adapter":
                return number(self.program.services[sync.target], "lora.rank", 0) or None
        return None

    def added_rank(self, service: str) -> int:
        """Return the rank of the adapter that an engine adds when this service samples; 0 if it
        adds none."""
        if service in self.tenant_ranks:
            return self.tenant_ranks[service]
        return self.adapter_rank(service) or 0

    def num_published(self, service: str) -> int:
        """Return the number of parameters that this service publishes or receives; those of its
        model if its dimensions are known."""
        dims, rank = self.dims[service], self.adapter_rank(service)
        if dims is None:
            return 0
        return num_params(dims) if rank is None else adapter_params(dims, rank)

    def mesh(self, service: str) -> MeshPlan:
        """Return the mesh on which a service computes: its own, or that of the engine that serves
        it."""
        engine = engine_of(self.program, service)
        return next(mesh for mesh in self.meshes if mesh.service == engine)


def itemsize(program: Program, decl: Decl) -> int:
    """Return the bytes of an element of a service's dtype."""
    argument = decl.ctor_args[0]
    model = program.models[argument.name]
    return ITEMSIZE[str(value(decl, "dtype") or model.settings["dtype"].value)]


def phase_of(name: str, *groups: list[Item]) -> Phase:
    return Phase(name=name, items=tuple(item for group in groups for item in group if item.bytes))


def item_of(name: str, size: float, formula: str) -> Item:
    return Item(name=name, bytes=round(size), formula=formula)


def kept_item(size: float, device: str) -> Item:
    what = {"cpu": "freed by the step, kept by malloc", "gpu": "freed, kept by PyTorch's allocator"}
    return item_of("kept by the allocator", max(0.0, size), what[device])


def count_text(parameters: float) -> str:
    """Format a number of parameters: "1.72 B"."""
    if parameters >= 1e9:
        return f"{parameters / 1e9:.2f} B"
    return f"{parameters / 1e6:.1f} M" if parameters >= 1e6 else f"{parameters / 1e3:.0f} k"


def sharing(request: Request, service: str) -> tuple[str, ...]:
    """Return the other services with a rank on a GPU of `service`."""
    mine = {(p.host, gpu) for p in request.mesh(service).places for gpu in p.gpus}
    return tuple(
        mesh.service
        for mesh in request.meshes
        if mesh.service != service
        and mine & {(p.host, gpu) for p in mesh.places for gpu in p.gpus}
        and request.dims[mesh.service] is not None
    )
