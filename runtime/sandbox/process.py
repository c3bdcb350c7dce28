"""One program in a process of its own: limits in, answers out, nothing left behind.

    evaluate(code, steps) -> the request, marshalled -> inside/ -> lines of JSON -> Answers

The process tree is dead when a call returns, however it ended. What comes back is bounded in size,
time and depth, and is data: it is parsed, never executed.
"""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

Step = tuple[str, str]
"""("do", statements) or ("value", expression)"""
BOOT = "import sys; sys.path.insert(0, {!r}); import inside; del sys.path[0]; inside.main()"
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
THREADS = 32
DYING = 5.0
"""seconds that killed processes have to let go of the pipe"""


class SandboxError(RuntimeError):
    """The sandbox could not be set up; says nothing about the program in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a program may use; sizes in bytes, times in seconds.

    `files` and `processes` (beside the first) are there at level `namespaces` only; elsewhere a
    program can write no file and start no process. `memory` is of each process.
    """

    wall: float = 10.0
    cpu: int = 8
    memory: int = 1 << 30
    files: int = 16 << 20
    file: int = 8 << 20
    processes: int = 0
    output: int = 4 << 20


class Opaque:
    """Stands for a value that is no plain data; equal to nothing."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Values by step; `error` by step (-1: the program itself); `ended` is finished, time, or
    output: the last two were stopped for it."""

    values: Mapping[int, Any]
    errors: Mapping[int, str]
    ended: str


def evaluate(
    code: str,
    steps: Sequence[Step],
    *,
    level: str,
    limits: Limits,
    names: Mapping[str, Any] | None = None,
) -> Answers:
    """Run `code`, then `steps`, at a level that this host has.

    Raises:
        SandboxError: the process could not be confined.
        ValueError: `names` hold what is no plain data.
    """
    spec = {
        "level": level, "parent": os.getpid(), "read": _readable(), "files": limits.files,
        "inodes": 1024, "processes": limits.processes, "code": code, "steps": list(steps),
        "names": dict(names or {}),
        "limits": {
            "CPU": limits.cpu, "AS": limits.memory, "FSIZE": limits.file, "CORE": 0, "NOFILE": 64,
            "NPROC": 1 + limits.processes + THREADS, "MEMLOCK": 0, "MSGQUEUE": 0, "SIGPENDING": 64,
        },
    }  # fmt: skip
    output, ended = _run(command(level), marshal.dumps(spec), limits)
    first, _, rest = output.partition(b"\n")
    if first != b"ready":
        why = first.decode(errors="replace") or "no word from the process"
        raise SandboxError(f"cannot confine a process at level {level}: {why}")
    return _read(rest, ended)


def command(level: str) -> list[str]:
    """The command line of a confined interpreter."""
    python = os.path.realpath(sys.executable)
    here = str(Path(__file__).parent)
    start = [python, "-I", "-S", "-c", BOOT.format(here)]
    if level != "bwrap":
        return start
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxError("bubblewrap is not installed")
    seen = [
        argument
        for path in sorted({*_readable(), python, f"{here}/inside"})
        for argument in (
            ("--symlink", os.readlink(path), path) if os.path.islink(path)
            else ("--ro-bind", path, path)
        )
    ]  # fmt: skip
    return [
        bwrap, "--unshare-all", "--die-with-parent", "--new-session",
        "--cap-drop", "ALL", *seen, "--dev-bind", "/dev/null", "/dev/null", "--dir", "/tmp",
        "--remount-ro", "/", "--chdir", "/tmp", *start,
    ]  # fmt: skip


@cache
def _readable() -> list[str]:
    """Where Python's own files and the libraries they load lie, without what lies in another."""
    own = (sysconfig.get_path("stdlib"), sysconfig.get_config_var("LIBDIR"))
    found = {path for path in (*LIBRARIES, *own) if path and os.path.exists(path)}
    real = {os.path.realpath(path) for path in found}
    links = {path for path in found if os.path.islink(path)}
    inner = {path for path in real if any(path.startswith(f"{other}/") for other in real)}
    return sorted(links | (real - inner))


def _run(line: list[str], request: bytes, limits: Limits) -> tuple[bytes, str]:
    """What a process wrote, and how it ended."""
    payload = os.memfd_create("request")
    try:
        os.write(payload, request)
        os.lseek(payload, 0, os.SEEK_SET)
        child = subprocess.Popen(
            line, stdin=payload, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/",
            env={"PATH": os.defpath}, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise SandboxError(f"cannot start {line[0]}: {error.strerror}") from error
    finally:
        os.close(payload)
    assert child.stdout is not None
    try:
        return _collect(child.stdout.fileno(), limits)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        _drain(child.stdout.fileno())
        child.stdout.close()


def _collect(pipe: int, limits: Limits) -> tuple[bytes, str]:
    data = bytearray()
    end = time.monotonic() + limits.wall
    for part in _parts(pipe, end):
        data += part
        if len(data) > limits.output:
            return bytes(data), "output"
    return bytes(data), "finished" if time.monotonic() < end else "time"


def _parts(pipe: int, end: float) -> Any:
    """What comes until the last writer is gone, or time is up."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while (left := end - time.monotonic()) > 0:
        if poll.poll(left * 1000):
            part = os.read(pipe, 1 << 16)
            if not part:
                return
            yield part


def _drain(pipe: int) -> None:
    """Wait until nobody holds the pipe: then all processes are gone."""
    for _ in _parts(pipe, time.monotonic() + DYING):
        pass


# ---- answers


def _read(output: bytes, ended: str) -> Answers:
    values: dict[int, Any] = {}
    errors: dict[int, str] = {}
    for line in output.splitlines():
        try:
            step, value, *error = json.loads(line)
            if not isinstance(step, int):
                break
            if error:
                errors[step] = str(error[0])[:300]
            else:
                values[step] = _value(value)
        except (ValueError, TypeError, RecursionError, MemoryError):
            break  # no line of ours: what follows counts for nothing either
    return Answers(values=values, errors=errors, ended=ended)


def _value(found: Any) -> Any:
    """The value behind its JSON."""
    if isinstance(found, list):
        return [_value(item) for item in found]
    if not isinstance(found, dict):
        return found
    [(tag, inner)] = found.items()
    if tag in MAKERS:
        return MAKERS[tag](inner)
    return Opaque()


MAKERS: dict[str, Any] = {
    "i": lambda text: int(text, 16),
    "n": float,
    "b": bytes.fromhex,
    "t": lambda items: tuple(map(_value, items)),
    "s": lambda items: set(map(_value, items)),
    "f": lambda items: frozenset(map(_value, items)),
    "d": lambda pairs: {_value(key): _value(item) for key, item in pairs},
}
