"""Checks views of a file in a second process, while this one checks others.

    fork --> check --findings, texts--> pipe --> finish

The second process begins with all that this one has read and imported. It ends when it has written
its findings. If it fails, `finish` returns None, and the caller checks the views itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from forgedsl.diagnostics import Diagnostic
from forgedsl.source import SourceFile

Found = tuple[dict[str, tuple[Diagnostic, ...]], dict[str, SourceFile]]
"""by view: its findings; by name: the texts that they refer to"""


def is_useful() -> bool:
    """True if there is a second processor, and no thread that a fork would leave behind."""
    threads = sys.modules.get("threading")
    if threads is not None and threads.active_count() > 1:
        return False
    return hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1


def start(check: Callable[[], Found]) -> Callable[[], Found | None]:
    """Begin `check` in a second process; return a function that waits for what it found, which is
    None if the process failed. What has no findings at all comes back empty."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.close(reading)
            found, texts = check()
            with os.fdopen(writing, "wb") as stream:
                if any(found.values()):  # most files have no findings, and need no pickle
                    import pickle

                    stream.write(pickle.dumps((found, texts)))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)

    def finish() -> Found | None:
        with os.fdopen(reading, "rb") as stream:
            written = stream.read()
        if os.waitpid(process, 0)[1] != 0:
            return None
        if not written:
            return {}, {}
        import pickle

        found: Found = pickle.loads(written)  # of our own process
        return found

    return finish
