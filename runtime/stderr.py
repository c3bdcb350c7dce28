"""What libraries print past Python: into a log of the run, and not between the lines of progress.

    fd 2  (Rust, C++)  --> logs/controller.log
    sys.stderr         --> where standard error went before: progress, messages

Monarch greets on fd 2 whatever its settings; processes it starts inherit the log until they open
their own.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Patient(io.FileIO):
    """A standard error that may go: a pager that is left, a terminal that closes, a log whose disk
    is full. What is said then is lost; the run that says it is not."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return memoryview(data).nbytes


@contextmanager
def native_stderr(log: Path) -> Iterator[None]:
    """Send fd 2 to `log`; Python's own stderr stays where it was.

    A `sys.stderr` that is not the interpreter's first one does not write to fd 2, and is left.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    before = sys.stderr
    before.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    first: Any = sys.__stderr__  # mypy would narrow to None
    if before is first:
        raw = io.BufferedWriter(Patient(kept, "w", closefd=False))
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
