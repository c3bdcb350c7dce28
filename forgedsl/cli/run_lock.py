"""Locks a run folder for one process; the lock ends with the process.

claim(RUN) --flock--> RUN/.running, which names the owner; UsageError if another process has it

A process that starts a run for another one claims the folder first and gives it the open lock file
(`handed_over`), so that the folder is never free in between.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from forgedsl.cli.overrides import UsageError
from forgedsl.surface import in_python

NAME = ".running"
VARIABLE = "FORGEDSL_LOCK"
"""environment variable with the file descriptor of a lock that the parent has handed over"""
_held: dict[Path, TextIO] = {}
"""lock files, kept open until this process ends: closing a file releases its lock"""


def claim(run_dir: Path) -> None:
    """Lock the folder for this process.

    Raises:
        UsageError: another process has it, or nothing can be written there.
    """
    path = run_dir.resolve() / NAME
    if path in _held or _adopt(path):
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
        print(
            f"note: {run_dir} cannot be locked ({error.strerror}): make sure that no other run "
            "uses it",
            file=sys.stderr,
        )
    _sign(file, os.getpid())
    _held[path] = file


def _sign(file: TextIO, pid: int) -> None:
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    file.truncate(0)
    json.dump({"pid": pid, "host": socket.gethostname(), "since": now}, file)
    file.flush()


def _adopt(path: Path) -> bool:
    """Take over the lock of this file, if the parent process has handed it over."""
    given = os.environ.get(VARIABLE, "")
    if not given or not path.is_file() or not os.path.samestat(os.fstat(int(given)), path.stat()):
        return False
    del os.environ[VARIABLE]  # a process that this one starts does not have the file
    os.set_inheritable(int(given), False)
    _held[path] = os.fdopen(int(given), "a+", encoding="utf-8")
    return True


def is_held(run_dir: Path) -> bool:
    """True if this process has the folder."""
    return run_dir.resolve() / NAME in _held


@contextmanager
def handed_over(run_dir: Path) -> Iterator[Handover]:
    """Hand the folder, which this process has claimed, to a process that the body starts."""
    file = _held[run_dir.resolve() / NAME]
    try:
        yield Handover(file)
    finally:
        release(run_dir)  # the lock stays as long as the other process has the file


class Handover:
    """The open lock file: `files` and `variables` are what the new process must inherit."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.files = (file.fileno(),)
        self.variables = {VARIABLE: str(file.fileno())}

    def to(self, pid: int) -> None:
        """Name the new owner."""
        _sign(self._file, pid)


def check_free(run_dir: Path) -> None:
    """Raise a UsageError if another process has the folder; the folder is not locked."""
    path = run_dir.resolve() / NAME
    if path in _held or not path.is_file() or _adopt(path):
        return
    try:
        file = path.open("r", encoding="utf-8")
    except OSError:
        return  # `claim` says that it cannot be written
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise UsageError(_in_use(run_dir, file.read())) from error


def release(run_dir: Path) -> None:
    """Release the folder, so that another process can run in it."""
    if file := _held.pop(run_dir.resolve() / NAME, None):
        file.close()


def _in_use(run_dir: Path, holder: str) -> str:
    try:
        who = "by process {pid} on {host}, since {since}".format(**json.loads(holder))
    except (ValueError, KeyError):  # the owner has the lock, and has not yet written its name
        who = "by another process"
    how = (
        "`running.stop()`, or Ctrl-C in its terminal" if in_python() else "Ctrl-C there, or SIGTERM"
    )
    return (
        f"{run_dir} is in use {who}: two runs in one folder would mix their metrics and "
        f"checkpoints; wait for it, or stop it ({how}) and try again"
    )
