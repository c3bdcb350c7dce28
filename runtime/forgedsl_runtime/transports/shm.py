"""Transport `shm`: POSIX shared memory, between any two processes of a host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from forgedsl.errors import RunError
from forgedsl_runtime.temporary_files import SHM
from forgedsl_runtime.transports.base import Transport, buffer_path, open_by_attaching


class SharedMemory:
    """Two files under /dev/shm, named after the run."""

    def __init__(self, run_key: str) -> None:
        self._run_key = run_key
        self._paths: list[Path] = []

    def make(self, turn: int, num_bytes: int) -> tuple[Tensor, str]:
        if not self._paths:
            self._paths = [buffer_path(self._run_key, str(each)) for each in (0, 1)]
            reserve(self._paths, num_bytes)
        path = self._paths[turn]
        return mapped(path, num_bytes), path.name

    def wait_for_copies(self) -> None:
        """Do nothing: copies to CPU memory are synchronous."""

    def close(self) -> None:
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._paths.clear()


def reserve(paths: Sequence[Path], num_bytes: int) -> None:
    """Create shared memory files and allocate all their memory, before anything is written. If a
    page had no memory, writing to it would kill the process with SIGBUS, possibly only at the
    second publication, which fills the second file.

    Raises:
        RunError: shared memory is too small.
    """
    for path in paths:
        path.unlink(missing_ok=True)
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(file, 0, num_bytes)
        except OSError as error:
            for each in paths:
                each.unlink(missing_ok=True)
            space = os.statvfs(SHM)
            raise RunError(
                f"a weight transfer needs {len(paths)} x {num_bytes >> 20} MiB, but {SHM} has "
                f"only {space.f_bavail * space.f_frsize >> 20} MiB free ({error.strerror}): make "
                "it larger (for a container: --shm-size), or remove old files listed by `ls "
                f"{SHM}`"
            ) from error
        finally:
            os.close(file)


def mapped(path: Path, num_bytes: int) -> Tensor:
    """Map a file of shared memory as uint8 [num_bytes]."""
    return torch.from_file(str(path), shared=True, size=num_bytes, dtype=torch.uint8)


TRANSPORT = Transport(
    name="shm",
    buffers=SharedMemory,
    open=open_by_attaching(lambda name, size: mapped(SHM / name, size)),
)
