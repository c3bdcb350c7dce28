"""Process meshes of services, their weight transports, and settings as a plan reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forgedsl.diagnostics import Label
from forgedsl.ir.graph import Node
from forgedsl.ir.program import Decl, Value
from forgedsl.records import dataclass
from forgedsl.settings import AUTO, Auto, Derived
from forgedsl.sizes.devices import linked
from forgedsl.sizes.hosts import Host
from forgedsl.source import Span
from forgedsl.transports import Spot, choose, row


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Placement of a replica on one host: index of the host, and the GPUs used there."""

    replica: int
    host: int
    gpus: tuple[int, ...]


class Degrees(dict[str, int]):
    """Parallel degrees by name; 1 for degrees that a kind does not have."""

    def __missing__(self, name: str) -> int:
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPlan:
    """Processes of a service; `gpus` is per process, `procs` per host and replica."""

    service: str
    kind: str
    name: str
    hosts: int
    procs: int
    gpus: int
    cpus: int | None
    device: str
    replicas: int
    degrees: Mapping[str, int]
    ep: int = 1
    """number of ranks that share experts (among those that shard the weights)"""
    places: tuple[Place, ...] = ()

    @property
    def shard(self) -> int:
        """Number of ranks over which one copy of a trainer's weights is sharded."""
        return self.degrees["dp_shard"] * self.degrees["cp"] * self.degrees["tp"]

    @property
    def split(self) -> dict[str, int]:
        """Degrees above 1 by name, including `ep`, for output."""
        return {n: d for n, d in {**self.degrees, "ep": self.ep}.items() if d > 1}

    @property
    def world(self) -> int:
        """Number of processes of a replica."""
        return self.hosts * self.procs

    @property
    def total_procs(self) -> int:
        return self.world * self.replicas

    @property
    def total_gpus(self) -> int:
        return self.total_procs * self.gpus

    @property
    def text(self) -> str:
        """Return the sizes as text: "2 replicas x 2 procs x 1 gpu"."""
        parts = [f"{self.replicas} replicas"] if self.replicas > 1 else []
        parts += [f"{self.hosts} hosts"] if self.hosts > 1 else []
        parts.append(f"{self.procs} proc{'s' if self.procs > 1 else ''}")
        parts += [f"{self.gpus} gpu{'s' if self.gpus > 1 else ''}"] if self.gpus else []
        return " x ".join(parts)


def spots(mesh: MeshPlan) -> tuple[Spot, ...]:
    """Return the place of each replica; host 0 if nothing was placed."""
    stages = mesh.degrees.get("pp", 1)
    placed = [
        Spot(host=p.host, gpus=p.gpus, procs=mesh.procs, hosts=mesh.hosts, stages=stages)
        for p in mesh.places
    ]
    return tuple(placed) or (Spot(host=0, gpus=(), procs=mesh.procs),) * mesh.replicas


def transport_of(host: Host, meshes: Sequence[MeshPlan], sync: Node) -> str:
    """Return the transport of a weight sync: as set, else the fastest that works."""
    written = str(sync.settings.get("transport", "auto"))
    by_name = {mesh.service: mesh for mesh in meshes}
    sender, receivers = by_name[sync.target], by_name[str(sync.settings["target"])]
    if written != "auto":
        return written
    return choose(spots(sender)[0], spots(receivers), linked=linked(host.gpu))


def copies_of(meshes: Sequence[MeshPlan], sync: Node, name: str) -> int:
    """Return how many copies of the weights leave the host of the trainer through host memory."""
    by_name = {mesh.service: mesh for mesh in meshes}
    ends = spots(by_name[sync.target])[0], spots(by_name[str(sync.settings["target"])])
    return way.copies(*ends) if (way := row(name)).far and not way.gpus else 0


def value(decl: Decl, key: str, auto: object = None) -> object:
    """Return a setting; `auto` if it is derived or chosen by the plan, or the kind does not have
    it."""
    found = decl.settings[key].value if key in decl.settings else AUTO
    return auto if isinstance(found, Auto | Derived) else found


def number(decl: Decl, key: str, auto: int) -> int:
    """Return an integer setting; `auto` as in `value`."""
    found = value(decl, key)
    return found if isinstance(found, int) else auto


def setting_label(decl: Decl, key: str) -> tuple[Label, ...]:
    """Return a label at the span of a setting, if the file sets it."""
    origin = decl.settings[key].origin
    if origin.span is None or origin.layer == "default":
        return ()
    return (Label(text=f"`{key}` is set here", span=origin.span),)


def written_at(decl: Decl, key: str) -> Span:
    """Return the span of a setting, or of its declaration's name if it is not written."""
    labels = setting_label(decl, key)
    return labels[0].span if labels else decl.name_span


def is_default(setting: Value) -> bool:
    return setting.origin.layer == "default"
