"""Calls of an environment's process over a connection: what ends, what is late, who may ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from test_environment_driver import EOS, Engine, counted, environment, ids, limits, prompt

from forgedsl.environment import Start, Step, Task, Turn
from forgedsl_runtime.environments.connection import Address, PoolRequest, connect, listen
from forgedsl_runtime.environments.driver import Crash, Late
from forgedsl_runtime.environments.process import TOKENIZER_NOT_SENT
from forgedsl_runtime.environments.worker import Reply
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.services.environment import EnvironmentClient


class Mesh:
    """The process of an environment, which is this one."""

    origin, size = "game.forge:3:1", 1

    def __init__(self, answer: Callable[[PoolRequest], Awaitable[Reply]]) -> None:
        self.answer = answer

    async def one(self, rank: int, endpoint: str) -> Address:
        async def answer(request: PoolRequest) -> tuple[Reply, bool]:
            return await self.answer(request), False

        assert endpoint == "listen"
        self.servers, address = await listen(answer)
        return address


def test_a_trajectory_on_a_line_that_ends_is_lost_and_the_next_has_another() -> None:
    async def answer(request: PoolRequest) -> Reply:
        if request.op == "step":
            await asyncio.Event().wait()
        return Reply(value=Start())

    async def main() -> tuple[Crash, Start]:
        mesh: Any = Mesh(answer)
        client = EnvironmentClient("game", environment(), mesh, EventLog())
        session, other = client.begin(), client.begin()
        await session.reset(Task(text="1+1="), 5)
        waiting = asyncio.create_task(session.step(Turn(text="3")))
        await asyncio.sleep(0.1)
        client._connections[0].close()
        with pytest.raises(Crash) as error:
            await waiting
        return error.value, await other.reset(Task(text="1+1="), 5)

    crash, start = asyncio.run(main())
    assert (crash.collateral, str(crash)) == (
        True,
        "its process has ended: the process has disconnected",
    )
    assert start == Start()


def test_a_tokenizer_that_cannot_be_sent_is_told_and_the_controller_makes_tokens() -> None:
    async def answer(request: PoolRequest) -> Reply:
        return Reply(value=() if request.op == "tools" else Start() if request.op == "reset"
                     else Step("?", done=request.number == 1))  # fmt: skip

    events, said, engine = EventLog(), [], Engine(["3"])
    events.subscribe(lambda event: said.append(event["text"]))

    async def main() -> Any:
        mesh: Any = Mesh(answer)
        made, _ = counted()
        client = EnvironmentClient("game", environment(), mesh, events)
        driver = await client.driver(made)
        return await driver.play(engine, prompt(), 5, 11, limits())

    rollout = asyncio.run(main())
    assert [TOKENIZER_NOT_SENT in text for text in said] == [True]
    assert rollout.token_ids == [*ids("3"), EOS, *ids("?"), *ids("3"), EOS]


def test_a_process_on_another_machine_is_asked_by_tcp() -> None:
    async def answer(request: PoolRequest) -> tuple[Reply, bool]:
        return Reply(value=Start(request.key)), False

    async def main() -> Reply:
        _servers, (_, host, port, secret) = await listen(answer)
        line = await connect(("\0known to nobody here", host, port, secret))
        reply: Reply = await line.call(tuple(PoolRequest("reset", "a")))
        return reply

    assert asyncio.run(main()).value == Start("a")


def test_who_does_not_know_the_secret_is_not_answered() -> None:
    async def answer(request: PoolRequest) -> tuple[Reply, bool]:
        raise AssertionError("asked")

    async def main() -> None:
        _servers, (name, host, port, secret) = await listen(answer)
        line = await connect((name, host, port, bytes(len(secret))))
        await line.call(tuple(PoolRequest("reset", "a")))

    with pytest.raises(ConnectionError):
        asyncio.run(main())


def test_a_step_that_is_late_is_told_to_the_user_too() -> None:
    async def answer(request: PoolRequest) -> Reply:
        late = request.op == "step"
        return Reply(late=late, error="no answer within 5 s" * late, value=Start())

    events, said = EventLog(), []
    events.subscribe(lambda event: said.append(event["text"]))

    async def main() -> None:
        mesh: Any = Mesh(answer)
        client = EnvironmentClient("game", environment(), mesh, events)
        session = client.begin()
        await session.reset(Task(text="1+1="), 5)
        for _ in range(10):
            with pytest.raises(Late):
                await session.step(Turn(text="3"))

    asyncio.run(main())
    words = "no answer within 5 s (`tool_timeout`); the policy got this error as the observation"
    assert said == [
        f"environment game (game.forge:3:1) took too long: {words}",
        f"environment game (game.forge:3:1) took too long (10 times so far): {words}",
    ]
