"""Coalescing: every caller gets its own result; waiting calls travel together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from forgedsl_runtime.coalesce import Coalescer


def test_results_reach_their_callers_and_calls_merge() -> None:
    sizes = []

    async def double(items: Sequence[int]) -> list[int]:
        sizes.append(len(items))
        await asyncio.sleep(0.001)
        return [2 * item for item in items]

    async def main() -> list[int]:
        queue = Coalescer(double)
        return await asyncio.gather(*(queue.submit(i) for i in range(50)))

    assert asyncio.run(main()) == [2 * i for i in range(50)]
    assert sizes == [50]  # of one turn of the event loop


def test_items_are_divided_among_the_calls_that_may_start() -> None:
    sizes = []

    async def call(items: Sequence[int]) -> Sequence[int]:
        sizes.append(len(items))
        await asyncio.sleep(0.001)
        return items

    async def main(count: int, limit: int) -> list[int]:
        sizes.clear()
        queue = Coalescer(call, parallel=4, limit=limit)
        given = [queue.post(i) for i in range(count)]
        given[1].cancel()  # nobody waits for it
        assert await asyncio.gather(*given, return_exceptions=True)
        return sizes

    assert asyncio.run(main(11, limit=8)) == [2, 3, 3, 2]
    assert asyncio.run(main(11, limit=1)) == [1] * 10
    assert asyncio.run(main(3, limit=8)) == [1, 1]


def test_error_reaches_all_callers_and_the_queue_goes_on() -> None:
    async def fail_on_zero(items: Sequence[int]) -> list[int]:
        if 0 in items:
            raise RuntimeError("zero")
        return list(items)

    async def main() -> int:
        queue = Coalescer(fail_on_zero)
        with pytest.raises(RuntimeError, match="zero"):
            await queue.submit(0)
        return await queue.submit(1)

    assert asyncio.run(main()) == 1
