"""Transport `ipc`: CUDA memory that trainer and generators on one GPU have both open.

Weights never leave the GPU: the trainer copies them into a buffer of its own, 2 x the bytes of the
weights in all, and an engine copies them out of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from forgedsl.runtime.transports.base import Transport


class DeviceMemory:
    """Two tensors on the trainer's device; kept as long as somebody may read them."""

    def __init__(self, run_key: str) -> None:
        self._kept: list[Tensor] = []

    def make(self, turn: int, num_bytes: int) -> tuple[Tensor, Any]:
        from torch.multiprocessing.reductions import reduce_tensor

        buffer = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
        self._kept.append(buffer)
        return buffer, (turn, reduce_tensor(buffer))  # type: ignore[no-untyped-call]

    def written(self) -> None:
        torch.cuda.synchronize()

    def close(self) -> None:
        self._kept.clear()


_opened: dict[int, Tensor] = {}
"""buffers that this process has open: a handle is opened once"""


def attach(handle: Any, num_bytes: int) -> Tensor:
    """The sender's buffer of this turn, mapped into this process."""
    turn, (rebuild, arguments) = handle
    if turn not in _opened:
        _opened[turn] = rebuild(*arguments)
    return _opened[turn]


TRANSPORT = Transport(name="ipc", buffers=DeviceMemory, attach=attach)
