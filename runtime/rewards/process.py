"""RewardProcess: a process that evaluates rewards (worker.py), as its actor sees it.

    call(item) --slot--> incarnation --socket--> worker    outcomes come one by one
                              `-- ended: calls in it fail with the cause; the next starts another

A call that does not react to the end of its time costs the process: it is killed with all that it
has started, and other calls in it are made again.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any

from forgedsl.errors import LaunchError
from forgedsl.runtime.rewards.worker import HEAD, Item, Outcome, Recipe, late

GRACE = 1.0
"""seconds that an interrupted call has to end before its process is killed"""
LOADING = 540.0
"""seconds that the files and objects of its rewards have to load, of the 600 of a mesh"""
CODE = "from forgedsl.runtime.rewards.worker import main; main({})"


class RewardProcess:
    """Evaluates the rewards of a recipe, in one process at a time."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._slots = asyncio.Semaphore(recipe.concurrency or 1)
        self._starting = asyncio.Lock()
        self._now: _Incarnation | None = None

    async def start(self) -> None:
        """Wait until it can be called.

        Raises:
            LaunchError: a reward cannot be loaded.
        """
        await self._up()

    async def call(self, item: Item) -> list[Outcome]:
        """The outcomes of an item, in the order of its names."""
        async with self._slots:
            while True:
                try:
                    incarnation = await self._up()
                except LaunchError as error:
                    return [Outcome(error=str(error)) for _ in item[0]]
                outcomes = await incarnation.ask(item, self._recipe.limit(item))
                if outcomes is not None:
                    return outcomes

    def close(self) -> None:
        if self._now is not None:
            self._now.kill("it is closed")

    async def _up(self) -> _Incarnation:
        async with self._starting:
            if self._now is None or not self._now.alive:
                self._now = await _Incarnation.begin(self._recipe)
            return self._now


class _Incarnation:
    """One process from its start to its end."""

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    _listening: asyncio.Task[None]

    def __init__(self, process: subprocess.Popen[bytes], memory: int | None) -> None:
        self.alive = True
        self._process = process
        self._memory = memory
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[list[Outcome] | str | None]] = {}
        """outcomes, or how the process ended; None: because of another call"""
        self._killed = ""

    @classmethod
    async def begin(cls, recipe: Recipe) -> _Incarnation:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-c", CODE.format(theirs.fileno())]
            # a session of its own: what a reward starts is killed with it, Ctrl-C is not its affair
            process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        made = cls(process, recipe.memory)
        named = ", ".join(map(recipe.named, recipe.rewards))
        made._reader, made._writer = await asyncio.open_connection(sock=ours)
        try:
            made._write((recipe, max(LOADING - 5.0, LOADING / 2)))
            async with asyncio.timeout(LOADING):
                problem = await made._read()
        except TimeoutError:
            problem = f"{named}: not loaded within {LOADING:g} s; what runs on import must end"
        except (asyncio.IncompleteReadError, ConnectionError):
            problem = f"{named}: the process ended while it was loading: {await made._cause('')}"
        if problem:
            made.kill("")
            process.wait()
            raise LaunchError(problem)
        made._listening = asyncio.create_task(made._listen())
        return made

    async def ask(self, item: Item, limit: float) -> list[Outcome] | None:
        """The outcomes; None if the process was ended because of another call."""
        number = next(self._numbers)
        future: asyncio.Future[list[Outcome] | str | None]
        self._waiting[number] = future = asyncio.get_running_loop().create_future()
        try:
            self._write((number, item))
            async with asyncio.timeout(limit + GRACE):
                found = await future
        except TimeoutError:
            self.kill("another call took too long")
            error = f"{late(limit)}, nor did it react: the process was killed"
            return [Outcome(error=error, seconds=limit, ended=True) for _ in item[0]]
        finally:
            del self._waiting[number]
        if isinstance(found, str):
            return [Outcome(error=found, ended=True) for _ in item[0]]
        return found

    def kill(self, reason: str) -> None:
        """End the process and all that it has started."""
        self.alive = False
        self._killed = reason
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _listen(self) -> None:
        """Hand out outcomes until the process has ended."""
        try:
            while True:
                number, outcomes, last = await self._read()
                self.alive = self.alive and not last
                if number in self._waiting and not self._waiting[number].done():
                    self._waiting[number].set_result(outcomes)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.alive = False
        cause = await self._cause()
        self._writer.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_result(None if self._killed else cause)

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
