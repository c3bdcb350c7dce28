"""Adapter of Monarch: host and process meshes, and reports of their failures.

`Mesh` is one spawned process mesh with its actor. Everything else of Monarch (actors, endpoints,
ports) is used by `forgedsl_runtime.actors` and `forgedsl_runtime.services` through the names
re-exported here.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import gc
import io
import os
import re
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import monarch.actor
from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch.actor import (
    ActorError,
    Channel,
    Port,
    PortReceiver,
    attach_to_workers,
    enable_transport,
    run_worker_loop_forever,
)

from forgedsl_runtime.endpoints import ServiceError, ServiceFailure
from forgedsl_runtime.temporary_files import own_semaphores
from forgedsl_runtime.tracebacks import LONGEST
from forgedsl_runtime.upstream.answers import Callee

__all__ = ["Channel", "Mesh", "Port", "PortReceiver", "attach_hosts", "bootstrap", "serve",
           "this_host"]  # fmt: skip

SETUP_GC = (100_000, 20, 100)
"""garbage collection thresholds during startup: importing thousands of modules makes little
garbage"""
STOP_SECONDS = 8.0
LEFT_SECONDS = 0.5
GONE_SECONDS = 2.0
"""time for live ranks to answer, after some rank has died"""
END_SECONDS, FLUSH_SECONDS = 5.0, 0.3
"""time to end Monarch's client in total, and for each of its two message flushes"""
FRAME = re.compile(r'\s+File ".*", line \d+')
"""a frame in the text of a traceback"""


@functools.cache
def this_host() -> Any:
    """Return this host; start Monarch's client, which `shut_down` ends. Unhandled faults are
    ignored, since callers and watchers of an actor get the error. Monarch's default interrupts the
    main thread as Ctrl-C does and exits with 130."""
    monarch.actor.unhandled_fault_hook = lambda failure: None
    found = monarch.actor.this_host()
    atexit.register(shut_down)  # hooks run in reverse order: this one runs before Monarch's
    return found


