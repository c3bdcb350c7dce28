"""Latency model of a job, for the simulator and for rehearsals.

`estimate.from_plan` makes one from a plan, `calibrate` from a run; `assume` changes its values.
"""

from __future__ import annotations

from collections.abc import Mapping

from forgedsl.records import dataclass, field, replace
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
"""seconds of the controller per completion, messages included (docs/benchmarks.md)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A generator service; times are of one replica."""

    tokens: Dist
    prompt: Dist
    decode: float
    """seconds of a decode step, independent of the running sequences"""
    decode_sequence: float
    """additional seconds per running sequence"""
    prefill: float
    """seconds per prompt token"""
    max_running: int
    load: float
    """seconds that sampling stops for new weights"""
    start: float
    """seconds until a replica that died is ready again"""
    again: float = 0.0
    """additional seconds of a swap per token in flight, if KV caches are recomputed"""
    like: float = 0.5
    """fraction of the variance of lengths that depends on the prompt"""
    decode_context: float = 0.0
    """part of `decode_sequence` for each token of context, whose keys and values are read"""
    context: float = 0.0
    """tokens of context, in the mean over a completion's decode steps, in `decode_sequence`"""
    siblings: int = 1
    """completions that read the keys and values of a prompt together"""
    longest: Dist | None = None
    """lengths if completions that reached the limit of a run go on to that of the job; None if the
    run shows all lengths"""

    @property
    def decode_empty(self) -> float:
        """seconds of a decode step per running sequence, without those of reading its context"""
        return max(0.0, self.decode_sequence - self.decode_context * self.context)

    def with_lengths(self, *, tokens: Dist, prompt: Dist) -> Engine:
        """Return the engine for other lengths of completions and prompts."""
        context = prompt.mean / self.siblings + tokens.mean_place
        sequence = self.decode_sequence + self.decode_context * (context - self.context)
        return replace(
            self, tokens=tokens, prompt=prompt, context=context,
            decode_sequence=max(0.0, sequence),
        )  # fmt: skip


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
    """distribution of a step's time relative to the estimate: other load, less dense batches"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    seconds: Dist


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """An environment: number of turns of a trajectory (its tokens are divided among them), and
    seconds of a step."""

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
    """All latencies, by name of service, reward, filter function, dataset and environment."""

    engines: Mapping[str, Engine]
    titans: Mapping[str, Titan]
    rewards: Mapping[str, Reward]
    filters: Mapping[str, Filter]
    data: Mapping[str, Data]
    environments: Mapping[str, Play] = field(default_factory=dict)
    control: Control = Control(rollout=CONTROLLER_ROLLOUT)
    source: str = "the plan's cost model"
    notes: tuple[str, ...] = ()


def at_longest(latencies: Latencies) -> Latencies | None:
    """Return the latencies for the longest completions that a calibration leaves possible; None if
    its run shows all lengths."""
    if all(engine.longest is None for engine in latencies.engines.values()):
        return None
    engines = {
        name: engine.with_lengths(tokens=engine.longest or engine.tokens, prompt=engine.prompt)
        for name, engine in latencies.engines.items()
    }
    return replace(latencies, engines=engines)


def completion_tokens(
    latencies: Latencies, service: str, seed: int, group: int, number: int
) -> float:
    """Return the length of a completion, which depends partly on its prompt and partly on
    chance."""
    engine = latencies.engines[service]
    shared = uniform(seed, GROUP, group) if engine.like else 0.5
    own = uniform(seed, LENGTH, group, number)
    return max(1.0, round(engine.tokens.blend(shared, own, engine.like)))


def step_seconds(titan: Titan, seed: int, turn: int, tokens: int) -> float:
    """Return the seconds of the n-th step of a trainer. Its quantiles are a low-discrepancy
    sequence (multiples of the golden ratio), so that the mean of few steps is already accurate."""
    place = (uniform(seed, SPREAD) + turn * GOLDEN) % 1.0
    return (titan.step + tokens * titan.token) * titan.spread.at(place)


def prompt_tokens(latencies: Latencies, service: str, seed: int, group: int) -> float:
    return latencies.engines[service].prompt.at(uniform(seed, PROMPT, group))


def steps(
    latencies: Latencies, env: str | None, seed: int, group: int, number: int
) -> tuple[float, ...]:
    """Return the seconds of the environment's step after each turn; for a plain completion, one
    turn with 0 seconds."""
    if env is None:
        return (0.0,)
    play = latencies.environments[env]
    turns = max(1, round(play.turns.at(uniform(seed, TURNS, group, number))))
    return tuple(play.step.at(uniform(seed, STEP, group, number, t)) for t in range(turns))
