"""An engine beside other processes on a GPU counts its own memory, while theirs changes.

    free memory of the GPU     --vLLM----> what the engine took, and all that others took meanwhile
    memory PyTorch holds here  --counted-> what the engine took

vLLM measures free memory when it starts and after a pass on made-up samples. It takes the
difference for its own, and gives what is left of its share to the KV cache. If a trainer allocates
memory meanwhile, the cache becomes too small. If one frees memory, the cache becomes too large, or
vLLM refuses to start.

Two things are known less exactly here. What libraries take outside of PyTorch cannot be told from
what others take, so it is counted up to LIBRARIES. What the driver takes for CUDA graphs is not
counted, beyond the 1 MiB that vLLM assumes for each. A share of a GPU leaves room for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

LIBRARIES = 2**29
"""most memory outside of PyTorch that an engine takes after it has started to measure, for kernels
that libraries load; 0.22 GiB were measured on an H200. NCCL's memory is taken before"""


@contextmanager
def count_own_memory() -> Iterator[None]:
    """Let vLLM count the memory of this process, if it starts inside this context."""
    import torch
    from vllm.utils.mem_utils import MemorySnapshot

    own = OwnMemory(
        torch.accelerator.get_memory_info, torch.accelerator.memory_reserved, MemorySnapshot.measure
    )
    with (
        patch.object(torch.accelerator, "get_memory_info", own.memory_info),
        patch.object(MemorySnapshot, "measure", lambda snapshot: own.measure(snapshot)),
    ):
        yield


class OwnMemory:
    """Free memory as it would be if only this process had allocated since the first reading.

    `memory_info(device)` returns the free and the total bytes of a GPU, `reserved(device)` the
    bytes that PyTorch holds in this process, and `measure` fills a snapshot of vLLM."""

    def __init__(
        self,
        memory_info: Callable[..., tuple[int, int]],
        reserved: Callable[..., int],
        measure: Callable[[Any], None],
    ) -> None:
        self._memory_info, self._reserved, self._measure = memory_info, reserved, measure
        self._begin: tuple[int, int] | None = None
        """free and reserved bytes at the first reading"""

    def memory_info(self, device: Any = None) -> tuple[int, int]:
        """Return the free and the total bytes. Only memory of PyTorch is counted, so that two
        readings shortly after each other differ by what was allocated between them."""
        free, total = self._memory_info(device)
        if self._begin is None:
            self._begin = free, self._reserved(device)
        return self._begin[0] - self._taken(device), total

    def _taken(self, device: Any) -> int:
        """Return the bytes that PyTorch has taken since the first reading."""
        assert self._begin is not None
        return self._reserved(device) - self._begin[1]

    def measure(self, snapshot: Any) -> None:
        """Measure for a snapshot of vLLM. Memory outside of PyTorch may be that of others, so no
        more than LIBRARIES of it is counted."""
        self._measure(snapshot)  # calls memory_info
        assert self._begin is not None
        free, _ = self._memory_info(snapshot.device_)
        outside = self._begin[0] - free - self._taken(snapshot.device_)
        libraries = min(max(outside, 0), LIBRARIES)
        snapshot.free_memory -= libraries
        snapshot.cuda_memory += libraries
        snapshot.non_torch_memory += libraries
