"""What a weight transport is: how a published set of weights gets from trainer to generators.

    trainer: Sender.publish(state) --> Manifest --> generator: Transport.open --> (name, tensor) ...

A sender lays the state dict out in one flat buffer and fills it; what a transport adds is where the
buffer lies and how another process finds it. Two buffers take turns, so that version v+1 can be
written while v is still being read; the controller starts no push before the pull before the
previous one has ended. Where a transport is `shared`, each rank keeps and sends a part of the
weights, none all of them. To add a transport: docs/design/transports.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from forgedsl.runtime.temporary_files import SHM

ALIGN = 64
Gather = Callable[[Tensor, torch.dtype], Tensor]
"""makes a whole tensor of a sharded one, together with the other ranks"""
Weights = Iterator[tuple[str, Tensor]]
"""by their Hugging Face names; what is not kept may make room for the next"""


def buffer_path(run_key: str, name: str) -> Path:
    """Where a run keeps shared memory; `scratch.remove_buffers` removes all that starts so."""
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
    """What the published weights make of a fixed text: `logprobs[t]` of `token_ids[t + 1]`.

    A receiver that computes something else did not load what was sent.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    dtype: str = "f32"
    """what they were computed in"""

    def gap(self, logprobs: Sequence[float]) -> float:
        """The largest difference to what a receiver computed."""
        return max(abs(a - b) for a, b in zip(self.logprobs, logprobs, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one rank has of the weights. `buffer` is what the transport finds it by."""

    buffer: Any
    num_bytes: int
    entries: tuple[Entry, ...]


Layout = tuple[tuple[tuple[Entry, ...], int], ...]
"""for each rank that keeps a part: its tensors, and the bytes of all of them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Who hands weights on to whom."""

    service: str = ""
    """whose replicas they are"""
    at: Mapping[str, int] = field(default_factory=dict)
    """host of each replica"""
    first: Mapping[int, str] = field(default_factory=dict)
    """of each host, the replica that the others of it take them from"""
    parents: Mapping[int, int] = field(default_factory=dict)
    """of each host, that before it, if that is not the trainer's"""
    relays: Mapping[str, Any] = field(default_factory=dict)
    """where each replica is asked"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A published set of weights."""

    version: int
    transport: str
    parts: tuple[Part, ...]
    probe: Probe | None = None
    tree: Tree | None = None

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among those that publish; `together` gathers a thing of each, on all. In a
    pipeline of `stages`, each so many ranks side by side, ranks have the tensors of their stage."""

    rank: int = 0
    world: int = 1
    together: Callable[[Any], list[Any]] = lambda mine: [mine]
    stages: int = 1

    @property
    def each(self) -> int:
        """Ranks of a stage."""
        return self.world // self.stages


class Buffers(Protocol):
    """The two buffers of a sender, on its side."""

    def make(self, turn: int, num_bytes: int) -> tuple[Tensor, Any]:
        """Buffer 0 or 1, uint8 [num_bytes], and what another process finds it by."""

    def written(self) -> None:
        """All copies into a buffer have been asked for: return when they are done."""

    def close(self) -> None:
        """Give the buffers back; readers that have them open keep them."""


def attached(attach: Callable[[Any, int], Tensor]) -> Callable[[Manifest], Weights]:
    """`Transport.open` by the whole buffer of a part: uint8 [num_bytes] of what it is found by."""

    def opened(manifest: Manifest) -> Weights:
        for part in manifest.parts:
            buffer = attach(part.buffer, part.num_bytes)
            for entry in part.entries:
                yield entry.name, view(buffer, entry)

    return opened


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """One way of weights between processes, as the registry lists it."""

    name: str
    buffers: Callable[[str], Buffers]
    """the sender's two, for the key of a run"""
    open: Callable[[Manifest], Weights]
    """on the receiver's side"""
    shared: bool = False
    """each rank sends a part"""
    fetch: Callable[[Manifest], object] | None = None
    """receive, while the engine goes on, what `open` will hand out"""


class Sender:
    """Publishes successive versions over one transport, on all ranks at once."""

    def __init__(
        self, transport: Transport, run_key: str, dtype: torch.dtype, gather: Gather = Tensor.to,
        ranks: Ranks | None = None,
    ) -> None:  # fmt: skip
        self._transport = transport
        rank = ranks.rank if ranks is not None else 0
        self._buffers = transport.buffers(f"{run_key}-{rank}" if rank else run_key)
        self._made: dict[int, tuple[Tensor, Any]] = {}
        self._parts: dict[int, tuple[Part, ...]] = {}
        self._dtype = dtype
        self._gather = gather
        self._ranks = ranks or Ranks()
        self._turn = 0
        self._kept: Layout = ()

    def publish(
        self, state: dict[str, Tensor], version: int, probe: Probe | None = None
    ) -> Manifest:
        """Copy `state` (cast to the generator's dtype) into the next buffers.

        One tensor after the other is gathered, copied by the rank that keeps it and freed: no more
        than the largest is whole in the memory of the others.
        """
        self._kept = self._kept or self._layout(state)
        layout, rank, each = self._kept, self._ranks.rank, self._ranks.each
        turn, self._turn = self._turn, 1 - self._turn
        if turn not in self._parts:
            self._parts[turn] = self._make(turn, layout)
        for keeper, (entries, _) in enumerate(layout):
            for entry in entries if keeper // each == rank // each else ():
                whole = self._gather(state[entry.name], self._dtype)
                if keeper == rank:
                    view(self._made[turn][0], entry).copy_(whole)
                del whole
        self._buffers.written()
        return Manifest(
            version=version, transport=self._transport.name, parts=self._parts[turn], probe=probe
        )

    def close(self) -> None:
        """Give the buffers back."""
        self._made.clear()
        self._buffers.close()

    def _make(self, turn: int, layout: Layout) -> tuple[Part, ...]:
        """This rank's buffer, if it keeps anything, and all parts as far as it knows them."""
        entries, end = layout[self._ranks.rank] if self._ranks.rank < len(layout) else ((), 0)
        handle = None
        if entries:
            self._made[turn] = self._buffers.make(turn, end)
            handle = self._made[turn][1]
        handles = self._ranks.together(handle) if len(layout) > 1 else [handle]
        return tuple(
            Part(buffer=found, num_bytes=end, entries=entries)
            for found, (entries, end) in zip(handles, layout, strict=True)
            if entries
        )

    def _layout(self, state: dict[str, Tensor]) -> Layout:
        """What each rank keeps, the same on all ranks; what two stages have, the first sends."""
        ranks, mine = self._ranks, [self._entry(name, value) for name, value in state.items()]
        stages = ranks.together(mine)[:: ranks.each] if ranks.stages > 1 else [mine]
        layout: list[tuple[tuple[Entry, ...], int]] = []
        seen: set[str] = set()
        for entries in stages:
            fresh = [entry for entry in entries if entry.name not in seen]
            layout += _shared_out(fresh, ranks.each if self._transport.shared else 1)
            layout += [((), 0)] * (-len(layout) % ranks.each if ranks.stages > 1 else 0)
            seen.update(entry.name for entry in fresh)
        return tuple(layout)

    def _entry(self, name: str, value: Tensor) -> Entry:
        dtype = self._dtype if value.is_floating_point() else value.dtype
        text = str(dtype).removeprefix("torch.")
        return Entry(name=name, shape=tuple(value.shape), dtype=text, offset=0)


def _shared_out(entries: Sequence[Entry], ranks: int) -> list[tuple[tuple[Entry, ...], int]]:
    """What each of some ranks keeps, in pieces of about the same size."""
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
    """How many bytes a tensor takes."""
    dtype: torch.dtype = getattr(torch, entry.dtype)
    return torch.Size(entry.shape).numel() * dtype.itemsize


def view(buffer: Tensor, entry: Entry, start: int = 0) -> Tensor:
    """A tensor in a buffer that begins at byte `start` of its part."""
    begin = entry.offset - start
    flat = buffer[begin : begin + size_of(entry)]
    return flat.view(getattr(torch, entry.dtype)).view(entry.shape)
