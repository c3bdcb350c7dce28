"""Trajectories with slow tools in the real controller, on simulated time: they keep an engine busy.

The engine is that of a rehearsal, with so many slots and a constant pace; the driver is real.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from fake_endpoints import FakeEndpoints, drive, job, math_nodes

from forgedsl.environment import Start, Step, Task, Turn
from forgedsl.lower import job as spec
from forgedsl.sim.latency import Engine
from forgedsl.sim.values import Dist
from forgedsl_runtime.actors.stub_engine import StubEngine, StubRequest
from forgedsl_runtime.data.chat import ChatTokenizer
from forgedsl_runtime.environments.bridge import Bridge
from forgedsl_runtime.environments.driver import Driver, Limits

BRIDGE = Bridge(
    ChatTokenizer.load(str(Path(__file__).parents[2] / "pipelines/tokenizers/arithmetic"))
)
PROMPTS, GROUP, CREDITS, STEPS = 8, 8, 32, 24
TOKENS = Dist(points=(64.0,))
ENGINE = Engine(
    tokens=TOKENS, prompt=TOKENS, decode=0.02, decode_sequence=0.0, prefill=0.0, max_running=64,
    load=0.0, start=0.0,
)  # fmt: skip


class Tool:
    """A session whose step takes 0 to `most` seconds."""

    def __init__(self, most: float, chance: random.Random) -> None:
        self.most, self.chance = most, chance

    async def reset(self, task: Task, seed: int) -> Start:
        return Start()

    async def step(self, turn: Turn) -> Step:
        await asyncio.sleep(self.chance.uniform(0.0, self.most))
        return Step("?")

    def close(self) -> None:
        pass


class Played(FakeEndpoints):
    """Completions are trajectories of four turns; all else answers at once."""

    def __init__(self, this: spec.Job, most: float) -> None:
        super().__init__(this)
        self.most, self.chance = most, random.Random(3)
        self.waiting: dict[str, asyncio.Future[Any]] = {}
        self.engine: StubEngine | None = None
        self.flying, self.most_flying = 0, 0

    async def sample(self, node: Any, prompt: Any, sibling: int, seed: int) -> Any:
        environment = spec.Environment(type_name="", path="", sha256="")
        limits = Limits(sampling=spec.Sampling(max_tokens=99), turns=4, max_row_tokens=9999)
        self.flying += 1
        self.most_flying = max(self.flying, self.most_flying)
        driver = Driver(
            environment, BRIDGE, lambda: Tool(self.most, self.chance), lambda cause, prompt: None
        )
        rollout = await driver.play(self.turn, prompt, sibling, seed, limits)
        self.flying -= 1
        return rollout

    async def turn(self, token_ids: list[int], sampling: spec.Sampling, seed: int) -> Any:
        self.engine = self.engine or StubEngine(ENGINE, self.done)
        ident = str(len(self.waiting))
        self.waiting[ident] = asyncio.get_running_loop().create_future()
        tokens = self.chance.randint(32, 96)
        self.engine.submit([StubRequest(id=ident, prompt=9, tokens=tokens, truncated=False)])
        return await self.waiting[ident]

    def done(self, completions: list[Any]) -> None:
        for each in completions:
            each.versions = ((self.served["generator"], len(each.token_ids)),)
            self.waiting[each.id].set_result(each)


def rate(most: float) -> tuple[float, int]:
    """Tokens a second of a whole run, and the most trajectories that were in flight."""
    nodes = math_nodes(PROMPTS, GROUP, reference=False)
    this = job(nodes, mode="async", prompts=PROMPTS, credits=CREDITS, steps=STEPS)
    endpoints = Played(this, most)
    drive(this, endpoints)
    assert endpoints.engine is not None
    batching = endpoints.engine.batching
    return batching.tokens / batching.now, endpoints.most_flying


@pytest.mark.full
def test_256_trajectories_with_tools_of_two_seconds_keep_the_engine_busy() -> None:
    (alone, _), (with_tools, in_flight) = rate(0.0), rate(2.0)
    assert in_flight == CREDITS * GROUP == 256
    assert with_tools > 0.9 * alone
