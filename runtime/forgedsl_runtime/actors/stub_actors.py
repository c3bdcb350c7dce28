"""Actors of a rehearsal: they answer like real services, after the estimated time, and compute
nothing.

They load no torch, no vLLM and no model, so that every process of a cluster fits on a laptop.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monarch.actor import Port, concurrent_endpoint

from forgedsl.sim.latency import Engine, Reward, Titan, step_seconds
from forgedsl.sim.values import REWARD, uniform
from forgedsl_runtime.actors.base import ForgeActor
from forgedsl_runtime.actors.stub_engine import StubEngine, StubRequest
from forgedsl_runtime.data_types import Batch, Message, Rollout, Sample, StepResult
from forgedsl_runtime.rewards.worker import Outcome

KERNEL = "none (rehearsal)"


@dataclass(frozen=True, slots=True, kw_only=True)
class StubManifest:
    """Stand-in for published weights."""

    version: int
    num_bytes: int = 0
    transport: str = "none"
    probe: None = None
    changed: None = None
    digests: None = None


class StubGenerator(ForgeActor):
    """One replica of a generator."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._spec = engine

    @concurrent_endpoint
    async def setup(self) -> dict[str, Any]:
        return {"rehearsal": True}

    @concurrent_endpoint
    async def serve(self, port: Port[Message]) -> None:
        self._engine = StubEngine(self._spec, lambda ended: port.send(Message(completions=ended)))

    @concurrent_endpoint
    async def submit(self, requests: list[StubRequest]) -> None:
        self._engine.submit(requests)

    @concurrent_endpoint
    async def load(self, manifest: StubManifest, keep: bool) -> None:
        await self._engine.load(manifest.version)

    @concurrent_endpoint
    async def slow(self, name: str, factor: float) -> None:
        self._engine.slow(factor)


class StubTitan(ForgeActor):
    """A trained or frozen model. It does one thing at a time, as the worker thread of a real one
    does."""

    def __init__(self, titan: Titan, lr: float, seed: int) -> None:
        super().__init__()
        self._titan, self._lr, self._seed = titan, lr, seed
        self._version = 0
        self._turn = asyncio.Lock()

    @concurrent_endpoint
    async def setup(self, run_dir: str) -> dict[str, Any]:
        self._run_dir = Path(run_dir)
        return {"rehearsal": True}

    @concurrent_endpoint
    async def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        return await self._scored(samples)

    @concurrent_endpoint
    async def base_logprobs(
        self, samples: Sequence[Sample], temperature: float
    ) -> list[list[float]]:
        return await self._scored(samples)

    @concurrent_endpoint
    async def values(self, samples: Sequence[Sample]) -> list[list[float]]:
        return await self._scored(samples)

    async def _scored(self, samples: Sequence[Sample]) -> list[list[float]]:
        tokens = sum(len(sample.token_ids) for sample in samples)
        await self._work(self._titan.logprobs + tokens * self._titan.logprobs_token)
        return [[0.0] * len(sample.mask) for sample in samples]

    @concurrent_endpoint
    async def step(self, batch: Batch, loss: str) -> StepResult:
        samples = [*batch.samples, *(each for _, beside in batch.beside for each in beside)]
        tokens = sum(len(sample.token_ids) for sample in samples)
        await self._work(step_seconds(self._titan, self._seed, self._version, tokens))
        self._version += 1
        return StepResult(
            version=self._version, loss=0.0, grad_norm=0.0, lr=self._lr, tokens=tokens,
            metrics={}, kernel=KERNEL,
        )  # fmt: skip

    @concurrent_endpoint
    async def pause(self) -> None:
        """Do nothing: a step of a rehearsal cannot be abandoned."""

    @concurrent_endpoint
    async def abandon_before(self, microbatch: int | None) -> None:
        pass

    @concurrent_endpoint
    async def publish(self) -> StubManifest:
        await self._work(self._titan.publish)
        return StubManifest(version=self._version)

    @concurrent_endpoint
    async def save(self, step: int) -> None:
        """Make a folder in place of a checkpoint; its file says that it holds no weights."""
        await self._work(self._titan.save)
        folder = self._run_dir / f"checkpoints/step-{step}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rehearsal.json").write_text(json.dumps({"weights": None, "step": step}))

    @concurrent_endpoint
    async def saved(self) -> None:
        pass

    @concurrent_endpoint
    async def close(self) -> None:
        pass

    async def _work(self, seconds: float) -> None:
        async with self._turn:
            await asyncio.sleep(seconds)


class StubRewards(ForgeActor):
    """One process of a reward pool: at most `places` calls at once; a call over its time limit
    fails."""

    def __init__(
        self, rewards: dict[str, Reward], limits: dict[str, float], seed: int, places: int
    ) -> None:
        super().__init__()
        self._rewards = rewards
        self._limits = limits
        self._seed = seed
        self._factors: dict[str, float] = {}
        self._tries: Counter[tuple[str, int, int]] = Counter()
        self._turn = asyncio.Semaphore(places)

    @concurrent_endpoint
    async def setup(self) -> dict[str, Any]:
        return {"rehearsal": True}

    @concurrent_endpoint
    async def score(self, items: list[tuple[tuple[str, ...], Rollout, Any]]) -> list[list[Outcome]]:
        """Score as RewardPool.score does: the rewards of each item, in the order of their names."""
        times = [[self._seconds(name, rollout) for name in names] for names, rollout, _ in items]
        limits = [[self._limits[name] for name in names] for names, _, _ in items]
        pairs = [list(zip(*both, strict=True)) for both in zip(times, limits, strict=True)]
        async with self._turn:
            await asyncio.sleep(sum(min(pair) for call in pairs for pair in call))
        return [[_outcome(seconds, limit) for seconds, limit in call] for call in pairs]

    @concurrent_endpoint
    async def slow(self, name: str, factor: float) -> None:
        self._factors[name] = factor

    def _seconds(self, name: str, rollout: Rollout) -> float:
        key = (name, rollout.group, rollout.sibling)
        self._tries[key] += 1
        if len(self._tries) > 4096:  # forget the oldest: a retry comes soon after the first try
            del self._tries[next(iter(self._tries))]
        u = uniform(self._seed, REWARD, rollout.group, rollout.sibling, self._tries[key])
        return self._rewards[name].seconds.at(u) * self._factors.get(name, 1.0)


def _outcome(seconds: float, limit: float) -> Outcome:
    if seconds <= limit:
        return Outcome(value=0.0, seconds=seconds)
    return Outcome(error=f"no answer within {limit:g} s", seconds=limit)
