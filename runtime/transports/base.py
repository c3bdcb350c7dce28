"""What a weight transport is: how a published set of weights gets from trainer to generators.

    trainer: Sender.publish(state) --> Manifest --> generator: Transport.open --> (name, tensor) ...

A sender lays the state dict out in one flat buffer and fills it; what a transport adds is where the
buffer lies and how another process finds it. Two buffers take turns, so that version v+1 can be
written while v is still being read; the controller starts no push before the pull before the
previous one has ended. To add a transport: docs/design/transports.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from forgedsl.runtime.scratch import SHM

ALIGN = 64
Gather = Callable[[Tensor, torch.dtype], Tensor]
"""makes a whole tensor of a sharded one, together with the other ranks"""


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

    def gap(self, logprobs: Sequence[float]) -> float:
        """The largest difference to what a receiver computed."""
        return max(abs(a - b) for a, b in zip(self.logprobs, logprobs, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A published set of weights. `buffer` is what the transport finds it by."""

    version: int
    transport: str
    buffer: Any
    num_bytes: int
    entries: tuple[Entry, ...]
    probe: Probe | None = None


class Buffers(Protocol):
    """The two buffers of a sender, on its side."""

    def make(self, turn: int, num_bytes: int) -> tuple[Tensor, Any]:
        """Buffer 0 or 1, uint8 [num_bytes], and what another process finds it by."""

    def written(self) -> None:
        """All copies into a buffer have been asked for: return when they are done."""

    def close(self) -> None:
        """Give the buffers back; readers that have them open keep them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """One way of weights between processes, as the registry lists it."""

    name: str
    buffers: Callable[[str], Buffers]
    """the sender's two, for the key of a run"""
    attach: Callable[[Any, int], Tensor]
    """on the receiver's side, the buffer of a manifest: uint8 [num_bytes]"""

    def open(self, manifest: Manifest) -> Iterator[tuple[str, Tensor]]:
        """(Hugging Face name, tensor) of a manifest, as views into its buffer."""
        buffer = self.attach(manifest.buffer, manifest.num_bytes)
        for entry in manifest.entries:
            yield entry.name, _view(buffer, entry)


class Sender:
    """Publishes successive versions over one transport."""

    def __init__(
        self, transport: Transport, run_key: str, dtype: torch.dtype, gather: Gather = Tensor.to
    ) -> None:
        self._transport = transport.name
        self._buffers = transport.buffers(run_key)
        self._made: dict[int, tuple[Tensor, Any]] = {}
        self._dtype = dtype
        self._gather = gather
        self._turn = 0

    def take_part(self, state: dict[str, Tensor]) -> None:
        """Send this rank's shards to the rank that publishes."""
        for value in state.values():
            self._gather(value, self._dtype)

    def publish(
        self, state: dict[str, Tensor], version: int, probe: Probe | None = None
    ) -> Manifest:
        """Copy `state` (cast to the generator's dtype) into the next buffer.

        One tensor after the other is gathered, copied and freed: no more than the largest is whole
        in memory, and the other ranks must `take_part` meanwhile.
        """
        entries, end = self._layout(state)
        if self._turn not in self._made:
            self._made[self._turn] = self._buffers.make(self._turn, end)
        buffer, handle = self._made[self._turn]
        self._turn = 1 - self._turn
        for entry in entries:
            _view(buffer, entry).copy_(self._gather(state[entry.name], self._dtype))
        self._buffers.written()
        return Manifest(
            version=version, transport=self._transport, buffer=handle, num_bytes=end,
            entries=entries, probe=probe,
        )  # fmt: skip

    def close(self) -> None:
        """Give the buffers back."""
        self._made.clear()
        self._buffers.close()

    def _layout(self, state: dict[str, Tensor]) -> tuple[tuple[Entry, ...], int]:
        entries, end = [], 0
        for name, value in state.items():
            dtype = self._dtype if value.is_floating_point() else value.dtype
            entries.append(
                Entry(
                    name=name,
                    shape=tuple(value.shape),
                    dtype=str(dtype).removeprefix("torch."),
                    offset=end,
                )
            )
            size = value.numel() * dtype.itemsize
            end += (size + ALIGN - 1) // ALIGN * ALIGN
        return tuple(entries), end


def _view(buffer: Tensor, entry: Entry) -> Tensor:
    dtype = getattr(torch, entry.dtype)
    num_bytes = torch.Size(entry.shape).numel() * dtype.itemsize
    flat = buffer[entry.offset : entry.offset + num_bytes]
    return flat.view(dtype).view(entry.shape)
