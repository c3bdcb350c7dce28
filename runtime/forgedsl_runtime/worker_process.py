"""A worker process that answers calls of its parent, so that a crash or hang affects only the
worker.

    WorkerProcess.ask(value) --(number, value)--> a worker's loop --(number, answer, last)--> answer

Answers come one by one, over a socket. If a call ignores its time limit, the worker is killed with
all processes that it started; other calls that were running in it get an answer that asks for a
retry. The entry point of a worker is `main(number)`: it receives the object to serve, loads it, and
sends "" or the text of an error.
"""

from __future__ import annotations

import asyncio
import ctypes
import hmac
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
from forgedsl_runtime.temporary_files import own_semaphores

HEAD = struct.Struct("!Q")
PR_SET_PDEATHSIG = 1
NO_REPLY = -1
"""number of a message that no call waits for"""
GRACE = 1.0
"""seconds between the interrupt of a call and the kill of its process"""
HASH_SEED = "0"
"""PYTHONHASHSEED of all processes of rewards and environments"""
LOADING = 540.0
"""time limit in seconds for a worker to load; a mesh has 600 s to start"""


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """Result of a call whose process has ended. `cause` says why; `mine` is True if this call is
    the cause."""

    cause: str
    mine: bool
    late: bool = False
    """the call ignored its time limit"""