def shut_down() -> None:
    """End Monarch's client at the exit of the interpreter; it cannot be started again. Run this
    before Monarch's own exit hook, which then does nothing. Otherwise that hook waits a second, and
    prints a traceback on a busy machine. Output of Monarch's runtime threads to fd 2 is discarded;
    `sys.stderr` still works."""
    first: Any = sys.__stderr__
    if sys.stderr is first:
        sys.stderr = open(os.dup(2), "w", buffering=1, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with suppress(Exception, KeyboardInterrupt):  # the run is over: errors here do not matter
        monarch.actor.shutdown_context(host_timeout=FLUSH_SECONDS).get(timeout=END_SECONDS)


def attach_hosts(addresses: Sequence[str], at: str = "") -> Any:
    """Return Monarch's mesh of the hosts whose workers listen at `addresses`; they may start later.
    They reach this process at TCP address `at`, or through a file."""
    if at:
        enable_transport(f"tcp://{at}:0")
    this_host()  # starts the client
    return attach_to_workers(name="hosts", ca="trust_all_connections", workers=addresses)


def serve(address: str) -> None:
    """Serve as a host until this process ends."""
    run_worker_loop_forever(address=address, ca="trust_all_connections")


def bootstrap(
    environment: dict[str, str],
    log: Path,
    device: str,
    load: Callable[[str], object] = lambda device: None,
) -> Callable[[], None]:
    """Make the start function of every process of a mesh. It sets the environment and the log file,
    then calls `load(device)`, which imports what the actor needs."""
    log_name = str(log)

    def start() -> None:
        gc.set_threshold(*SETUP_GC)
        os.environ.update(environment)
        own_semaphores(environment)
        stream = os.open(
            f"{log_name}-{os.getpid()}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644
        )
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        os.close(stream)
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(line_buffering=True)
        from forgedsl import extensions
        from forgedsl_runtime.services.vllm.upstream.variables import prepare_environment

        extensions.inherit()
        prepare_environment(device)
        try:
            load(device)
        except Exception:  # to the log; the actor cannot import it either, and ends the run
            traceback.print_exc()
        gc.freeze()  # libraries call `gc.collect` during startup: 0.5 s each with vLLM imported

    return start


@dataclass(slots=True, kw_only=True)
class Mesh:
    """Process mesh of one service replica, and the actor on it. `service` and `origin` are those of
    the declaration; `name` is unique to the mesh."""

    service: str
    origin: str
    name: str
    size: int
    procs: Any
    logs: Path
    actor: Any = None
    """the actor in each process, after `run`"""
    recipe: dict[str, Any] = field(default_factory=dict)
    """arguments of `begin` and `run`, to start it again"""
    on: range = range(1)
    """numbers of its hosts in the run"""
    on_gpus: bool = False
    end: Callable[[range, Sequence[int]], None] = lambda on, pids: None
    deaths: int = 0
    """number of earlier meshes of this replica that died"""
    members: list[dict[str, Any]] = field(default_factory=list)
    random_weights: Any = None
    """digests of its weights, if they are random and another service must have the same"""
    callees: dict[int | None, Callee] = field(default_factory=dict)
    """callees by rank (None: all ranks), kept because Monarch leaks 7 KiB per slice"""

    @classmethod
    def begin(
        cls,
        *,
        service: str,
        origin: str,
        name: str,
        size: int,
        start: Callable[[], None],
        logs: Path,
        hosts: Any = None,
        on: range = range(1),
        on_gpus: bool = False,
        end: Callable[[range, Sequence[int]], None] = lambda on, pids: None,
        deaths: int = 0,
    ) -> Mesh:
        """Start `size` processes on each of `hosts` (None: this host), without an actor yet. `on`
        are the numbers of these hosts in the run; `end` kills processes there."""
        recipe = {key: value for key, value in locals().items() if key not in ("cls", "deaths")}
        unique = f"{name}_{deaths}" if deaths else name
        there = this_host() if hosts is None else hosts
        procs = there.spawn_procs(per_host={"procs": size}, bootstrap=start, name=unique)
        return cls(
            service=service, origin=origin, name=name, size=size, procs=procs, logs=logs, on=on,
            on_gpus=on_gpus, end=end, recipe=recipe, deaths=deaths,
        )  # fmt: skip

    def run(self, actor: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Start the actor in each process. It does not wait for them."""
        self.recipe |= {"actor": actor, "args": args, "kwargs": kwargs}
        unique = f"{self.name}_{self.deaths}" if self.deaths else self.name
        self.actor = self.procs.spawn(unique, actor, *args, **kwargs)

    @classmethod
    def spawn(
        cls, *, actor: type, args: tuple[Any, ...], kwargs: dict[str, Any], **processes: Any
    ) -> Mesh:
        """Start the processes, with the arguments of `begin`, and the actor in each."""
        mesh = cls.begin(**processes)
        mesh.run(actor, args, kwargs)
        return mesh

    def respawn(self, **kwargs: Any) -> Mesh:
        """Start the same mesh again; `kwargs` replace arguments of the actor."""
        self.kill()
        recipe = {**self.recipe, "kwargs": {**self.recipe["kwargs"], **kwargs}}
        return Mesh.spawn(**recipe, deaths=self.deaths + 1)

    def kill(self) -> None:
        """Kill the remaining processes of this mesh."""
        self.end(self.on, [member["pid"] for member in self.members])

    def set_hosts(self, hosts: Any, on: range) -> None:
        """Set the hosts for the next start with `respawn`."""
        self.recipe |= {"hosts": hosts, "on": on}
        self.on = on

    async def call(self, endpoint: str, *args: Any) -> list[Any]:
        """Call an endpoint on all ranks; return the results in rank order.

        Raises:
            ServiceError: an actor raised, or its process is gone.
        """
        if None not in self.callees:
            self.callees[None] = Callee(self.actor, self.size * len(self.on))
        async with self._as_service_errors():
            return await self.callees[None].ask(endpoint, *args)

    async def first(self, endpoint: str, *args: Any) -> Any:
        """Call an endpoint on all ranks; return rank 0's result."""
        return (await self.call(endpoint, *args))[0]

    async def first_fail_fast(self, endpoint: str, *args: Any) -> Any:
        """Call as `first` does, but raise the first error at once. Other ranks may be waiting for
        the failed one."""
        ranks = range(self.size * len(self.on))
        async with self._as_service_errors():
            return (await asyncio.gather(*(self._call(r, endpoint, *args) for r in ranks)))[0]

    async def one(self, rank: int, endpoint: str, *args: Any) -> Any:
        """Call an endpoint on one rank."""
        async with self._as_service_errors():
            return await self._call(rank, endpoint, *args)

    async def unresponsive_ranks(self, seconds: float) -> list[int]:
        """Return the ranks that are gone or do not answer within `seconds`."""
        asked = [
            asyncio.ensure_future(self._call(rank, "heartbeat"))
            for rank in range(len(self.members))
        ]
        if not asked:
            return []
        for each in asked:  # retrieve errors even if this coroutine is cancelled
            each.add_done_callback(lambda done: done.cancelled() or done.exception())
        _, late = await asyncio.wait(asked, timeout=seconds)
        for each in late:
            each.cancel()
        return [r for r, each in enumerate(asked) if each in late or each.exception() is not None]

    def describe_ranks(self, ranks: Sequence[int]) -> str:
        """Describe ranks for messages: rank, host and pid."""
        return "; ".join(
            f"rank {rank} on host {self.on.start + rank // self.size}, "
            f"pid {self.members[rank]['pid']}"
            for rank in ranks
        )

    async def _call(self, rank: int, endpoint: str, *args: Any) -> Any:
        if rank not in self.callees:
            host, proc = divmod(rank, self.size)
            at = {"hosts": host} if "hosts" in self.actor.extent else {}
            self.callees[rank] = Callee(self.actor.slice(**at, procs=proc), 1)
        return (await self.callees[rank].ask(endpoint, *args))[0]

    @asynccontextmanager
    async def _as_service_errors(self) -> AsyncIterator[None]:
        """Turn Monarch's errors into ServiceError with service, rank and host."""
        try:
            yield
        except (ActorError, SupervisionError) as error:
            died, ranks = isinstance(error, SupervisionError), range(len(self.members))
            who = self.describe_ranks(
                (died and await self.unresponsive_ranks(GONE_SECONDS)) or ranks
            )
            message = f"process of mesh {self.name}{who and f' ({who})'}: {cause_of(error)}"
            failure = ServiceFailure(
                service=self.service, origin=self.origin, message=message, died=died
            )
            raise ServiceError(failure, died=died) from error

    async def stop(self) -> None:
        """Stop the processes.

        Raises:
            TimeoutError: they did not stop in time.
            ServiceError: they are gone already.
        """
        async with asyncio.timeout(STOP_SECONDS):
            await self.call("leave")
            await asyncio.sleep(LEFT_SECONDS)  # `procs.stop` hangs while processes still run
            await self.procs.stop("end of run")

    async def abandon(self) -> None:
        """Stop the processes of a mesh of which one died before `describe` was answered."""
        with suppress(Exception):  # processes that are gone cannot be stopped
            async with asyncio.timeout(STOP_SECONDS):
                await self.procs.stop("one of them died")

    def last_words(self, lines: int = 12) -> str:
        """Return the last lines of its processes' logs for error messages; "" if there are none."""
        parts = []
        for file in sorted(self.logs.parent.glob(f"{self.logs.name}-*.log")):
            parts += file.read_text(errors="replace").splitlines()[-lines:]
        return "its log ends with:\n" + "\n".join(parts[-lines:]) if parts else ""


def cause_of(error: BaseException) -> str:
    """Return an actor's error as one line: what follows the last frame of its traceback, or the
    last line of an error without one."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    frames = [number for number, line in enumerate(lines) if FRAME.match(line)]
    told = lines[frames[-1] + 1 :] if frames else lines[-1:]
    while len(told) > 1 and told[0][0].isspace():  # source line of the frame, and its ^^^^ marks
        del told[0]
    text = " ".join(line.strip() for line in told)
    return text[:LONGEST] or type(error).__name__
