"""Weight transports: what each connects and its bandwidth, best first.

Each transport is a row here and a module `runtime/forgedsl_runtime/transports/NAME.py`. Unless the
program names one, the plan gives a `sync` the first that connects its two ends and is known to work
on their GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

from forgedsl.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Place of a process group: index of its (first) host, GPUs (none on CPU) and processes."""

    host: int
    gpus: tuple[int, ...]
    procs: int
    hosts: int = 1
    """consecutive hosts, with the same GPU numbers and as many processes on each"""
    stages: int = 1
    """pipeline stages; each sends its own weights"""

    def shares(self, other: Spot) -> bool:
        """True if both use a common GPU."""
        same = 0 <= other.host - self.host < self.hosts
        return same and not {*self.gpus}.isdisjoint(other.gpus)


BRANCHES = 2
"""fan-out of a relay: hosts that one host forwards weights to"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """A transport. `bytes_per_s` is measured and includes loading the weights;
    a time per layer comes in addition (`plan.cost.SYNC_LAYER`). `where` completes
    "connects only ...". A plan takes a `linked` transport only if NVLink joins the GPUs of a host,
    because other GPUs may not reach each other's memory."""

    name: str
    where: str
    bytes_per_s: float
    same_gpu: bool = False
    far: bool = False
    """works between hosts too"""
    gpus: bool = False
    linked: bool = False
    apart: bool = False
    """works only if trainer and engines share no GPU"""
    handed_on: bool = False
    """hosts that have the weights forward them to further hosts"""

    def serves(self, sender: Spot, receivers: Sequence[Spot]) -> bool:
        """True if it can bring weights from a trainer to all replicas of a generator."""
        if sender.hosts > 1 and sender.stages > 1 and not self.far:
            return False
        if self.same_gpu:
            alone = [s for s in (sender, *receivers) if s.procs == 1 and len(s.gpus) == 1]
            return len(alone) == 1 + len(receivers) == 2 and alone[0] == alone[1]
        if self.gpus and not all(spot.gpus for spot in (sender, *receivers)):
            return False
        if self.apart and any(sender.shares(spot) for spot in receivers):
            return False
        return self.far or all(spot.host == sender.host for spot in receivers)

    def copies(self, sender: Spot, receivers: Sequence[Spot]) -> int:
        """Return the number of copies of the weights that leave the sender's host."""
        if self.handed_on:
            return min(BRANCHES, len({s.host for s in receivers if s.host != sender.host}))
        return direct_copies(sender, receivers)


def direct_copies(sender: Spot, receivers: Sequence[Spot]) -> int:
    """Return the number of copies that leave the sender's host if each remote process takes its
    own."""
    return sum(spot.procs for spot in receivers if spot.host != sender.host)


TRANSPORTS = (
    Transport(
        name="ipc",
        where="one trainer process and one engine that share a GPU",
        bytes_per_s=400e9,
        same_gpu=True,
    ),
    Transport(
        name="peer",
        where="GPUs of one host that reach each other's memory",
        bytes_per_s=50e9,
        gpus=True,
        linked=True,
    ),
    Transport(name="shm", where="processes of one host", bytes_per_s=1e9),
    # within a host `shm` comes first: this one was not measured there without NVLink
    Transport(
        name="nccl",
        where="GPUs of any hosts, if trainer and engines do not share them",
        bytes_per_s=3e9,
        far=True,
        gpus=True,
        apart=True,
    ),
    Transport(
        name="tree",
        where="processes of any hosts",
        bytes_per_s=0.7e9,
        far=True,
        handed_on=True,
    ),
    Transport(name="tcp", where="processes of any hosts", bytes_per_s=0.7e9, far=True),
)
NAMES = tuple(transport.name for transport in TRANSPORTS)
RATES = {transport.name: transport.bytes_per_s for transport in TRANSPORTS}
ON_GPUS = frozenset(each.name for each in TRANSPORTS if each.gpus or each.same_gpu)
"""transports that publish weights in GPU memory: each GPU of the sender keeps its shard of the two
buffers of published weights"""


def row(name: str) -> Transport:
    """Return the transport of this name. A rule has checked that it exists."""
    return next(each for each in TRANSPORTS if each.name == name)


def offered(*, linked: bool) -> tuple[Transport, ...]:
    """Return the transports that a plan may take, with or without NVLink between GPUs of a host."""
    return tuple(t for t in TRANSPORTS if linked or not t.linked)


def choose(sender: Spot, receivers: Sequence[Spot], *, linked: bool) -> str:
    """Return the first transport that works between the ends; a forwarding one only if it sends
    fewer copies."""
    direct = direct_copies(sender, receivers)
    return next(
        t.name
        for t in offered(linked=linked)
        if t.serves(sender, receivers)
        and not (t.handed_on and t.copies(sender, receivers) >= direct)
    )
