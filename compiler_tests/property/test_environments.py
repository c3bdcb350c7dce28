"""Random environments in the one controller: nothing hangs, and credits return.

Trajectories are played by the driver itself, over an engine and sessions that sleep, are late,
crash and end early, on virtual time: a hang is an error at once, and so is a credit that is lost,
since a run needs more groups than it has credits.
"""

import asyncio
import random
from dataclasses import dataclass

from fake_endpoints import FakeEndpoints, drive, job, math_nodes
from hypothesis import given, settings
from hypothesis import strategies as st
from test_environment_driver import TOKENIZER, Done

from forgedsl.environment import Start, Step
from forgedsl.errors import RunError
from forgedsl.lower import job as spec
from forgedsl_runtime.data.chat import ChatTokenizer
from forgedsl_runtime.environments.bridge import Bridge
from forgedsl_runtime.environments.driver import Crash, Driver, Late, Limits

BRIDGE = Bridge(ChatTokenizer.load(str(TOKENIZER)))
STEPS = 6


@dataclass(frozen=True)
class World:
    """What an environment does, as chances, and what bounds its trajectories."""

    crash: float
    late: float
    done: float
    slow: float
    cut: float
    deadline: float | None
    turns: int
    on_error: float | str
    longest: int
    mode: str
    seed: int


worlds = st.builds(
    World,
    crash=st.sampled_from([0.0, 0.0, 0.05, 0.3]),
    late=st.sampled_from([0.0, 0.1, 0.5]),
    done=st.sampled_from([0.05, 0.3, 1.0]),
    slow=st.sampled_from([0.0, 0.1, 30.0]),
    cut=st.sampled_from([0.0, 0.1]),
    deadline=st.sampled_from([None, 20.0]),
    turns=st.sampled_from([1, 4]),
    on_error=st.sampled_from(["drop", 0.0]),
    longest=st.sampled_from([12, 60]),
    mode=st.sampled_from(["async", "sync"]),
    seed=st.integers(0, 10_000),
)


class Played(FakeEndpoints):
    """Completions are trajectories; `open` counts the sessions that are not closed."""

    def __init__(self, job, world):
        super().__init__(job, jitter=world.seed)
        self.world = world
        self.random = random.Random(world.seed)
        self.open = 0
        self.rollouts = []

    async def sample(self, node, prompt, sibling, seed):
        async def engine(token_ids, sampling, seed):
            await asyncio.sleep(self.random.random())
            tokens = [9] * min(sampling.max_tokens, self.random.randint(1, 4))
            count, cut = len(tokens), self.random.random() < self.world.cut
            return Done(
                token_ids=tokens, logprobs=[-1.0] * count, mask=[True] * count, text="2",
                truncated=cut, versions=((self.served[node.target], count),),
            )  # fmt: skip

        world = self.world
        environment = spec.Environment(
            type_name="", path="", sha256="", parts=("p",), deadline=world.deadline,
            on_error=world.on_error,
        )  # fmt: skip
        limits = Limits(
            sampling=spec.Sampling(max_tokens=4), turns=world.turns, max_row_tokens=world.longest
        )
        driver = Driver(environment, BRIDGE, lambda: Session(self), lambda cause, prompt: None)
        rollout = await driver.play(engine, prompt, sibling, seed, limits)
        self.rollouts.append(rollout)
        return rollout


class Session:
    def __init__(self, played):
        self.played = played
        played.open += 1

    async def reset(self, task, seed):
        await self.pause()
        return Start()

    async def step(self, turn):
        await self.pause()
        chance, world = self.played.random, self.played.world
        if chance.random() < world.late:
            raise Late("no answer within 5 s")
        return Step("?", {"p": 1.0}, done=chance.random() < world.done)

    def close(self):
        self.played.open -= 1

    async def pause(self):
        chance, world = self.played.random, self.played.world
        await asyncio.sleep(chance.random() * world.slow)
        if chance.random() < world.crash:
            raise Crash("gone")


def played(world):
    """The endpoints of a run to its end, and what became of it."""
    this = job(math_nodes(reference=False), mode=world.mode, steps=STEPS,
               credits=8 if world.mode == "async" else 4)  # fmt: skip
    endpoints = Played(this, world)
    try:
        outcome, _ = drive(this, endpoints)
    except RunError as error:
        return endpoints, str(error)
    return endpoints, outcome.ended


@settings(max_examples=60, deadline=None)
@given(worlds)
def test_nothing_hangs_and_credits_return(world):
    endpoints, ended = played(world)
    assert endpoints.open == 0
    if world.crash == 0.0 and world.deadline is None:
        assert (ended, len(endpoints.trained)) == ("steps", STEPS)


@settings(max_examples=60, deadline=None)
@given(worlds)
def test_every_trajectory_is_whole(world):
    for rollout in played(world)[0].rollouts:
        assert len(rollout.mask) == len(rollout.logprobs) == len(rollout.token_ids)
        assert sum(rollout.mask) == rollout.num_tokens == sum(n for _, n in rollout.versions)
        assert len(rollout.prompt.token_ids) + len(rollout.token_ids) <= world.longest
        assert 1 <= rollout.turns <= world.turns
        assert (rollout.ended == "error") == (rollout.fixed is not None)
