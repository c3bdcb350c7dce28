"""Base of weight transports, which bring published weights from a trainer to its generators.

    trainer: Sender.publish(state) --> Manifest --> generator: Transport.open --> (name, tensor) ...

A sender lays the state dict out in one flat buffer and fills it; a transport decides where the
buffer lies and how another process finds it. Two buffers take turns, so that version v+1 can be
written while v is still being read. The trainer publishes v+2 only after the engines have read v.
If a transport is `shared`, each rank keeps and sends a part of the weights. To add a transport:
docs/design/transports.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from forgedsl_runtime.proofs.digest import WORDS, Digests
from forgedsl_runtime.proofs.publication import Digest
from forgedsl_runtime.temporary_files import SHM

ALIGN = 64
SAMPLED = 1 << 21
"""elements of a publication that are compared with the version before: 2 million"""
GATHER_BYTES = 1 << 26
"""size of the tensors that ranks gather at once"""
EAGER_BYTES, STRIDE, FIRST = 16 << 20, 10, 3
"""publications with digests, for receivers to prove what they hold: from a GPU, all of them. From
host memory, all those of at most EAGER_BYTES; of larger ones the first FIRST and every STRIDE-th"""
Gather = Callable[[Sequence[Tensor], torch.dtype], Sequence[Tensor]]
"""gathers sharded tensors; a collective call on all ranks"""
Weights = Iterator[tuple[str, Tensor]]
"""(Hugging Face name, tensor); a tensor may be overwritten by the next one unless it is copied"""


def buffer_path(run_key: str, name: str) -> Path:
    """Return the path of shared memory of a run; `temporary_files.remove_buffers` removes it."""
    return SHM / f"forgedsl-{run_key}-{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One tensor: its Hugging Face name and where it lies in the buffer (bytes)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Check of the weights on a fixed text: `logprobs[t]` is the log-prob of `token_ids[t + 1]`. If
    a receiver computes other values, it did not load what was sent."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    dtype: str = "f32"
    """dtype in which they were computed"""

    def gap(self, logprobs: Sequence[float]) -> float:
        """Return the largest difference to the log-probs of a receiver."""
        return max(abs(a - b) for a, b in zip(self.logprobs, logprobs, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Weights kept by one rank. `buffer` is the handle by which the transport finds them."""

    buffer: Any
    num_bytes: int
    entries: tuple[Entry, ...]


Layout = tuple[tuple[tuple[Entry, ...], int], ...]
"""for each rank: the tensors that it keeps, and their bytes in total"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Broadcast tree: which replica passes the weights on to which."""

    service: str = ""
    """service of the replicas"""
    at: Mapping[str, int] = field(default_factory=dict)
    """host of each replica"""
    first: Mapping[int, str] = field(default_factory=dict)
    """by host: the replica that passes weights on to the others of the host"""
    parents: Mapping[int, int] = field(default_factory=dict)
    """by host: the host that it receives from; a host that receives from the trainer has no
    entry"""
    relays: Mapping[str, Any] = field(default_factory=dict)
    """by replica: address of its relay"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A published set of weights."""

    version: int
    transport: str
    parts: tuple[Part, ...]
    probe: Probe | None = None
    tree: Tree | None = None
    digests: Mapping[str, Digest] | None = None
    """digest of each tensor, if receivers must prove what they hold"""
    changed: float | None = None
    """share of elements that differ from the version before, estimated from at most SAMPLED
    elements; None if nothing was published before, or no update was made since"""
    base: Mapping[str, Digest] | None = None
    """digest of each weight that a published adapter is added to; None if all weights are
    published"""

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This rank among those that publish. `gather_objects` gathers an object from each rank, on all
    ranks. With a pipeline of `stages`, each rank has the tensors of its stage; ranks of a stage are
    adjacent."""

    rank: int = 0
    world: int = 1
    gather_objects: Callable[[Any], list[Any]] = lambda mine: [mine]
    stages: int = 1

    @property
    def ranks_per_stage(self) -> int:
        """Number of ranks of a stage."""
        return self.world // self.stages


class Buffers(Protocol):
    """The two buffers of a sender."""

    def make(self, turn: int, num_bytes: int) -> tuple[Tensor, Any]:
        """Make buffer 0 or 1: uint8 [num_bytes], zeros, and the handle by which another process
        finds it."""

    def wait_for_copies(self) -> None:
        """Wait until all copies into a buffer are done."""

    def close(self) -> None:
        """Release the buffers; readers that have them open keep them."""


def open_by_attaching(attach: Callable[[Any, int], Tensor]) -> Callable[[Manifest], Weights]:
    """Make `Transport.open` from `attach`, which maps the buffer of a part: handle -> uint8
    [num_bytes]."""

    def opened(manifest: Manifest) -> Weights:
        for part in manifest.parts:
            buffer = attach(part.buffer, part.num_bytes)
            for entry in part.entries:
                yield entry.name, view(buffer, entry)

    return opened


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """One way to move weights between processes, as listed in the registry."""

    name: str
    buffers: Callable[[str], Buffers]
    """makes the sender's two buffers, for the key of a run"""
    open: Callable[[Manifest], Weights]
    """yields the weights on the receiver's side"""
    shared: bool = False
    """True if each rank sends a part"""
    fetch: Callable[[Manifest], object] | None = None
    """receives the weights in advance, while the engine goes on"""


