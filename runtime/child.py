"""A process that answers calls for its parent: what a call does to it, it does to no one else.

    Child.ask(value) --(number, value)--> the loop of a worker --(number, answer, last)--> answer

Answers come one by one, over a socket. A call that does not react to the end of its time costs the
process, which is killed with all that it has started; other calls in it learn that they have to be
made again. The process of a worker begins in a `main(number)` that reads what it serves, loads it,
and says "" or what is wrong with it.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from forgedsl.errors import LaunchError
from forgedsl.runtime.scratch import own_semaphores

HEAD = struct.Struct("!Q")
PR_SET_PDEATHSIG = 1
GRACE = 1.0
"""seconds that an interrupted call has to end before its process is killed"""
LOADING = 540.0
"""seconds that a worker has to load, of the 600 of a mesh"""


@dataclass(frozen=True, slots=True)
class Ended:
    """The process has ended: why, and whether because of this very call."""

    cause: str
    mine: bool
    late: bool = False
    """it did not react to the end of its time"""


class Child:
    """One process from its start to its end."""

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    _listening: asyncio.Task[None]

    def __init__(self, process: subprocess.Popen[bytes], memory: int | None) -> None:
        self.alive = True
        self._process = process
        self._memory = memory
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._killed = ""

    @classmethod
    async def begin(
        cls,
        module: str,
        served: Any,
        *,
        names: str,
        memory: int | None = None,
        seconds: float | None = None,
    ) -> Child:
        """Start `main` of a module in a process and wait until it has loaded what it serves, as
        long as a run does or so many `seconds`.

        Raises:
            LaunchError: it could not; `names` are what could not be loaded.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            code = f"from {module} import main; main({theirs.fileno()})"
            # a session of its own: what it starts is killed with it, Ctrl-C is not its affair
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        made = cls(process, memory)
        made._reader, made._writer = await asyncio.open_connection(sock=ours)
        try:
            limit = LOADING if seconds is None else seconds
            async with asyncio.timeout(LOADING):
                await made._read()  # it runs: what it imports itself is no time of theirs
            made._write((served, max(limit - 5.0, limit / 2)))
            async with asyncio.timeout(limit):
                problem = await made._read()
        except TimeoutError:
            problem = f"{names}: not loaded within {limit:g} s; what runs on import must end"
        except (asyncio.IncompleteReadError, ConnectionError):
            problem = f"{names}: the process ended while it was loading: {await made._cause('')}"
        if problem:
            made.kill("")
            process.wait()
            raise LaunchError(problem)
        made._listening = asyncio.create_task(made._listen())
        return made

    async def ask(self, value: Any, limit: float) -> Any:
        """The answer, or `Ended`."""
        number = next(self._numbers)
        future: asyncio.Future[Any]
        self._waiting[number] = future = asyncio.get_running_loop().create_future()
        try:
            self._write((number, value))
            async with asyncio.timeout(limit + GRACE):
                return await future
        except TimeoutError:
            self.kill("another call took too long")
            cause = f"{late(limit)}, nor did it react: the process was killed"
            return Ended(cause, mine=True, late=True)
        finally:
            del self._waiting[number]

    def kill(self, reason: str) -> None:
        """End the process and all that it has started."""
        self.alive = False
        self._killed = reason
        started: list[psutil.Process] = []
        if self._process.poll() is None:  # else the number may be another's by now
            with suppress(psutil.NoSuchProcess):  # also those in sessions of their own
                started = psutil.Process(self._process.pid).children(recursive=True)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for each in started:
            with suppress(psutil.NoSuchProcess):
                each.kill()

    async def _listen(self) -> None:
        """Hand out answers until the process has ended."""
        try:
            while True:
                number, answer, last = await self._read()
                self.alive = self.alive and not last
                if number in self._waiting and not self._waiting[number].done():
                    self._waiting[number].set_result(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.alive = False
        cause = await self._cause()
        self._writer.close()
        ended = Ended(self._killed or cause, mine=not self._killed)
        for future in self._waiting.values():
            if not future.done():
                future.set_result(ended)

    async def _cause(self, when: str = " in the call") -> str:
        """How the process ended."""
        code = await asyncio.to_thread(self._process.wait)
        if code >= 0:
            return f"its process ended with exit code {code}{when}"
        name = signal.Signals(-code).name
        hint = "" if self._memory is None else f" (`memory` is {self._memory / 2**20:.0f} MiB)"
        return f"its process was ended by {name}{when}{hint}"

    def _write(self, value: Any) -> None:
        body = pickle.dumps(value)
        self._writer.write(HEAD.pack(len(body)) + body)

    async def _read(self) -> Any:
        (size,) = HEAD.unpack(await self._reader.readexactly(HEAD.size))
        return pickle.loads(await self._reader.readexactly(size))


# ---- in the process


class Interrupted(BaseException):
    """Raised inside what has used up its time."""


def interrupt(number: int, frame: object) -> None:
    raise Interrupted


def begin(number: int) -> tuple[socket.socket, Any]:
    """The stream to the parent, and what is to be served, which has so long to be loaded."""
    die_with_parent()
    own_semaphores(os.environ)
    stream = socket.socket(fileno=number)
    send(stream, "")
    served, seconds = receive(stream)

    def over(number: int, frame: object) -> None:
        raise Interrupted(f"after {seconds:g} s (a run waits {LOADING:g} s)")

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    return stream, served


def loaded(stream: socket.socket) -> None:
    """Say that calls may come."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    send(stream, "")


def send(stream: socket.socket, value: Any) -> None:
    body = pickle.dumps(value)
    stream.sendall(HEAD.pack(len(body)) + body)


def receive(stream: socket.socket) -> Any:
    """The next value. Raises EOFError at the end."""
    (size,) = HEAD.unpack(_exactly(stream, HEAD.size))
    return pickle.loads(_exactly(stream, size))


async def serve_together(
    stream: socket.socket, answer: Callable[[Any], Awaitable[tuple[Any, bool]]]
) -> None:
    """Answer calls side by side as they come, until the stream ends; who sends them bounds their
    number. `answer` gives a reply, and whether the process ends when it is sent."""
    stream.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=stream)
    tasks: set[asyncio.Task[None]] = set()

    async def one(number: int, item: Any) -> None:
        reply, last = await answer(item)
        body = pickle.dumps((number, reply, last))
        writer.write(HEAD.pack(len(body)) + body)
        if last:
            await writer.drain()
            os._exit(0)

    while True:
        try:
            (size,) = HEAD.unpack(await reader.readexactly(HEAD.size))
            number, item = pickle.loads(await reader.readexactly(size))
        except asyncio.IncompleteReadError:
            return
        task = asyncio.create_task(one(number, item))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


def _exactly(stream: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        if not (part := stream.recv(min(size - len(parts), 1 << 20))):
            raise EOFError
        parts += part
    return bytes(parts)


def late(seconds: float) -> str:
    """What is said of a call that took too long."""
    return f"no answer within {seconds:g} s"


def die_with_parent() -> None:
    """Nothing is left behind where the actor is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
