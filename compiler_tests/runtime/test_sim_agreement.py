"""The simulator's services against a rehearsal's: same controller, same latencies, simulated time.

Here the controller runs over the stub engines of a rehearsal and services that sleep, on no meshes;
the simulator brings its own. Where both draw the same lengths and latencies, step times are the
same; elsewhere they agree within 10 %. Ages agree in every share.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import pytest
from fake_endpoints import FakeEndpoints, drive, evaluation, job, math_nodes, node

from forgedsl.lower import job as spec
from forgedsl.sim.latency import (
    Control,
    Data,
    Engine,
    Filter,
    Latencies,
    Play,
    Reward,
    Titan,
    completion_tokens,
    steps,
)
from forgedsl.sim.values import KEEPS, REWARD, Dist, constant, uniform
from forgedsl_runtime.actors.stub_engine import StubEngine, StubRequest
from forgedsl_runtime.coalesce import Coalescer
from forgedsl_runtime.data_types import Rollout
from forgedsl_runtime.endpoints import Score
from forgedsl_runtime.sim.simulation import simulate
from forgedsl_runtime.stub.endpoints import in_turns

ENGINE = Engine(
    tokens=Dist(median=60.0, sigma=0.8, most=400.0), prompt=constant(16.0), decode=0.01,
    decode_sequence=1e-4, prefill=1e-5, max_running=24, load=0.1, start=20.0, decode_context=2e-6,
    context=46.0, siblings=4,
)  # fmt: skip
TOOL = Dist(median=1.0, sigma=0.5)
TITAN = Titan(step=0.2, token=5e-4, logprobs=0.1, logprobs_token=1e-4, publish=0.05, save=0.0)


class Timed(FakeEndpoints):
    """Services that take the time of a latency model: engines that batch, one trainer, a pool."""

    def __init__(self, the_job, model, replicas):
        super().__init__(the_job)
        self.model, self.replicas = model, replicas
        self.ids = itertools.count()
        self.masks = itertools.count(1)

    def start(self):
        """Needs the loop of the run."""
        self.waiting = {}
        spec_ = self.model.engines["generator"]
        self.engines = [StubEngine(spec_, self._ended) for _ in range(self.replicas)]
        self.trainer = asyncio.Lock()
        procs = self.job.rewards["right"].procs
        self.pool = Coalescer(self._evaluate, parallel=procs, limit=8)
        self.reference = Coalescer(self._score_all)

    def _ended(self, completions):
        for done in completions:
            self.waiting.pop(done.id).set_result(done)

    async def sample(self, node, prompt, sibling, seed):
        tokens = int(completion_tokens(self.model, node.target, 0, prompt.group, sibling))
        waits = steps(self.model, node.env, 0, prompt.group, sibling)
        return await in_turns(
            waits, tokens, lambda n, old: self._complete(prompt, sibling, int(n), old)
        )

    async def evaluate_sample(self, name, prompt, sibling, seed):
        tokens = int(completion_tokens(self.model, "generator", 0, -1 - prompt.row, sibling))
        return await self._complete(prompt, sibling, tokens)

    async def evaluate_score(self, name, rollout):
        return Score(value=0.0)

    async def _complete(self, prompt, sibling, tokens, before=0):
        ident = str(next(self.ids))
        future = self.waiting[ident] = asyncio.get_running_loop().create_future()
        engine = min(self.engines, key=lambda e: e.batching.load)
        request = StubRequest(id=ident, prompt=16, tokens=tokens, truncated=False, before=before)
        engine.submit([request])
        done = await future
        return Rollout(
            group=prompt.group, sibling=sibling, prompt=prompt, token_ids=done.token_ids,
            logprobs=done.logprobs, mask=done.mask, text="", truncated=False,
            version_min=done.version_min, version_max=done.version_max, started=0.0, finished=0.0,
        )  # fmt: skip

    async def score(self, node, rollout, target):
        return Score(value=await self.pool.submit(rollout))

    async def _evaluate(self, rollouts):
        spent = self.model.rewards["right"].seconds
        keys = [(0, REWARD, r.group, r.sibling) for r in rollouts]
        await asyncio.sleep(sum(spent.at(uniform(*key)) for key in keys))
        return [0.0] * len(rollouts)

    async def logprobs(self, node, rollouts):
        return await self.reference.submit(rollouts)

    async def _score_all(self, groups):
        tokens = sum(len(r.token_ids) + 16 for group in groups for r in group)
        await asyncio.sleep(TITAN.logprobs + tokens * TITAN.logprobs_token)
        return [[[0.0] * len(r.mask) for r in group] for group in groups]

    async def call(self, node, args):
        if node.op == "mask":
            return uniform(0, KEEPS, next(self.masks)) < self.model.filters[node.target].keep
        return [0.0] * len(next(iter(args.values())))

    async def step(self, node, batch):
        tokens = sum(len(s.mask) + 16 for s in batch.samples)
        async with self.trainer:
            await asyncio.sleep(TITAN.step + tokens * TITAN.token)
            return await super().step(node, batch)

    async def sync(self, node, version):
        async with self.trainer:
            await asyncio.sleep(TITAN.publish)
        await asyncio.gather(*(engine.load(version) for engine in self.engines))
        return await super().sync(node, version)


def prepared(name):
    """(job, latency model, replicas) of a case."""
    nodes, more, engine, reward, keep = list(math_nodes(6, 4)), {}, ENGINE, 0.01, 1.0
    replicas = 2
    if name == "filtered":
        nodes[4:4] = [node("mask", "mask", "score", target="mixed")]
        nodes[5:5] = [node("kept", "keep", "rollout", "mask")]
        kept = spec.Input(argument="rollout", edge="kept")
        nodes = [
            n.model_copy(update={"inputs": (kept, *n.inputs[1:])}) if n.op == "replay" else n
            for n in nodes
        ]
        keep = 0.6
    if name == "plays":
        nodes[1] = nodes[1].model_copy(update={"env": "game", "max_turns": 4})
    if name == "sync":
        more = {"mode": "sync", "credits": 6}
    if name == "window":
        more = {"credits": 18, "window": 6}
    if name == "slow rewards":
        reward = 0.8
    if name == "one busy engine":
        replicas = 1
    if name == "evals":
        more = {"evals": {"held_out": evaluation(3)}}
    the_job = job(
        nodes, prompts=6, steps=24, **{"mode": "async", "credits": 12, **more},
        rewards={"right": spec.Reward(kind="python", function="right", procs=2, timeout=60.0)},
        rubrics={"rubric": spec.Rubric(function="f", rewards=("right",), on_truncated=None)},
    )  # fmt: skip
    model = Latencies(
        engines={"generator": engine}, titans={"trainer": TITAN, "reference": TITAN},
        rewards={"right": Reward(seconds=Dist(median=reward, sigma=0.5))},
        filters={"mixed": Filter(keep=keep)}, data={"data": Data(rows=3)},
        control=Control(rollout=0.0),
        environments={"game": Play(turns=Dist(median=3.0, sigma=0.5, most=4.0), step=TOOL)},
    )  # fmt: skip
    return the_job, model, replicas


EXACT = ("plain", "sync", "window", "one busy engine")
"""where every random quantity has the same key on both sides"""
CASES = ("plain", "plays", "sync", "window", "filtered", "slow rewards", "one busy engine", "evals")


@pytest.mark.parametrize("name", CASES)
def test_services_of_rehearsals_and_of_simulations_agree(name):
    the_job, model, replicas = prepared(name)
    endpoints = Timed(the_job, model, replicas)
    times: list[float] = []

    def prepare(controller):
        endpoints.start()
        loop = asyncio.get_running_loop()
        controller._events.subscribe(
            lambda event: times.append(loop.time()) if event["kind"] == "metrics" else None
        )

    drive(the_job, endpoints, prepare=prepare)
    service = spec.VllmService(
        model="policy", dtype="f32", sampling=spec.Sampling(max_tokens=400),
        mesh=spec.Mesh(name="gen", device="cpu", replicas=replicas),
    )  # fmt: skip
    services = {**the_job.services, "generator": service}
    result = simulate(the_job.model_copy(update={"services": services}), model, steps=None)
    real = (times[-1] - times[3]) / (len(times) - 4)
    told = result.steps[3:]
    simulated = (told[-1].end - told[0].end) / (len(told) - 1)
    assert simulated == pytest.approx(real, rel=1e-3 if name in EXACT else 0.1)
    ages = Counter(age for step in endpoints.trained for age in step["ages"])
    assert set(result.ages) == set(ages)
    for age, count in ages.items():
        assert result.ages[age] / result.ages.total() == pytest.approx(
            count / ages.total(), abs=0.15
        )