class Sender:
    """Publishes successive versions over one transport, on all ranks at once."""

    def __init__(
        self, transport: Transport, run_key: str, dtype: torch.dtype, gather: Gather | None = None,
        ranks: Ranks | None = None, *, proves: bool = True,
    ) -> None:  # fmt: skip
        self._transport, self._proves = transport, proves
        rank = ranks.rank if ranks is not None else 0
        self._buffers = transport.buffers(f"{run_key}-{rank}" if rank else run_key)
        self._made: dict[int, tuple[Tensor, Any]] = {}
        self._parts: dict[int, tuple[Part, ...]] = {}
        self._dtype = dtype
        self._gather = gather or _cast
        self._ranks = ranks or Ranks()
        self._turn = 0
        self._kept: Layout = ()
        self._published = 0
        self._version: int | None = None
        """the version published last"""
        self._changed: float | None = None

    def publish(
        self, state: dict[str, Tensor], version: int, probe: Probe | None = None
    ) -> Manifest:
        """Copy `state` (cast to the generator's dtype) into the next buffers. Tensors are gathered
        in groups of at most GATHER_BYTES (a larger tensor by itself), copied by the rank that keeps
        them, and freed: the other ranks hold at most one such group at a time. Digests are computed
        from the tensors, not from the buffers, so that they also reveal an error of the copy into a
        buffer."""
        self._kept = self._kept or self._layout(state)
        layout, rank, each = self._kept, self._ranks.rank, self._ranks.ranks_per_stage
        turn, self._turn = self._turn, 1 - self._turn
        if turn not in self._parts:
            self._parts[turn] = self._make(turn, layout)
        proves = self._needs_proof(state, layout)
        found = _Digested()
        for keeper, (entries, _) in enumerate(layout):
            for group in _grouped(entries) if keeper // each == rank // each else ():
                wholes = self._gather([state[entry.name] for entry in group], self._dtype)
                for entry, whole in zip(group, wholes, strict=True) if keeper == rank else ():
                    if proves:
                        found.add(entry.name, whole)
                    view(self._made[turn][0], entry).copy_(whole)
                del wholes
        self._buffers.wait_for_copies()
        changed = self._count_changed(turn, version)
        digests = found.read()
        if self._ranks.world > 1 and (proves or changed is not None):
            told = self._ranks.gather_objects((digests, changed))
            digests = {name: one for some, _ in told for name, one in some.items()}
            changed = _sum_counts([counts for _, counts in told])
        if changed is not None:
            self._changed = changed[0] / max(1, changed[1])
        self._published += 1
        return Manifest(
            version=version, transport=self._transport.name, parts=self._parts[turn], probe=probe,
            digests=digests if proves else None, changed=self._changed,
        )  # fmt: skip

    def digests(self, state: dict[str, Tensor]) -> dict[str, Digest]:
        """Return the digest of each tensor as it would be published (a collective)."""
        found = _Digested()
        for group in _grouped([self._entry(name, value) for name, value in state.items()]):
            values = [state[entry.name] for entry in group]
            for entry, whole in zip(group, self._gather(values, self._dtype), strict=True):
                found.add(entry.name, whole)
        digests = found.read()
        if self._ranks.stages > 1:
            told = self._ranks.gather_objects(digests)
            digests = {name: one for some in told for name, one in some.items()}
        return digests

    def close(self) -> None:
        """Release the buffers."""
        self._made.clear()
        self._buffers.close()

    def _make(self, turn: int, layout: Layout) -> tuple[Part, ...]:
        """Make this rank's buffer, if it keeps any tensors; return the parts of all ranks. If only
        rank 0 keeps tensors, only rank 0 knows the handle; elsewhere it is None."""
        entries, end = layout[self._ranks.rank] if self._ranks.rank < len(layout) else ((), 0)
        handle = None
        if entries:
            self._made[turn] = self._buffers.make(turn, end)
            handle = self._made[turn][1]
        handles = self._ranks.gather_objects(handle) if len(layout) > 1 else [handle]
        return tuple(
            Part(buffer=found, num_bytes=end, entries=entries)
            for found, (entries, end) in zip(handles, layout, strict=True)
            if entries
        )

    def _needs_proof(self, state: dict[str, Tensor], layout: Layout) -> bool:
        """True if the receivers of this publication are to prove what they hold; equal on all
        ranks."""
        if not self._proves:
            return False
        on_host = next(iter(state.values())).device.type == "cpu"
        small = sum(end for _, end in layout) <= EAGER_BYTES
        nth = self._published
        return not on_host or small or nth < FIRST or nth % STRIDE == 0

    def _count_changed(self, turn: int, version: int) -> tuple[int, int] | None:
        """Return how many elements of a sample differ from the version before, and how many were
        compared on this rank. Without a version before, return None; this is the same on all
        ranks."""
        before, self._version = self._version, version
        if before in (None, version) or 1 - turn not in self._parts:
            return None
        if self._ranks.rank >= len(self._kept) or not self._kept[self._ranks.rank][0]:
            return 0, 0
        entries, end = self._kept[self._ranks.rank]
        size = self._dtype.itemsize
        step = max(1, end // size * len(self._kept) // SAMPLED) | 1
        new, old = (self._made[each][0].view(WORDS[size])[::step] for each in (turn, 1 - turn))
        # What lies between tensors is zero in both buffers, so it adds no difference.
        compared = sum(
            _multiples(size * step, entry.offset, entry.offset + size_of(entry))
            for entry in entries
        )
        return int((new != old).sum()), compared

    def _layout(self, state: dict[str, Tensor]) -> Layout:
        """Return which tensors each rank keeps; equal on all ranks. If two pipeline stages have the
        same tensor, the first one sends it."""
        ranks, mine = self._ranks, [self._entry(name, value) for name, value in state.items()]
        stages = (
            ranks.gather_objects(mine)[:: ranks.ranks_per_stage] if ranks.stages > 1 else [mine]
        )
        layout: list[tuple[tuple[Entry, ...], int]] = []
        seen: set[str] = set()
        for entries in stages:
            fresh = [entry for entry in entries if entry.name not in seen]
            layout += _split_among_ranks(
                fresh, ranks.ranks_per_stage if self._transport.shared else 1
            )
            layout += [((), 0)] * (-len(layout) % ranks.ranks_per_stage if ranks.stages > 1 else 0)
            seen.update(entry.name for entry in fresh)
        return tuple(layout)

    def _entry(self, name: str, value: Tensor) -> Entry:
        own = getattr(value, "published_dtype", None)
        dtype = own or (self._dtype if value.is_floating_point() else value.dtype)
        text = str(dtype).removeprefix("torch.")
        return Entry(name=name, shape=tuple(value.shape), dtype=text, offset=0)


class _Digested:
    """Digests of whole tensors by name."""

    def __init__(self) -> None:
        self._shapes: dict[str, tuple[int, int]] = {}
        self._digests = Digests()

    def add(self, name: str, whole: Tensor) -> None:
        self._shapes[name] = len(whole), whole.numel() // len(whole)
        self._digests.add(whole)

    def read(self) -> dict[str, Digest]:
        """Wait for the device, and return the digests."""
        return {
            name: Digest(rows=rows, columns=columns, value=value)
            for (name, (rows, columns)), value in zip(
                self._shapes.items(), self._digests.read(), strict=True
            )
        }


def _cast(values: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Return tensors of one rank as `dtype`."""
    return [value.to(dtype) for value in values]


def _grouped(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Yield the entries in groups of at most GATHER_BYTES; a larger one by itself."""
    group: list[Entry] = []
    total = 0
    for entry in entries:
        size = size_of(entry)
        if group and total + size > GATHER_BYTES:
            yield group
            group, total = [], 0
        group.append(entry)
        total += size
    if group:
        yield group


def _multiples(number: int, start: int, end: int) -> int:
    """Return how many multiples of a number are in [start, end)."""
    return -(-end // number) - -(-start // number)


def _sum_counts(counts: Sequence[tuple[int, int] | None]) -> tuple[int, int] | None:
    """Add up what the ranks have counted."""
    told = [each for each in counts if each is not None]
    return (sum(a for a, _ in told), sum(b for _, b in told)) if told else None


def _split_among_ranks(entries: Sequence[Entry], ranks: int) -> list[tuple[tuple[Entry, ...], int]]:
    """Split tensors among ranks, in parts of about the same size."""
    sizes = [-(-size_of(entry) // ALIGN) * ALIGN for entry in entries]
    kept: list[list[Entry]] = [[] for _ in range(ranks)]
    ends, before, total = [0] * ranks, 0, max(1, sum(sizes))
    for entry, size in zip(entries, sizes, strict=True):
        keeper = min(ranks - 1, (before + size // 2) * ranks // total)
        kept[keeper].append(replace(entry, offset=ends[keeper]))
        ends[keeper] += size
        before += size
    return [(tuple(some), end) for some, end in zip(kept, ends, strict=True)]


def size_of(entry: Entry) -> int:
    """Return the bytes of a tensor."""
    dtype: torch.dtype = getattr(torch, entry.dtype)
    return torch.Size(entry.shape).numel() * dtype.itemsize


def view(buffer: Tensor, entry: Entry, start: int = 0) -> Tensor:
    """Return a tensor in a buffer that begins at byte `start` of its part."""
    begin = entry.offset - start
    flat = buffer[begin : begin + size_of(entry)]
    return flat.view(getattr(torch, entry.dtype)).view(entry.shape)
