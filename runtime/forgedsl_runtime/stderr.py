"""Redirect native stderr (fd 2) to a log of the run, so that it does not break the progress
display.

    fd 2  (Rust, C++)  --> logs/controller.log
    sys.stderr         --> the original standard error: progress, messages

Monarch prints a banner on fd 2 in every configuration; processes it starts inherit the log until
they open their own.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class TolerantStderr(io.FileIO):
    """Standard error whose reader may vanish: a closed pager or terminal, or a log on a full disk.
    Failed writes are ignored, and the run goes on."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes


@contextmanager
def native_stderr(log: Path) -> Iterator[None]:
    """Send fd 2 to `log`; Python's own stderr stays where it was. A replaced `sys.stderr` (in a
    notebook) does not write to fd 2 and is left alone."""
    log.parent.mkdir(parents=True, exist_ok=True)
    before = sys.stderr
    before.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    first: Any = sys.__stderr__  # mypy would narrow to None
    if before is first:
        raw = io.BufferedWriter(TolerantStderr(kept, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(
            raw, encoding=before.encoding, errors=before.errors, line_buffering=True
        )
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stderr = before
        os.dup2(kept, 2)
        os.close(kept)
