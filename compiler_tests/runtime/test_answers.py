"""Calls whose answers all come to one port: who gets which, and what is told when none comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from forgedsl_runtime.upstream import answers
from forgedsl_runtime.upstream.answers import Callee

FEW = 0.2
"""KiB a call; Monarch's own keep twice as much on either side"""


class Wire:
    """An actor's side, played by the test: what was asked, and what comes to the port."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str, tuple[Any, ...]]] = []
        self.port: asyncio.Queue[Any] = asyncio.Queue()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.actor = SimpleNamespace(
            heartbeat=None,
            register_port=SimpleNamespace(call=lambda key, port: self.gone),
            start_call=SimpleNamespace(
                broadcast=lambda key, number, name, args: self.asked.append((number, name, args))
            ),
        )

    def open(self) -> tuple[Any, Any]:
        inner = SimpleNamespace(recv_task=self.port.get)
        return (
            SimpleNamespace(send=self.port.put_nowait),
            SimpleNamespace(_receiver=inner, _process=lambda message: message),
        )


def play(
    monkeypatch: pytest.MonkeyPatch, test: Callable[[Wire, Callee], Awaitable[None]], ranks: int = 1
) -> None:
    def from_coroutine(pump: Coroutine[Any, Any, None]) -> Any:
        return SimpleNamespace(spawn_handle=lambda: asyncio.ensure_future(pump))

    async def main() -> None:
        wire = Wire()
        monkeypatch.setattr(answers, "Channel", {Any: SimpleNamespace(open=wire.open)})
        monkeypatch.setattr(answers, "PythonTask", SimpleNamespace(from_coroutine=from_coroutine))
        await asyncio.wait_for(test(wire, Callee(wire.actor, ranks)), 10)

    asyncio.run(main())


async def asking(wire: Wire, callee: Callee, *words: str) -> list[asyncio.Task[list[Any]]]:
    """Calls that are under way."""
    tasks = [asyncio.create_task(callee.ask("heartbeat", word)) for word in words]
    while len(wire.asked) < len(words):
        await asyncio.sleep(0)
    return tasks


def test_answers_in_any_order_go_to_their_calls_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(wire: Wire, callee: Callee) -> None:
        tasks = await asking(wire, callee, "a", "b")
        for number, rank in ((1, 1), (0, 1), (1, 0), (0, 0)):
            wire.port.put_nowait((number, rank, f"{number} of {rank}", None))
        assert await asyncio.gather(*tasks) == [["0 of 0", "0 of 1"], ["1 of 0", "1 of 1"]]

    play(monkeypatch, test, ranks=2)


def test_the_answer_to_a_cancelled_call_is_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(wire: Wire, callee: Callee) -> None:
        first, second = await asking(wire, callee, "a", "b")
        first.cancel()
        wire.port.put_nowait((0, 0, "late", None))
        wire.port.put_nowait((1, 0, "mine", None))
        assert (await second, first.cancelled()) == (["mine"], True)

    play(monkeypatch, test)


def test_an_error_of_one_rank_does_not_wait_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(wire: Wire, callee: Callee) -> None:
        (task,) = await asking(wire, callee, "a")
        wire.port.put_nowait((0, 1, None, MemoryError("of rank 1")))
        with pytest.raises(MemoryError, match="of rank 1"):
            await task

    play(monkeypatch, test, ranks=2)


def test_a_death_fails_all_that_is_asked_and_will_be(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(wire: Wire, callee: Callee) -> None:
        tasks = await asking(wire, callee, "a", "b")
        wire.gone.set_exception(RuntimeError("killed"))
        tasks.append(asyncio.create_task(callee.ask("heartbeat", "c")))
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert ([str(error) for error in done], len(wire.asked)) == (["killed"] * 3, 2)

    play(monkeypatch, test)


@pytest.mark.full
@pytest.mark.timeout(120)
def test_ten_thousand_calls_leave_next_to_nothing_in_either_process(tmp_path: Path) -> None:
    from forgedsl_runtime.actors.base import ForgeActor
    from forgedsl_runtime.upstream.monarch import Mesh, bootstrap

    async def main() -> list[float]:
        mesh = Mesh.spawn(
            service="s", origin="", name="actor", size=1, actor=ForgeActor, args=(), kwargs={},
            start=bootstrap({}, tmp_path / "actor", "cpu"), logs=tmp_path / "actor",
        )  # fmt: skip
        (facts,) = await mesh.call("describe")
        processes, sizes = (psutil.Process(), psutil.Process(facts["pid"])), []
        for calls in (3_000, 10_000):  # the first fill what stays at one size
            for _ in range(calls // 50):
                await asyncio.gather(*(mesh.one(0, "heartbeat") for _ in range(50)))
            sizes.append([process.memory_info().rss / 1024 for process in processes])
        await mesh.stop()
        return [(after - before) / 10_000 for before, after in zip(*sizes, strict=True)]

    assert max(asyncio.run(main())) < FEW


class Demanding(Exception):
    """Can be pickled, and not be read again."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")


def test_an_error_that_cannot_be_read_again_does_not_travel() -> None:
    told = [answers.is_picklable(error) for error in (Demanding("a", "b"), MemoryError("a"))]
    assert told == [False, True]
