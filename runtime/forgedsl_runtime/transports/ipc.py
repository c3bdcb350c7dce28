"""Transports `ipc` and `peer`: CUDA memory of the trainer that its generators map too.

With `ipc`, trainer and engine share a GPU, and weights never leave it: the trainer copies them into
one of two buffers, each as large as the weights, and an engine copies them out. With `peer`, they
are on different GPUs of a host. Each rank of the trainer keeps a part of these buffers on its GPU,
and the engine reads all parts over NVLink or PCIe. CUDA_VISIBLE_DEVICES of a process need not
include the GPUs of other processes.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from forgedsl.errors import RunError
from forgedsl_runtime.transports.base import Transport, open_by_attaching

DEVICE = 6
"""index of the device number in the arguments with which torch rebuilds a shared CUDA tensor"""


class DeviceMemory:
    """Two tensors on the trainer's device; kept as long as a process may read them."""

    def __init__(self, run_key: str) -> None:
        self._kept: list[Tensor] = []

    def make(self, turn: int, num_bytes: int) -> tuple[Tensor, Any]:
        from torch.multiprocessing.reductions import reduce_tensor

        buffer = torch.zeros(num_bytes, dtype=torch.uint8, device="cuda")
        self._kept.append(buffer)
        rebuild, arguments = reduce_tensor(buffer)  # type: ignore[no-untyped-call]
        # Share no CUDA event: it would belong to another GPU. `wait_for_copies` waits.
        return buffer, ((os.getpid(), turn), (rebuild, (*arguments[:-1], False)))

    def wait_for_copies(self) -> None:
        torch.cuda.synchronize()

    def close(self) -> None:
        self._kept.clear()


_opened: dict[tuple[Any, int], Tensor] = {}
"""by process and turn: the buffers that this process has mapped; a handle is opened once"""


def attach(handle: Any, num_bytes: int) -> Tensor:
    """Map a rank's buffer of this turn into this process.

    Raises:
        RunError: this process cannot open the trainer's GPU memory.
    """
    key, (rebuild, arguments) = handle
    if key not in _opened:
        # The sender's device number has no meaning here: memory is mapped for our own device.
        here = (*arguments[:DEVICE], torch.cuda.current_device(), *arguments[DEVICE + 1 :])
        try:
            _opened[key] = rebuild(*here)
        except RuntimeError as error:
            raise RunError(
                f"this process cannot open the trainer's GPU memory ({error}); `transport = shm` "
                "sends the weights through host memory"
            ) from error
    return _opened[key]


TRANSPORT = Transport(name="ipc", buffers=DeviceMemory, open=open_by_attaching(attach))
PEER = Transport(name="peer", buffers=DeviceMemory, open=open_by_attaching(attach), shared=True)
