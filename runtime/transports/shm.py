"""Transport `shm`: POSIX shared memory, between any two processes of a host."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from forgedsl.errors import RunError
from forgedsl.runtime.scratch import SHM
from forgedsl.runtime.transports.base import Transport, attached, buffer_path


class SharedMemory:
    """Two files under /dev/shm, named after the run."""

    def __init__(self, run_key: str) -> None:
        self._run_key = run_key
        self._paths: list[Path] = []

    def make(self, turn: int, num_bytes: int) -> tuple[Tensor, str]:
        path = buffer_path(self._run_key, str(turn))
        path.unlink(missing_ok=True)
        _reserve(path, num_bytes)
        self._paths.append(path)
        return _map(path, num_bytes), path.name

    def written(self) -> None:
        """Copies to CPU memory end before they return."""

    def close(self) -> None:
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._paths.clear()


def _reserve(path: Path, num_bytes: int) -> None:
    """Make the file with all its memory: to write where a map has none ends a process by SIGBUS.

    Raises:
        RunError: shared memory is too small.
    """
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        os.posix_fallocate(file, 0, num_bytes)
    except OSError as error:
        path.unlink()
        space = os.statvfs(SHM)
        raise RunError(
            f"a copy of the weights on their way takes {num_bytes >> 20} MiB, and of {SHM} "
            f"{space.f_bavail * space.f_frsize >> 20} MiB are free ({error.strerror}): give it "
            f"more (a container: --shm-size), or see what `ls {SHM}` holds"
        ) from error
    finally:
        os.close(file)


def _map(path: Path, num_bytes: int) -> Tensor:
    return torch.from_file(str(path), shared=True, size=num_bytes, dtype=torch.uint8)


TRANSPORT = Transport(
    name="shm",
    buffers=SharedMemory,
    open=attached(lambda name, size: _map(SHM / name, size)),
)
