"""Latency model of a job, for the simulator and for rehearsals.

`estimate.from_plan` makes one from a plan, `calibrate` from a run; `assume` changes what it says.
"""

from __future__ import annotations

from collections.abc import Mapping

from forgedsl.records import dataclass, field
from forgedsl.sim.values import (
    GROUP,
    LENGTH,
    PROMPT,
    SPREAD,
    STEP,
    TURNS,
    Dist,
    constant,
    uniform,
)

GOLDEN = (5**0.5 - 1) / 2
CONTROLLER_ROLLOUT = 0.2e-3
"""the controller's own work on one completion, messages included (docs/benchmarks.md)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A generator service; times are of one replica."""

    tokens: Dist
    prompt: Dist
    decode: float
    """seconds of a decode step, whatever runs"""
    decode_sequence: float
    """more for each running sequence"""
    prefill: float
    """seconds per prompt token"""
    max_running: int
    load: float
    """seconds that sampling stops for new weights"""
    start: float
    """seconds until a replica that died serves again"""
    again: float = 0.0
    """more for each sampled token in flight, where contexts are computed anew then"""
    like: float = 0.5
    """share of the variance of lengths that is the prompt's"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Titan:
    """A trained or frozen model; a call of n tokens takes `step + n * token` seconds."""

    step: float
    token: float
    logprobs: float = 0.0
    logprobs_token: float = 0.0
    publish: float = 0.0
    save: float = 0.0
    spread: Dist = constant(1.0)
    """what a step takes, over this: other work of the machine, batches that are packed worse"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    seconds: Dist


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """An environment: turns of a trajectory, whose tokens they share, and seconds of a step."""

    turns: Dist
    step: Dist


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """`keep`: the probability that a group passes."""

    keep: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    rollout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """By name of service, reward, filter function, dataset and environment."""

    engines: Mapping[str, Engine]
    titans: Mapping[str, Titan]
    rewards: Mapping[str, Reward]
    filters: Mapping[str, Filter]
    data: Mapping[str, Data]
    environments: Mapping[str, Play] = field(default_factory=dict)
    control: Control = Control(rollout=CONTROLLER_ROLLOUT)
    source: str = "the plan's cost model"
    notes: tuple[str, ...] = ()


def completion_tokens(
    latencies: Latencies, service: str, seed: int, group: int, number: int
) -> float:
    """Return the length of a completion: partly by its prompt, partly by chance."""
    engine = latencies.engines[service]
    shared = uniform(seed, GROUP, group) if engine.like else 0.5
    own = uniform(seed, LENGTH, group, number)
    return max(1.0, round(engine.tokens.blend(shared, own, engine.like)))


def step_seconds(titan: Titan, seed: int, turn: int, tokens: int) -> float:
    """How long the n-th step of a trainer is. Few of them have the mean of many: the golden ratio
    takes quantiles evenly."""
    place = (uniform(seed, SPREAD) + turn * GOLDEN) % 1.0
    return (titan.step + tokens * titan.token) * titan.spread.at(place)


def prompt_tokens(latencies: Latencies, service: str, seed: int, group: int) -> float:
    return latencies.engines[service].prompt.at(uniform(seed, PROMPT, group))


def steps(
    latencies: Latencies, env: str | None, seed: int, group: int, number: int
) -> tuple[float, ...]:
    """Seconds of the step behind each turn of a trajectory; of a completion alone there is one
    turn, and nothing behind it."""
    if env is None:
        return (0.0,)
    play = latencies.environments[env]
    turns = max(1, round(play.turns.at(uniform(seed, TURNS, group, number))))
    return tuple(play.step.at(uniform(seed, STEP, group, number, t)) for t in range(turns))
