"""Policy versions, and the order of everything that touches a sampler's weights.

Per sampler there is one lane of syncs and evaluations:

    sync v1 -> (eval, eval) at v1 -> sync v2 -> ...

A sync begins when all syncs and evaluations ordered before it are done, because an evaluation
measures one version. An evaluation begins when the last sync ordered before it is done; evaluations
of one version run concurrently. The trainer waits until the sync that it ordered has begun. So at
most one version is in transfer, and the trainer overwrites no version before its transfer begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

Work = Callable[[], Awaitable[None]]


class Versions:
    """Policy versions: `trained` by trained service, `served` by sampler; and one lane per
    sampler."""

    def __init__(self, trained: dict[str, int], served: dict[str, int]) -> None:
        self.trained = trained
        self.served = served
        self._syncs: dict[str, asyncio.Task[None]] = {}
        self._evals: dict[str, list[asyncio.Task[None]]] = {}

    def order_sync(self, tasks: asyncio.TaskGroup, sampler: str, work: Work) -> asyncio.Task[None]:
        before = [*self._evals.pop(sampler, ()), *self._last(sampler)]
        task = tasks.create_task(_run_after(before, work), name=f"sync {sampler}")
        self._syncs[sampler] = task
        return task

    def order_eval(self, tasks: asyncio.TaskGroup, sampler: str, work: Work) -> asyncio.Task[None]:
        task = tasks.create_task(_run_after(self._last(sampler), work), name=f"eval on {sampler}")
        self._evals.setdefault(sampler, []).append(task)
        return task

    async def wait_for_sync(self, sampler: str) -> None:
        """Wait until the last ordered sync of this sampler is done."""
        await _run_after(self._last(sampler), None)

    async def wait_until_idle(self) -> None:
        """Wait until every lane is empty."""
        evals = [task for lane in self._evals.values() for task in lane]
        await _run_after([*self._syncs.values(), *evals], None)

    def _last(self, sampler: str) -> list[asyncio.Task[None]]:
        return [self._syncs[sampler]] if sampler in self._syncs else []


async def _run_after(before: Iterable[asyncio.Task[None]], work: Work | None) -> None:
    """Wait for all of `before`, then run `work`. Failures of `before` belong to the task group."""
    pending = list(before)
    if pending:
        await asyncio.wait(pending)
    if work is not None:
        await work()
