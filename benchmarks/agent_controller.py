"""What a request of an agent costs the controller.

    python benchmarks/agent_controller.py [--sessions 256] [--tokens 512] [--rounds 5] [--json FILE]

    AgentDriver, connection (this process) <--unix socket--> a script in the place of the pool

Every trajectory has TURNS requests, each with `--tokens` new tokens. The script sends them as an
endpoint does; the engine answers at once with ANSWER tokens. Counted is the processor time of this
process, all threads, for each request: messages, rows, limits, and the prompt for the engine. The
engine's side of the controller (routing, messages to generators) is in benchmarks/controller.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pickle
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

TURNS, ANSWER = 8, 32
VOCAB = 100_000
SENTINEL = "address "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=512, help="new tokens of a request")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--pool", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.pool:
        asyncio.run(pool(given))
        return
    found = asyncio.run(measured(given))
    print(
        f"{given.sessions * TURNS:,} requests of {given.tokens} new tokens, {given.rounds} rounds: "
        + ", ".join(f"{each:.3f}" for each in found)
        + " ms of processor of the controller a request"
    )
    if given.json:
        given.json.write_text(json.dumps({"ms": found}), encoding="utf-8")


# ---- the script in the place of the pool


async def pool(given: argparse.Namespace) -> None:
    """Serve trajectories: a request, its answer, the next request, ..., the end."""
    from forgedsl_runtime.environments.connection import PoolRequest, listen
    from forgedsl_runtime.environments.worker import Reply

    turns: dict[str, int] = {}
    gates: dict[str, asyncio.Event] = {}

    async def answer(asked: PoolRequest) -> tuple[Any, bool]:
        if asked.op == "run":
            turns[asked.key], gates[asked.key] = 0, asyncio.Event()
            gates[asked.key].set()
            return Reply(), False
        if asked.op == "answer":
            gates[asked.key].set()
        if asked.op != "events":
            return None, False
        await gates[asked.key].wait()
        gates[asked.key].clear()
        number = turns[asked.key]
        turns[asked.key] += 1
        if number == TURNS:
            return ([("end", Reply(value={"reward": 1.0}))], []), False
        tokens = random.Random(number).choices(range(VOCAB), k=given.tokens)
        ask = (number, 0, number == 0, tokens, "x" * 2048, number, 0, None, None, ())
        return ([("ask", ask)], []), False

    _servers, address = await listen(answer)
    print(SENTINEL + pickle.dumps(tuple(address)).hex(), flush=True)
    await asyncio.Event().wait()


# ---- the controller


@dataclass(slots=True, kw_only=True)
class Done:
    """What an engine gives back."""

    token_ids: list[int] = field(default_factory=lambda: [7] * ANSWER)
    logprobs: list[float] = field(default_factory=lambda: [-0.5] * ANSWER)
    mask: list[bool] = field(default_factory=lambda: [True] * ANSWER)
    text: str = "x" * 100
    truncated: bool = False
    versions: tuple[tuple[int, int], ...] = ((0, ANSWER),)
    started: float = 1.0
    finished: float = 2.0
    running: int = 0
    routes: None = None


class PoolSession:
    """`play.AgentSession` over a connection, as the run's: two messages for each request."""

    def __init__(self, connection: Any, key: str) -> None:
        self._connection, self.key = connection, key

    async def begin(self, task: Any, seed: int, limits: Any) -> None:
        await self._connection.call(self._asked("run", (task, limits.sampling)))

    async def events(self) -> Any:
        events, _notes = await self._connection.call(self._asked("events"))
        return events

    def answer(self, *given: Any) -> None:
        self._connection.tell(self._asked("answer", given))

    def refuse(self, number: int, message: str, code: str) -> None:
        raise AssertionError(message)

    def close(self) -> None:
        self._connection.tell(self._asked("close"))

    def _asked(self, op: str, given: Any = None) -> tuple[Any, ...]:
        from forgedsl_runtime.environments.connection import PoolRequest

        return tuple(PoolRequest(op, self.key, given))


async def measured(given: argparse.Namespace) -> list[float]:
    """Return milliseconds of processor a request, for each round."""
    words = ("--pool", "--tokens", str(given.tokens))
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, *words, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    address = pickle.loads(bytes.fromhex(line.removeprefix(SENTINEL)))
    try:
        return [await one_round(given, address) for _ in range(given.rounds)]
    finally:
        process.kill()
        await process.wait()


async def one_round(given: argparse.Namespace, address: Any) -> float:
    from forgedsl.lower import job as spec
    from forgedsl_runtime.agents.play import AgentDriver
    from forgedsl_runtime.data_types import Prompt
    from forgedsl_runtime.environments.connection import connect
    from forgedsl_runtime.environments.driver import Limits

    connection = await connect(address, on_message=lambda _: None)
    environment = spec.Environment(
        type_name="A", path="a.py", sha256="", parts=("reward",), agent=True, deadline=600.0
    )
    numbers = iter(range(given.sessions))
    begin: Callable[[], Any] = lambda: PoolSession(connection, str(next(numbers)))  # noqa: E731
    bridge: Any = SimpleNamespace(tool_form="hermes")
    driver: Any = AgentDriver(environment, bridge, begin, lambda cause, prompt: None)
    prompt = Prompt(group=0, row=0, text="x", token_ids=[1], target="2", messages=[])
    limits = Limits(sampling=spec.Sampling(max_tokens=64), turns=None, max_row_tokens=1 << 20)

    async def engine(token_ids: list[int], sampling: Any, seed: int) -> Done:
        await asyncio.sleep(0)
        return Done()

    before = time.process_time()
    played = [driver.play(engine, prompt, i, i, limits) for i in range(given.sessions)]
    rollouts = await asyncio.gather(*played)
    used = time.process_time() - before
    assert all(rollout.turns == TURNS for rollout in rollouts)
    connection.close()
    return 1000 * used / (given.sessions * TURNS)


if __name__ == "__main__":
    main()
