"""Weights from the trainer to the generators.

`publish` writes a state dict into a POSIX shared-memory file and returns a `Manifest` (names,
shapes, dtypes, offsets); `open_weights` maps it and yields tensors without a copy. Two buffers
take turns, so that version v+1 can be written while v is still being read; the controller starts
no push before the pull before the previous one has ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from forgedsl.runtime.scratch import SHM

ALIGN = 64


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
    """A published set of weights. `buffer` is the name of the shared-memory file."""

    version: int
    buffer: str
    num_bytes: int
    entries: tuple[Entry, ...]
    transport: str = "shm"
    probe: Probe | None = None


class Publisher:
    """Writes successive versions into two alternating buffers named after the run.

    `gather(shards, dtype)` makes a whole tensor of a sharded one, together with the other ranks.
    """

    def __init__(
        self,
        run_key: str,
        dtype: torch.dtype,
        gather: Callable[[Tensor, torch.dtype], Tensor] = Tensor.to,
    ) -> None:
        self._names = (buffer_path(run_key, "0").name, buffer_path(run_key, "1").name)
        self._buffers: dict[str, Tensor] = {}
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
        name = self._names[self._turn]
        self._turn = 1 - self._turn
        buffer = self._buffer(name, end)
        for entry in entries:
            _view(buffer, entry).copy_(self._gather(state[entry.name], self._dtype))
        return Manifest(version=version, buffer=name, num_bytes=end, entries=entries, probe=probe)

    def close(self) -> None:
        """Unlink the buffers; readers that have them mapped keep them."""
        for name in self._buffers:
            (SHM / name).unlink(missing_ok=True)
        self._buffers.clear()

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

    def _buffer(self, name: str, num_bytes: int) -> Tensor:
        if name not in self._buffers:
            path = SHM / name
            path.unlink(missing_ok=True)
            self._buffers[name] = torch.from_file(
                str(path), shared=True, size=num_bytes, dtype=torch.uint8
            )
            os.chmod(path, 0o600)
        return self._buffers[name]


def open_weights(manifest: Manifest) -> Iterator[tuple[str, Tensor]]:
    """Map a published buffer and yield (Hugging Face name, tensor) views into it."""
    path = SHM / manifest.buffer
    buffer = torch.from_file(str(path), shared=True, size=manifest.num_bytes, dtype=torch.uint8)
    for entry in manifest.entries:
        yield entry.name, _view(buffer, entry)


def _view(buffer: Tensor, entry: Entry) -> Tensor:
    dtype = getattr(torch, entry.dtype)
    num_bytes = torch.Size(entry.shape).numel() * dtype.itemsize
    flat = buffer[entry.offset : entry.offset + num_bytes]
    return flat.view(dtype).view(entry.shape)
