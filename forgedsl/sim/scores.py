"""Rewards behind a score, and the processes that evaluate them.

    Job --calls_of--> by score: the calls it makes; by pool: its processes

Rewards that are pure functions share one pool of processes, and one call there does all of them;
each other reward has processes of its own (runtime/meshes.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.records import dataclass

if TYPE_CHECKING:
    from forgedsl.lower.job import Job
    from forgedsl.sim.workload import Workload

PURE = "rewards"
PACKET = {True: 4096, False: 8}
"""calls that travel together, of pure and of Python rewards (runtime/services/reward.py)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Rewards evaluated in one go, in `pool`. `limit` seconds each."""

    names: tuple[str, ...]
    pool: str
    limit: float
    retries: int = 0
    drops: bool = True
    """the rollout is dropped when it fails for good"""


def calls_of(job: Job, load: Workload) -> tuple[dict[str, tuple[Call, ...]], dict[str, int]]:
    """By score, its calls; by pool, its processes."""
    return ({score: _calls(job, names) for score, names in load.rubrics.items()}, _sizes(job))


def _calls(job: Job, names: tuple[str, ...]) -> tuple[Call, ...]:
    pure = tuple(name for name in names if job.rewards[name].is_pure)
    found = []
    if pure:
        limit = max(job.rewards[name].timeout for name in pure)
        drops = all(job.rewards[name].on_error == "drop" for name in pure)
        found.append(Call(names=pure, pool=PURE, limit=limit, drops=drops))
    for name in names:
        reward = job.rewards[name]
        if not reward.is_pure:
            drops = reward.on_error == "drop"
            found.append(
                Call(
                    names=(name,), pool=name, limit=reward.timeout, retries=reward.retries,
                    drops=drops,
                )
            )  # fmt: skip
    return tuple(found)


def _sizes(job: Job) -> dict[str, int]:
    pure = [reward.procs for reward in job.rewards.values() if reward.is_pure]
    sizes = {PURE: max(pure)} if pure else {}
    return sizes | {n: r.places for n, r in job.rewards.items() if not r.is_pure}
