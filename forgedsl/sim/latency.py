"""How long everything takes: the latency model of a job, for the simulator and for rehearsals.

    Job + Plan (cost, memory) --from_plan--> Latencies --assume("generator.tokens=...")--> Latencies

What the plan knows (rates of devices, sizes of models) gives the times of engines, trainers and
weights. What it cannot know is assumed and listed in `notes`: how long completions and prompts are,
how long rewards take, how many groups a filter keeps. A calibration replaces all of it by what a
run showed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from forgedsl.records import dataclass
from forgedsl.sim.values import Dist, constant

if TYPE_CHECKING:
    from forgedsl.graph.ir import Graph
    from forgedsl.lower.job import Job
    from forgedsl.plan.plan import Plan

SUCCESS = 0.8
"""assumed share of right completions, from which the filters' dead groups follow"""
ROWS, EVAL_ROWS = 10_000, 200
CONTROLLER_ROLLOUT = 0.6e-3
"""the controller's own work on one completion (measured in a rehearsal without latencies)"""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    seconds: Dist


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
    """By name of service, reward, filter function and dataset."""

    engines: Mapping[str, Engine]
    titans: Mapping[str, Titan]
    rewards: Mapping[str, Reward]
    filters: Mapping[str, Filter]
    data: Mapping[str, Data]
    control: Control = Control(rollout=CONTROLLER_ROLLOUT)
    source: str = "the plan's cost model"
    notes: tuple[str, ...] = ()


def from_plan(job: Job, graph: Graph, plan: Plan) -> Latencies:
    """The model of a planned job."""
    from forgedsl.sim.estimate import engines, titans

    found, notes = engines(job, graph, plan)
    rewards, more = _rewards(job)
    filters, why = _filters(job)
    return Latencies(
        engines=found,
        titans=titans(job, graph, plan),
        rewards=rewards,
        filters=filters,
        data=_data(job),
        notes=(*notes, *more, *why),
    )


def _rewards(job: Job) -> tuple[dict[str, Reward], list[str]]:
    """Pure functions take next to nothing; of Python rewards nothing is known."""
    slow = Dist(median=0.05, sigma=0.5)
    found = {
        name: Reward(seconds=slow if reward.kind == "python" else constant(0.0002))
        for name, reward in job.rewards.items()
    }
    unknown = [name for name, reward in job.rewards.items() if reward.kind == "python"]
    return found, [f"a call of {name} takes {slow.text} s" for name in unknown]


def _filters(job: Job) -> tuple[dict[str, Filter], list[str]]:
    size = max((node.n or 1 for node in job.nodes if node.op == "sample"), default=1)
    keep = 1.0 - SUCCESS**size - (1.0 - SUCCESS) ** size if size > 1 else 1.0
    names = [node.target for node in job.nodes if node.op == "mask"]
    note = f"{keep:.0%} of groups (success rate {SUCCESS:g}, {size} completions each)"
    return {n: Filter(keep=keep) for n in names}, [f"filter {n} keeps {note}" for n in names]


def _data(job: Job) -> dict[str, Data]:
    evals = {spec.dataset for spec in job.evals.values()}
    return {name: Data(rows=EVAL_ROWS if name in evals else ROWS) for name in job.datasets}
