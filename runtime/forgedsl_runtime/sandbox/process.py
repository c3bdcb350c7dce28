"""Run programs in confined processes with limits; collect their answers and kill all of them.

    evaluate(code, steps) -> the request, marshalled -> inside/ -> lines of JSON -> Answers
    run_cases(code, cases) -> a judge and a program, each confined, with two pipes between them
                          -> one verdict for each case, from the judge's process

When a call returns, its process trees are dead in every case. The output is limited in size, time
and depth. It is data: parsed, never executed.
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
from collections.abc import Iterator, Mapping, Sequence
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
"""seconds to wait until killed processes have closed the pipe"""


class SandboxError(RuntimeError):
    """The sandbox could not be set up; the program is not to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a program; sizes in bytes, times in seconds. `files` and `processes` (besides the
    first one) apply at level `namespaces` only; at other levels a program can write no file and
    start no process. `memory` is per process."""

    wall: float = 10.0
    cpu: int = 8
    memory: int = 1 << 30
    files: int = 16 << 20
    file: int = 8 << 20
    processes: int = 0
    output: int = 4 << 20


class Opaque:
    """Stands for a value that is no plain data; it equals nothing."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Result of a program. `values` and `errors` by step (-1: the program itself). `ended` is
    `finished`, `time` or `output`; in the last two cases the program exceeded that limit and was
    stopped."""

    values: Mapping[int, Any]
    errors: Mapping[int, str]
    ended: str


def evaluate(code: str, steps: Sequence[Step], *, level: str, limits: Limits) -> Answers:
    """Run `code`, then `steps`, at a level that this host has.

    Raises:
        SandboxError: the process could not be confined.
    """
    spec = {"role": "calls", "code": code, "steps": list(steps)}
    with _running_process(spec, level, limits) as child:
        output, ended = _collect(child, limits)
    return _read(_confined(output, level), ended)


def run_cases(
    code: str, cases: Mapping[str, Any], *, level: str, limits: Limits
) -> dict[int, bool | str]:
    """Execute `cases` in a judge process that calls the process of `code`; return verdicts by case.
    A text says what is wrong with a case. Missing cases were not reached.

    Raises:
        SandboxError: a process could not be confined.
    """
    (to_program, asks), (to_judge, answers) = os.pipe(), os.pipe()
    program = {"role": "program", "code": code, "link": (to_program, answers)}
    judge = {"role": "judge", "link": (to_judge, asks), **cases}
    with contextlib.ExitStack() as stack:
        pipes = contextlib.ExitStack()
        for end in (to_program, asks, to_judge, answers):
            pipes.callback(os.close, end)
        with pipes:  # close our copies, so that each side sees when the other ends
            other = stack.enter_context(_running_process(program, level, limits))
            child = stack.enter_context(_running_process(judge, level, limits))
        output, _ = _collect(child, limits)
        lines = _confined(output, level).splitlines()
        if not lines:
            _confined(_first(other), level)
    return dict(map(json.loads, lines))


def _request(spec: Mapping[str, Any], level: str, limits: Limits) -> bytes:
    return marshal.dumps({
        **spec, "level": level, "parent": os.getpid(), "read": _readable(),
        "files": limits.files, "inodes": 1024, "processes": limits.processes,
        "limits": {
            "CPU": limits.cpu, "AS": limits.memory, "FSIZE": limits.file, "CORE": 0, "NOFILE": 64,
            "NPROC": 1 + limits.processes + THREADS, "MEMLOCK": 0, "MSGQUEUE": 0, "SIGPENDING": 64,
        },
    })  # fmt: skip


def _confined(output: bytes, level: str) -> bytes:
    """Return the output that a process wrote after it was confined.

    Raises:
        SandboxError: it could not be confined.
    """
    first, _, rest = output.partition(b"\n")
    if first != b"ready":
        why = first.decode(errors="replace") or "the process sent no message"
        raise SandboxError(f"cannot confine a process at level {level}: {why}")
    return rest


def command(level: str) -> list[str]:
    """Return the command line of a confined interpreter.

    Raises:
        SandboxError: the level needs bubblewrap, which is not installed.
    """
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
    """Return the folders of Python's own files and their libraries, without nested ones."""
    own = (sysconfig.get_path("stdlib"), sysconfig.get_config_var("LIBDIR"))
    found = {path for path in (*LIBRARIES, *own) if path and os.path.exists(path)}
    real = {os.path.realpath(path) for path in found}
    links = {path for path in found if os.path.islink(path)}
    inner = {path for path in real if any(path.startswith(f"{other}/") for other in real)}
    return sorted(links | (real - inner))


@contextlib.contextmanager
def _running_process(
    spec: Mapping[str, Any], level: str, limits: Limits
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that serves `spec`; at the end, kill it and all that it started."""
    payload, line = os.memfd_create("request"), command(level)
    try:
        os.write(payload, _request(spec, level, limits))
        os.lseek(payload, 0, os.SEEK_SET)
        child = subprocess.Popen(
            line, stdin=payload, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/",
            env={"PATH": os.defpath}, start_new_session=True, pass_fds=spec.get("link", ()),
        )  # fmt: skip
    except OSError as error:
        raise SandboxError(f"cannot start {line[0]}: {error.strerror}") from error
    finally:
        os.close(payload)
    assert child.stdout is not None
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        _drain(child.stdout.fileno())
        child.stdout.close()


def _collect(child: subprocess.Popen[bytes], limits: Limits) -> tuple[bytes, str]:
    """Return the output of a process, and how it ended."""
    assert child.stdout is not None
    data = bytearray()
    end = time.monotonic() + limits.wall
    for part in _parts(child.stdout.fileno(), end):
        data += part
        if len(data) > limits.output:
            return bytes(data), "output"
    return bytes(data), "finished" if time.monotonic() < end else "time"


def _first(child: subprocess.Popen[bytes]) -> bytes:
    """Return the process's report on its confinement."""
    assert child.stdout is not None
    return next(_parts(child.stdout.fileno(), time.monotonic() + DYING), b"")


def _parts(pipe: int, end: float) -> Any:
    """Yield output until the last writer is gone, or time is up."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while (left := end - time.monotonic()) > 0:
        if poll.poll(left * 1000):
            part = os.read(pipe, 1 << 16)
            if not part:
                return
            yield part


def _drain(pipe: int) -> None:
    """Wait until no process holds the pipe: then all processes are gone."""
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
            break  # not written by our code: ignore the rest too
    return Answers(values=values, errors=errors, ended=ended)


def _value(found: Any) -> Any:
    """Return the value of its JSON."""
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
