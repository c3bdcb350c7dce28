"""A run folder belongs to one process at a time: a lock that ends with the process.

claim(RUN) --flock--> RUN/.running, which says who holds it; UsageError if that is another
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from forgedsl.cli.overrides import UsageError

NAME = ".running"
_held: dict[Path, TextIO] = {}
"""open for as long as this process lives: closing a file gives its lock up"""


def claim(run_dir: Path) -> None:
    """Take the folder for this process.

    Raises:
        UsageError: another process has it, or nothing can be written there.
    """
    path = run_dir.resolve() / NAME
    if path in _held:
        return
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write to the run folder {run_dir}: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            file.seek(0)
            raise UsageError(_in_use(run_dir, file.read())) from error
        print(f"note: {run_dir} cannot be locked ({error.strerror}): use it once", file=sys.stderr)
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    file.truncate(0)
    json.dump({"pid": os.getpid(), "host": socket.gethostname(), "since": now}, file)
    file.flush()
    _held[path] = file


def release(run_dir: Path) -> None:
    """Leave the folder to the process that is to run in it."""
    if file := _held.pop(run_dir.resolve() / NAME, None):
        file.close()


def _in_use(run_dir: Path, holder: str) -> str:
    try:
        who = "by process {pid} on {host}, since {since}".format(**json.loads(holder))
    except (ValueError, KeyError):  # it has the lock, and has not yet written who it is
        who = "by another process"
    return (
        f"{run_dir} is in use {who}: two runs in one folder would mix their metrics and "
        "checkpoints; wait for it, or stop it (Ctrl-C there, or SIGTERM) and try again"
    )
