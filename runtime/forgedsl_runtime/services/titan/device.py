"""What a trainer measures on its device: speed, and peak memory."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist


def gauge(device: torch.device) -> float:
    """Return the seconds for a fixed computation, to compare the speed of ranks."""
    on_gpu = device.type != "cpu"
    size, dtype, times = (4096, torch.bfloat16, 64) if on_gpu else (512, torch.float32, 16)
    own = torch.Generator(device).manual_seed(0)  # do not advance the random generator of training
    factor = torch.randn(size, size, dtype=dtype, device=device, generator=own)
    wait = torch.cuda.synchronize if on_gpu else int
    wait()
    start = time.perf_counter()
    for _ in range(times):
        torch.mm(factor, factor)
    wait()
    return time.perf_counter() - start


class PeakMemory:
    """Most bytes that tensors take at a time on the GPUs of the trainer, from now on."""

    def __init__(self, device: torch.device, world: int) -> None:
        self._device, self._world = device, world
        if device.type != "cpu":
            torch.cuda.reset_peak_memory_stats(device)

    def read(self) -> int | None:
        """Return the largest over all ranks (a collective); None on CPUs."""
        if self._device.type == "cpu":
            return None
        most = torch.tensor(torch.cuda.max_memory_allocated(self._device), device=self._device)
        if self._world > 1:
            dist.all_reduce(most, op=dist.ReduceOp.MAX)
        return int(most)
