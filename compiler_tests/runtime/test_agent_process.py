"""The process of agents: what they return, how they fail, hang, and are ended."""

from __future__ import annotations

import asyncio
import hashlib
import pickle
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from agent_loopback import bridge

from forgedsl.environment import Task
from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl_runtime.agents.process import AgentProcess
from forgedsl_runtime.agents.protocol import Chat
from forgedsl_runtime.agents.session import Session, Terms
from forgedsl_runtime.agents.tree import Tree
from forgedsl_runtime.environments.connection import PoolRequest
from forgedsl_runtime.environments.worker import Reply, ServedEnvironment

AGENT = """
import asyncio
import json
import os
import pathlib
import time
import urllib.request

from forgedsl.agent import Agent


def ask(model):
    body = json.dumps({"model": model.name, "messages": [{"role": "user", "content": "1"}]})
    headers = {"Authorization": f"Bearer {model.key}"}
    asked = urllib.request.Request(model.url + "/chat/completions", body.encode(), headers)
    return json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"]


class Some(Agent):
    parts = ("a", "b")

    def __init__(self, *, only: str = "") -> None:
        if only:
            self.parts = (only,)

    async def run(self, task, model):
        match task.text:
            case "ask":
                text = await asyncio.to_thread(ask, model)
                return {"a": float(text)}
            case "rng":
                return {"a": self.rng.random()}
            case "number":
                return 0.5
            case "other":
                return {"c": 1.0}
            case "nan":
                return {"a": float("nan")}
            case "text":
                return "done"
            case "raise":
                raise ValueError("no such thing")
            case "exit":
                os._exit(3)
            case "block":
                time.sleep(60)
            case "wait":
                try:
                    await asyncio.sleep(60)
                finally:
                    await asyncio.sleep(0.05)
                    pathlib.Path(task.target).write_text("cleaned up")
"""


def served(folder: Path, **more: Any) -> ServedEnvironment:
    (folder / "agent.py").write_text(AGENT, "utf-8")
    given: dict[str, Any] = {
        "type_name": "Some", "path": "agent.py", "parts": ("a", "b"), "agent": True,
        "sha256": hashlib.sha256(AGENT.encode()).hexdigest(), "deadline": 60.0,
        "tool_timeout": 1.0,
    }  # fmt: skip
    return ServedEnvironment(
        name="some", environment=spec.Environment(**given | more), job_dir=str(folder)
    )


class Pool:
    """An AgentProcess, as the controller asks it."""

    def __init__(self, process: AgentProcess) -> None:
        self.process = process

    async def tell(self, op: str, key: str, given: Any = None, seed: int = 0) -> Any:
        answer, last = await self.process.answer(PoolRequest(op, key, given, seed, "0"))
        assert not last
        return answer

    async def begin(self, text: str, target: str = "", seed: int = 5) -> None:
        terms = Terms(
            model="m", sampling=spec.Sampling(max_tokens=4), max_row_tokens=99, rewrites=False
        )
        given = Task(text=text, target=target), terms
        assert await self.tell("run", text, given, seed) == Reply()

    async def asked(self, key: str) -> Any:
        ((kind, ask),), _ = await self.tell("events", key)
        assert kind == "ask"
        return ask

    async def ended(self, key: str) -> Reply:
        """How the agent ended; a client that dies takes its request back first."""
        while True:
            events, _ = await self.tell("events", key)
            kind, reply = events[-1]
            if kind == "end":
                return reply
            assert kind == "cancel"

    async def end(self, text: str, **more: Any) -> Reply:
        await self.begin(text, **more)
        return await self.ended(text)


def with_pool(served_: ServedEnvironment, use: Callable[[Pool], Awaitable[None]]) -> None:
    async def main() -> None:
        process = AgentProcess(served_)
        try:
            await process.start()
            await process.endpoint.start()
            asked = PoolRequest(
                "bridge", given=("hermes", [], True, pickle.dumps(bridge())), bridge="0"
            )
            await process.answer(asked)
            await use(Pool(process))
        finally:
            process.close()
            await process.endpoint.close()

    asyncio.run(main())


