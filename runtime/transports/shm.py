"""Transport `shm`: POSIX shared memory, between any two processes of a host."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from forgedsl.runtime.scratch import SHM
from forgedsl.runtime.transports.base import Transport, buffer_path


class SharedMemory:
    """Two files under /dev/shm, named after the run."""

    def __init__(self, run_key: str) -> None:
        self._run_key = run_key
        self._paths: list[Path] = []

    def make(self, turn: int, num_bytes: int) -> tuple[Tensor, str]:
        path = buffer_path(self._run_key, str(turn))
        path.unlink(missing_ok=True)
        buffer = _map(path, num_bytes)
        os.chmod(path, 0o600)
        self._paths.append(path)
        return buffer, path.name

    def written(self) -> None:
        """Copies to CPU memory end before they return."""

    def close(self) -> None:
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._paths.clear()


def _map(path: Path, num_bytes: int) -> Tensor:
    return torch.from_file(str(path), shared=True, size=num_bytes, dtype=torch.uint8)


TRANSPORT = Transport(
    name="shm", buffers=SharedMemory, attach=lambda name, size: _map(SHM / name, size)
)
