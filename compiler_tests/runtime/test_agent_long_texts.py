"""Long texts of agents are tokenized in a thread: order, errors and ends are as without it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from agent_loopback import EOS, PLAIN, bridge, user

from forgedsl.lower import job as spec
from forgedsl_runtime.agents.protocol import ApiError, Chat
from forgedsl_runtime.agents.session import Ask, Session, Terms
from forgedsl_runtime.agents.tree import LONG_TEXT, Tree
from forgedsl_runtime.environments.worker import Reply

LONG = "1" * LONG_TEXT


class Held:
    """A trajectory whose long texts are tokenized when the test says so."""

    def __init__(self, template: str = PLAIN) -> None:
        made = bridge(template)
        self.gate, self.threads = threading.Event(), []
        ids, loop = made.ids, threading.get_ident()

        def held(text: str) -> list[int]:
            if len(text) >= LONG_TEXT:
                assert threading.get_ident() != loop, "the event loop waits for a long text"
                self.threads.append(len(text))
                assert self.gate.wait(30)
            return ids(text)

        made.ids = held  # type: ignore[method-assign]
        terms = Terms(
            model="m", sampling=spec.Sampling(max_tokens=4), max_row_tokens=10**6, rewrites=False
        )
        self.session = Session(terms, Tree(made, rewrites=False), lambda *_: None)

    def ask(self, *messages: Any, n: int = 1) -> asyncio.Task[Any]:
        said = [user(m) if isinstance(m, str) else m for m in messages]
        chat = Chat(model="m", messages=said, n=n)
        return asyncio.create_task(self.session.ask(chat, b"", is_retry=False))

    async def tokenizing(self) -> None:
        """Wait until a long text is being tokenized."""
        async with asyncio.timeout(30):
            while not self.threads:
                await asyncio.sleep(0.001)
        self.threads.clear()

    async def asked(self) -> list[Ask]:
        async with asyncio.timeout(30):
            found = await self.session.events()
        assert {kind for kind, _ in found} == {"ask"}, found
        return [Ask(*ask) for _, ask in found]

    def answer(self, ask: Ask) -> None:
        self.session.answered(ask.number, [10, EOS], "5", "stop")


def tried(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


def test_other_trajectories_are_answered_meanwhile() -> None:
    async def main() -> None:
        held, other = Held(), Held()
        waiting = held.ask(LONG)
        await held.tokenizing()
        short = other.ask("1")
        (ask,) = await other.asked()
        other.answer(ask)
        assert (await short)[0].message["content"] == "5"
        assert not waiting.done()
        held.gate.set()
        (ask,) = await held.asked()
        held.answer(ask)
        assert (await waiting)[0].prompt_tokens == len(LONG) + 1

    tried(main)


def test_rows_and_seeds_are_in_the_order_of_requests() -> None:
    async def main() -> None:
        held = Held()
        first = held.ask("1")
        (ask,) = await held.asked()
        held.answer(ask)
        said = (await first)[0].message
        long = held.ask("1", said, LONG)
        await held.tokenizing()
        short, same = held.ask("1", said, "2"), held.ask("1", said, LONG)
        await asyncio.sleep(0)
        held.gate.set()
        asks: list[Ask] = []
        while len(asks) < 3:
            asks += await held.asked()
        assert [(a.number, a.row, a.new, a.repeat_index) for a in asks] == [
            (1, 0, False, 0), (2, 1, True, 0), (3, 2, True, 1),
        ]  # fmt: skip
        assert asks[2].tokens[-len(asks[0].tokens) :] == asks[0].tokens
        for ask in asks:
            held.answer(ask)
        await asyncio.gather(long, short, same)

    tried(main)


def test_a_client_that_goes_away_meanwhile_leaves_no_trace() -> None:
    async def main() -> None:
        held = Held()
        gone, waits = held.ask(LONG), held.ask(LONG + "2")
        await held.tokenizing()
        gone.cancel()
        await asyncio.wait([gone])
        held.gate.set()
        (ask,) = await held.asked()
        assert (ask.number, ask.row, ask.repeat_index) == (0, 0, 0)
        held.answer(ask)
        await waits
        again = held.ask(LONG)
        (ask,) = await held.asked()
        assert (ask.row, ask.repeat_index) == (1, 0)  # the seed that it would have had
        held.answer(ask)
        await again

    tried(main)


def test_nothing_follows_the_end_of_a_trajectory() -> None:
    async def main() -> None:
        held = Held()
        waiting = held.ask(LONG)
        await held.tokenizing()
        held.session.close()
        held.session.ended(Reply())
        held.gate.set()
        with pytest.raises(ApiError) as raised:
            await waiting
        assert raised.value.status == 409
        assert [kind for kind, _ in await held.session.events()] == ["end"]

    tried(main)


def test_requests_that_are_tokenized_count_as_in_flight() -> None:
    async def main() -> None:
        held = Held()
        waiting = [held.ask(LONG, n=32) for _ in range(2)]
        await held.tokenizing()
        with pytest.raises(ApiError) as raised:
            await held.ask("1")
        assert raised.value.status == 429
        for task in waiting:
            task.cancel()
        held.gate.set()
        await asyncio.wait(waiting)
        after = held.ask("1")
        (ask,) = await held.asked()
        held.answer(ask)
        await after

    tried(main)


def test_several_answers_need_the_tokens_once() -> None:
    async def main() -> None:
        held = Held()
        held.gate.set()
        waiting = held.ask(LONG, n=4)
        asks: list[Ask] = []
        while len(asks) < 4:
            asks += await held.asked()
        assert len(held.threads) == 1
        assert len({tuple(ask.tokens) for ask in asks}) == 1
        for ask in asks:
            held.answer(ask)
        assert len(await waiting) == 4

    tried(main)


def test_a_failure_of_the_tokenizer_leaves_no_trace() -> None:
    async def main() -> None:
        held = Held()
        made = held.session._tree.bridge
        ids = made.ids

        def fails(text: str) -> list[int]:
            raise ValueError("no such text")

        made.ids = fails  # type: ignore[method-assign]
        with pytest.raises(ApiError, match="no such text") as raised:
            await held.ask(LONG)
        assert raised.value.status == 400
        made.ids = ids  # type: ignore[method-assign]
        held.gate.set()
        waiting = held.ask(LONG)
        (ask,) = await held.asked()
        assert (ask.number, ask.row, ask.repeat_index) == (0, 0, 0)
        held.answer(ask)
        await waiting

    tried(main)