def test_an_agent_asks_the_endpoint_from_its_own_process(tmp_path: Path) -> None:
    async def use(pool: Pool) -> None:
        await pool.begin("ask")
        assert (await pool.asked("ask"))[0] == 0
        await pool.tell("answer", "ask", (0, [10, 2], "0.25", "stop"))
        assert await pool.ended("ask") == Reply(value={"a": 0.25})

    with_pool(served(tmp_path), use)


def test_what_an_agent_returns_is_checked(tmp_path: Path) -> None:
    async def use(pool: Pool) -> None:
        ends = {text: (await pool.end(text)).error for text in ("other", "nan", "text", "number")}
        assert "run returned rewards ['c'], which `parts` does not list" in ends["other"]
        assert "run returned nan for `a`, which is not a finite number" in ends["nan"]
        assert "run returned str, expected a number or a dict" in ends["text"]
        assert "the agent has 2 reward parts: return a dict of them" in ends["number"]
        failed = await pool.end("raise")
        assert failed.error.startswith("ValueError: no such thing")
        assert "agent.py" in failed.error
        same = [(await pool.end("rng", seed=seed)).value["a"] for seed in (5, 5, 6)]
        assert same[0] == same[1] != same[2]

    with_pool(served(tmp_path), use)


def test_a_number_is_the_only_part(tmp_path: Path) -> None:
    async def use(pool: Pool) -> None:
        assert (await pool.end("number")).value == {"only": 0.5}

    with_pool(served(tmp_path, parts=("only",)), use)


def test_an_agent_that_is_ended_cleans_up_and_its_key_is_over(tmp_path: Path) -> None:
    target = tmp_path / "note"

    async def use(pool: Pool) -> None:
        await pool.begin("wait", str(target))
        while "wait" not in pool.process._sessions:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # the agent is at work
        await pool.tell("close", "wait")
        assert target.read_text() == "cleaned up"

    with_pool(served(tmp_path), use)


def test_a_process_that_ends_costs_one_of_its_trajectories_a_try(tmp_path: Path) -> None:
    async def use(pool: Pool) -> None:
        await pool.begin("ask")
        await pool.asked("ask")
        await pool.begin("exit")
        ends = [await pool.ended(key) for key in ("ask", "exit")]
        assert all("exit code 3" in reply.error and reply.ended for reply in ends)
        assert sorted(reply.collateral for reply in ends) == [False, True]
        assert (await pool.end("rng")).value  # in a new process

    with_pool(served(tmp_path), use)


def test_the_end_of_an_agent_is_the_last_event() -> None:
    """A client that dies with its process may be noticed after the process is."""

    async def main() -> list[str]:
        terms = Terms(
            model="m", sampling=spec.Sampling(max_tokens=4), max_row_tokens=99, rewrites=False
        )
        session = Session(terms, Tree(bridge(), rewrites=False), lambda *_: None)
        messages = [{"role": "user", "content": "1"}]
        chat = Chat(model="m", messages=messages)
        asking = asyncio.create_task(session.ask(chat, b"", is_retry=False))
        ((kind, _),) = await session.events()
        session.close()
        asking.cancel()
        session.ended(Reply())
        await asyncio.wait([asking])
        return [kind, *(kind for kind, _ in await session.events())]

    assert asyncio.run(main()) == ["ask", "end"]


def test_an_agent_that_holds_its_process_is_killed_and_the_others_are_lost(tmp_path: Path) -> None:
    async def use(pool: Pool) -> None:
        await pool.begin("ask")
        await pool.asked("ask")
        await pool.begin("block")
        await asyncio.sleep(0.3)  # it is at work
        await pool.tell("close", "block")
        reply = await pool.ended("ask")
        assert (reply.ended, reply.collateral) == (True, True)
        assert (await pool.end("rng")).value  # in a new process

    with_pool(served(tmp_path), use)


def test_a_class_that_is_no_agent_is_told(tmp_path: Path) -> None:
    async def use(pool: Pool) -> None:
        raise AssertionError("it starts")

    with pytest.raises(LaunchError, match="has no agent class Agents"):
        with_pool(served(tmp_path, type_name="Agents"), use)
