"""Combine many small awaited calls into few large ones.

While a call is in flight, new items wait. When it returns, all waiting items go out in one call.
There is no timer, so a lone item is not delayed, and a busy service gets large batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Coalescer(Generic[T, R]):
    """Batch items: `await submit(item)` runs `call(items) -> results`, at most `parallel` calls at
    once."""

    def __init__(
        self,
        call: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        *,
        parallel: int = 1,
        limit: int = 4096,
    ) -> None:
        self._call = call
        self._limit = limit
        self._idle = parallel
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._running: set[asyncio.Task[None]] = set()

    async def submit(self, item: T, *, first: bool = False) -> R:
        return await self.post(item, first=first)

    @property
    def num_in_flight(self) -> int:
        """Number of calls in flight."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Number of items that are not sent yet."""
        return len(self._waiting)

    def post(self, item: T, *, first: bool = False) -> asyncio.Future[R]:
        """Queue `item` and return its future at once. With `first`, it goes ahead of the waiting
        items."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.insert(0 if first else len(self._waiting), (item, future))
        self._dispatch()
        return future

    def _dispatch(self) -> None:
        while self._idle and self._waiting:
            batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
            batch = [(item, future) for item, future in batch if not future.done()]
            if not batch:
                continue
            self._idle -= 1
            task = asyncio.create_task(self._send(batch))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _send(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._call([item for item, _ in batch])
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
        finally:
            self._idle += 1
            self._dispatch()
