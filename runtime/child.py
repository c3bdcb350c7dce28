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


class Calls:
    """Numbered calls over streams; answers come as they are ready. What is asked in one turn of the
    event loop goes together, since each write wakes who reads."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.alive = True
        self._reader, self._writer = reader, writer
        self._sender = Sender(writer.write)
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._listening = asyncio.create_task(self._listen())

    async def call(self, value: Any) -> Any:
        """Raises ConnectionError where the stream ends before the answer."""
        if self._listening.done():
            raise ConnectionError("the line has ended")
        number = next(self._numbers)
        self._waiting[number] = future = asyncio.get_running_loop().create_future()
        self._sender.post((number, value))
        try:
            return await future
        finally:
            del self._waiting[number]

    def close(self) -> None:
        self._writer.close()

    async def _listen(self) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                number, answer, last = await unpacked(self._reader)
                self.alive = self.alive and not last
                if number in self._waiting and not self._waiting[number].done():
                    self._waiting[number].set_result(answer)
        self.alive = False
        self._writer.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the line has ended"))


class Child(Calls):
    """One process from its start to its end."""

    def __init__(
        self, *streams: Any, process: subprocess.Popen[bytes], memory: int | None = None
    ) -> None:
        super().__init__(*streams)
        self._process, self._memory, self._killed = process, memory, ""

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
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            limit = LOADING if seconds is None else seconds
            async with asyncio.timeout(LOADING):
                await unpacked(reader)  # it runs: what it imports itself is no time of theirs
            writer.write(packed((served, max(limit - 5.0, limit / 2))))
            async with asyncio.timeout(limit):
                problem = await unpacked(reader)
        except TimeoutError:
            problem = f"{names}: not loaded within {limit:g} s; what runs on import must end"
        except (asyncio.IncompleteReadError, ConnectionError):
            why = await asyncio.to_thread(ending, process, "", memory)
            problem = f"{names}: the process ended while it was loading: {why}"
        made = cls(reader, writer, process=process, memory=memory)
        if problem:
            made.kill("")
            process.wait()
            raise LaunchError(problem)
        return made

    async def ask(self, value: Any, limit: float) -> Any:
        """The answer, or `Ended`."""
        try:
            async with asyncio.timeout(limit + GRACE):
                return await self.call(value)
        except TimeoutError:
            self.kill("another call took too long")
            cause = f"{late(limit)}, nor did it react: the process was killed"
            return Ended(cause, mine=True, late=True)
        except ConnectionError:
            why = await asyncio.to_thread(ending, self._process, " in the call", self._memory)
            return Ended(self._killed or why, mine=not self._killed)

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


class Lasting:
    """A process that is started again where it has ended; `begin` starts one."""

    def __init__(self, begin: Callable[..., Awaitable[Child]]) -> None:
        self._begin = begin
        self._starting = asyncio.Lock()
        self._now: Child | None = None

    async def start(self, seconds: float | None = None) -> Child:
        """Wait until it can be called, as long as a run does or so many `seconds`.

        Raises:
            LaunchError: what it serves cannot be loaded.
        """
        async with self._starting:
            if self._now is None or not self._now.alive:
                self._now = await self._begin(seconds=seconds)
            return self._now

    def close(self) -> None:
        if self._now is not None:
            self._now.kill("it is closed")


def ending(process: subprocess.Popen[bytes], when: str, memory: int | None) -> str:
    """How a process ended; waits for it."""
    code = process.wait()
    if code >= 0:
        return f"its process ended with exit code {code}{when}"
    hint = "" if memory is None else f" (`memory` is {memory / 2**20:.0f} MiB)"
    return f"its process was ended by {signal.Signals(-code).name}{when}{hint}"


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
    stream.sendall(packed(value))


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
    await answer_all(*await asyncio.open_connection(sock=stream), answer)


async def answer_all(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answer: Callable[[Any], Awaitable[tuple[Any, bool]]],
) -> None:
    """As `serve_together`, over streams."""
    tasks: set[asyncio.Task[None]] = set()
    sender = Sender(writer.write)

    async def one(number: int, item: Any) -> None:
        reply, last = await answer(item)
        sender.post((number, reply, last))
        if last:
            sender.flush()
            await writer.drain()
            os._exit(0)

    while True:
        try:
            number, item = await unpacked(reader)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        task = asyncio.create_task(one(number, item))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


class Sender:
    """Values that go over a stream; those of one turn of the event loop go together, since each
    write wakes who reads."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._parts: list[bytes] = []

    def post(self, value: Any) -> None:
        if not self._parts:
            asyncio.get_running_loop().call_soon(self.flush)
        self._parts.append(packed(value))

    def flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts:
            self._write(b"".join(parts))


def packed(value: Any) -> bytes:
    """A value as it goes over a stream."""
    body = pickle.dumps(value)
    return HEAD.pack(len(body)) + body


async def unpacked(reader: asyncio.StreamReader) -> Any:
    """The next value. Raises IncompleteReadError at the end."""
    (size,) = HEAD.unpack(await reader.readexactly(HEAD.size))
    return pickle.loads(await reader.readexactly(size))


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