class PickleStream(asyncio.Protocol):
    """Pickled values over a stream; `received` is called with each. Values sent in one turn of the
    event loop are written together, because each write wakes the reader."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        """done when the stream has ended"""
        self._read = bytearray()
        self._parts: list[bytes] = []

    def received(self, value: Any) -> None:
        raise NotImplementedError

    def post(self, value: Any) -> None:
        if not self._parts:
            asyncio.get_running_loop().call_soon(self.flush)
        self._parts.append(packed(value))

    def flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self.transport.is_closing():
            self.transport.write(b"".join(parts))

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        begin, size = 0, len(self._read)
        while size - begin >= HEAD.size:
            body = begin + HEAD.size
            end = body + HEAD.unpack_from(self._read, begin)[0]
            if size < end:
                break
            self.received(pickle.loads(self._read[body:end]))
            begin = end
        del self._read[:begin]

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():  # the waiter may have been cancelled
            self.ended.set_result(None)


class CallClient(PickleStream):
    """Client: numbered calls over a stream; answers come in any order."""

    def __init__(self, on_message: Callable[[Any], object] | None = None) -> None:
        super().__init__()
        self.alive = True
        self._on_message = on_message
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    def call(self, value: Any) -> asyncio.Future[Any]:
        """Send a call and return its answer as a future.

        Raises:
            ConnectionError: the stream has ended. If it ends later, the future raises this error.
        """
        if self.ended.done():
            raise ConnectionError("the process has disconnected")
        number = next(self._numbers)
        self._waiting[number] = future = asyncio.get_running_loop().create_future()
        self.post((number, value))
        return future

    def tell(self, value: Any) -> None:
        """Send a value without waiting. An answer, if any, goes to the callback `on_message`."""
        self.post((NO_REPLY, value))

    def close(self) -> None:
        self.transport.close()

    def received(self, value: Any) -> None:
        number, answer, last = value
        if last:
            self.alive = False
        if number == NO_REPLY:
            assert self._on_message is not None
            self._on_message(answer)
            return
        future = self._waiting.pop(number)
        if not future.done():  # the caller may have been cancelled
            future.set_result(answer)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.alive = False
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the process has disconnected"))


class CallServer(PickleStream):
    """Server: answers calls concurrently; the client bounds their number. `answer` returns the
    reply, and True if the process ends after sending it. With a `secret`, a client must send it
    first."""

    def __init__(
        self, answer: Callable[[Any], Awaitable[tuple[Any, bool]]], secret: bytes = b""
    ) -> None:
        super().__init__()
        self._answer, self._secret = answer, secret
        self._tasks: set[asyncio.Task[None]] = set()

    def data_received(self, data: bytes) -> None:
        if secret := self._secret:
            self._read += data
            if len(self._read) < len(secret):
                return
            given, data = bytes(self._read[: len(secret)]), bytes(self._read[len(secret) :])
            if not hmac.compare_digest(given, secret):
                self.transport.close()
                return
            self._secret = b""
            self._read.clear()
        super().data_received(data)

    def received(self, value: Any) -> None:
        task = asyncio.create_task(self._one(*value))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _one(self, number: int, item: Any) -> None:
        reply, last = await self._answer(item)
        if number != NO_REPLY or reply is not None:
            self.post((number, reply, last))
        if last:
            self.flush()
            while self.transport.get_write_buffer_size():
                await asyncio.sleep(0.01)
            os._exit(REPLACED)


class WorkerProcess(CallClient):
    """Parent's side of one worker process, from its start to its end."""

    def __init__(self, process: subprocess.Popen[bytes], memory: int | None = None) -> None:
        super().__init__()
        self._process, self._memory, self._killed = process, memory, ""
        self._messages: asyncio.Queue[str | None] = asyncio.Queue()
        """the two messages before the first call: "" when the process runs; then "" when it has
        loaded, or the error of loading"""

    @classmethod
    async def start(
        cls,
        module: str,
        served: Any,
        *,
        names: str,
        memory: int | None = None,
        seconds: float | None = None,
        quiet: bool = False,
    ) -> WorkerProcess:
        """Start `main` of a module in a process and wait until it has loaded what it serves. The
        limit is LOADING, as in a run, or `seconds`. What a `quiet` process prints is not shown.

        Raises:
            LaunchError: it could not load; `names` says what.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = _begin(module, theirs.fileno(), quiet=quiet)
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(lambda: cls(process, memory), sock=ours)
        try:
            limit = LOADING if seconds is None else seconds
            async with asyncio.timeout(LOADING):
                # the process runs; importing this package does not count towards `limit`
                await made._next_message()
            made.post((served, max(limit - 5.0, limit / 2)))
            async with asyncio.timeout(limit):
                problem = await made._next_message()
        except TimeoutError:
            problem = (
                f"{names}: not loaded within {limit:g} s; check for code that does not end "
                "on import"
            )
        except ConnectionError:
            why = await asyncio.to_thread(describe_end, process, "", memory)
            problem = f"{names}: the process ended while it was loading: {why}"
        if problem:
            made.kill("")
            process.wait()
            raise LaunchError(problem)
        return made

    def received(self, value: Any) -> None:
        if isinstance(value, str):
            self._messages.put_nowait(value)
        else:
            super().received(value)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._messages.put_nowait(None)

    async def _next_message(self) -> str:
        if (message := await self._messages.get()) is None:
            raise ConnectionError("the process has disconnected")
        return message

    async def ask(self, value: Any, limit: float) -> Any:
        """Return the answer, or `ProcessEnded` if the process ended."""
        try:
            async with asyncio.timeout(limit + GRACE):
                return await self.call(value)
        except TimeoutError:
            self.kill("another call took too long")
            cause = (
                f"{timeout_message(limit)}, and it ignored the interrupt: the process was killed"
            )
            return ProcessEnded(cause, mine=True, late=True)
        except ConnectionError:
            why = await asyncio.to_thread(describe_end, self._process, " in the call", self._memory)
            return ProcessEnded(self._killed or why, mine=not self._killed)

    def kill(self, reason: str) -> None:
        """Kill the process and all processes that it started."""
        self.alive = False
        self._killed = reason
        started: list[psutil.Process] = []
        if self._process.poll() is None:  # the pid of an ended process may be in use again
            # children in other sessions are not in its process group
            with suppress(psutil.NoSuchProcess):
                started = psutil.Process(self._process.pid).children(recursive=True)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for each in started:
            with suppress(psutil.NoSuchProcess):
                each.kill()


def _begin(module: str, number: int, *, quiet: bool) -> subprocess.Popen[bytes]:
    """Start the process of a worker, which gets its end of the stream. It has a session of its own:
    processes that it starts are killed with it, and Ctrl-C does not reach it. All workers have the
    same hash seed. Without it, a reward that iterates over a set of texts could give different
    values in different workers."""
    output = subprocess.DEVNULL if quiet else None
    return subprocess.Popen(
        [sys.executable, "-c", f"from {module} import main; main({number})"],
        pass_fds=[number],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env={**os.environ, "PYTHONHASHSEED": HASH_SEED},
        start_new_session=True,
    )


class RestartingWorker:
    """A worker process that is started again after it ended; `start` starts one."""

    def __init__(self, start: Callable[..., Awaitable[WorkerProcess]]) -> None:
        self._start = start
        self._starting = asyncio.Lock()
        self._now: WorkerProcess | None = None

    async def start(self, seconds: float | None = None) -> WorkerProcess:
        """Return a running process; start one if needed. `seconds` is the limit for loading.

        Raises:
            LaunchError: what it serves cannot be loaded.
        """
        async with self._starting:
            if self._now is None or not self._now.alive:
                self._now = await self._start(seconds=seconds)
            return self._now

    def close(self) -> None:
        if self._now is not None:
            self._now.kill("it is closed")


REPLACED = 86
"""exit code of a process that ends itself, because calls in it hang or took its memory"""


def describe_end(process: subprocess.Popen[bytes], when: str, memory: int | None) -> str:
    """Wait for a process and describe how it ended."""
    code = process.wait()
    if code == REPLACED:
        return f"its process was replaced{when}: other calls in it hang, or took its memory"
    if code >= 0:
        return f"its process ended with exit code {code}{when}"
    hint = "" if memory is None else f" (`memory` is {memory / 2**20:.0f} MiB)"
    return f"its process was killed by {signal.Signals(-code).name}{when}{hint}"


# ---- in the process


class Interrupted(BaseException):
    """Raised inside a call that has used up its time."""


def interrupt(number: int, frame: object) -> None:
    raise Interrupted


def receive_work(number: int) -> tuple[socket.socket, Any]:
    """Return the stream to the parent, and the object to serve, which the parent sends. Start the
    time limit for loading."""
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
    """Tell the parent that calls may come, and stop the limit for loading."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    send(stream, "")


def send(stream: socket.socket, value: Any) -> None:
    stream.sendall(packed(value))


def receive(stream: socket.socket) -> Any:
    """Return the next value.

    Raises:
        EOFError: the stream has ended.
    """
    (size,) = HEAD.unpack(_exactly(stream, HEAD.size))
    return pickle.loads(_exactly(stream, size))


async def serve_together(
    stream: socket.socket, answer: Callable[[Any], Awaitable[tuple[Any, bool]]]
) -> None:
    """Answer calls (`CallServer`) until the stream ends."""
    stream.setblocking(False)
    loop = asyncio.get_running_loop()
    _, answers = await loop.create_connection(lambda: CallServer(answer), sock=stream)
    await answers.ended


def packed(value: Any) -> bytes:
    """Encode a value for a stream: length, then pickle."""
    body = pickle.dumps(value)
    return HEAD.pack(len(body)) + body


def _exactly(stream: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        if not (part := stream.recv(min(size - len(parts), 1 << 20))):
            raise EOFError
        parts += part
    return bytes(parts)


def timeout_message(seconds: float) -> str:
    """Error text of a call that took too long."""
    return f"no answer within {seconds:g} s"


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
