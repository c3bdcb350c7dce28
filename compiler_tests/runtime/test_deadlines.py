"""Deadlines of calls: late ones end alone, with one timer for all of the same length."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgedsl_runtime.controller.deadlines import deadline
from forgedsl_runtime.sim.clock import Deadlock, run


async def timed(seconds: float, takes: float, begins: float = 0.0) -> tuple[str, float]:
    """What became of a call, and when."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(begins)
    try:
        with deadline(seconds) as call:
            await asyncio.sleep(takes)
    except TimeoutError:
        assert call.expired
        return "late", loop.time()
    assert not call.expired
    return "done", loop.time()


@given(
    st.lists(
        st.tuples(st.sampled_from((2.0, 5.0)), st.integers(0, 90), st.integers(0, 90)),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_each_call_ends_when_it_is_done_or_at_its_own_deadline(calls: list[Any]) -> None:
    # Times are eighths of a second and a 32nd: no call ends at the very time of its deadline.
    times = [(seconds, takes / 8 + 1 / 32, begins / 8) for seconds, takes, begins in calls]

    async def main() -> list[tuple[str, float]]:
        return await asyncio.gather(*(timed(*each) for each in times))

    for (seconds, takes, begins), (what, at) in zip(times, run(main()), strict=True):
        assert what == ("late" if takes > seconds else "done")
        assert at == pytest.approx(begins + min(seconds, takes))


def test_a_call_that_is_cancelled_from_outside_is_not_late() -> None:
    async def main() -> None:
        task = asyncio.create_task(timed(5.0, 10.0))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def test_the_error_of_a_call_passes_through() -> None:
    async def main() -> None:
        with deadline(5.0):
            await asyncio.sleep(1.0)
            raise KeyError("its own")

    with pytest.raises(KeyError, match="its own"):
        run(main())


def test_a_deadline_inside_of_another_ends_its_own_block() -> None:
    async def main() -> float:
        with deadline(5.0) as outer:
            with pytest.raises(TimeoutError), deadline(1.0):
                await asyncio.sleep(3.0)
            await asyncio.sleep(2.0)
        assert not outer.expired
        return asyncio.get_running_loop().time()

    assert run(main()) == 3.0


def test_no_timer_is_left_when_all_calls_have_ended() -> None:
    async def main() -> None:
        await asyncio.gather(*(timed(1000.0, takes) for takes in (1.0, 2.0, 3.0)))
        await asyncio.get_running_loop().create_future()  # with a timer it would be waited for

    with pytest.raises(Deadlock):
        run(main())
