"""Result of a simulated run: one record per optimizer step, sums over the run, their summary.

Step ... --Result--> Summary (step time, idle shares, ages, drops) -> text, JSON
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from forgedsl.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step; `seconds` since the one before, `idle` of these the trainer waited."""

    step: int
    end: float
    seconds: float
    idle: float
    tokens: float
    ages: Mapping[int, int]
    """completions by age"""
    dropped: int
    """groups dropped since the step before"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`ended`: steps, data, or what stopped it. Busy times are sums over replicas, in seconds."""

    steps: tuple[Step, ...]
    ended: str
    seconds: float
    events: int
    replicas: Mapping[str, int]
    sampling: Mapping[str, float]
    stopped: Mapping[str, float]
    sampled: Mapping[str, float]
    """tokens by generator service"""
    scoring: Mapping[str, float]
    """the share of time in which a frozen model works"""
    pools: Mapping[str, float]
    """the share of time in which the processes of a reward pool are busy"""
    controller: float
    """the same of the controller"""
    dropped: Mapping[str, int]
    lost: int
    """requests that went down with an engine"""
    deaths: int
    age_bound: int
    versioned: bool
    warm: int
    """steps at the beginning that the summary leaves out"""

    @property
    def settled(self) -> tuple[Step, ...]:
        """Steps after the start-up, or all of a short run."""
        return self.steps[self.warm :] or self.steps

    @property
    def step_seconds(self) -> float:
        found = self.settled
        return sum(step.seconds for step in found) / len(found) if found else 0.0

    @property
    def ages(self) -> Counter[int]:
        total: Counter[int] = Counter()
        for step in self.steps:
            total.update(step.ages)
        return total

    @property
    def worst_age(self) -> int:
        return max(self.ages, default=0)

    @property
    def trainer_idle(self) -> float:
        """The share of time in which the trainer waits."""
        spent = sum(step.seconds for step in self.settled)
        return sum(step.idle for step in self.settled) / spent if spent else 0.0

    @property
    def busy(self) -> dict[str, float]:
        """The share of time in which each part works; the trainer is called `trainer`."""
        return {
            "trainer": 1 - self.trainer_idle,
            **{name: 1 - self.sampler_idle(name) for name in self.replicas},
            **self.scoring,
            **self.pools,
            "controller": self.controller,
        }

    def sampler_idle(self, service: str) -> float:
        """The share of time in which an engine of the service has nothing to do, on average."""
        whole = self.seconds * self.replicas[service]
        worked = self.sampling[service] + self.stopped[service]
        return max(0.0, 1.0 - worked / whole) if whole else 0.0


def summary(result: Result) -> dict[str, Any]:
    """Plain data for JSON; everything in it repeats exactly."""
    seconds = sorted(step.seconds for step in result.settled)
    tokens = sum(step.tokens for step in result.settled)
    ages = result.ages
    total = ages.total()
    return {
        "ended": result.ended,
        "steps": len(result.steps),
        "seconds": _round(result.seconds),
        "step_s": {
            "mean": _round(result.step_seconds),
            "median": _round(_quantile(seconds, 0.5)),
            "p95": _round(_quantile(seconds, 0.95)),
            "max": _round(max(seconds, default=0.0)),
        },
        "tokens_per_s": _round(tokens / sum(seconds)) if seconds and sum(seconds) else 0.0,
        "idle": {
            "trainer": _round(result.trainer_idle),
            **{name: _round(result.sampler_idle(name)) for name in result.sampling},
        },
        "busy": {
            "controller": _round(result.controller),
            **{name: _round(share) for name, share in {**result.scoring, **result.pools}.items()},
        },
        "weights_stop": {
            name: _round(value / (result.seconds * result.replicas[name]))
            for name, value in result.stopped.items()
            if result.seconds
        },
        "ages": {str(age): _round(count / total) for age, count in sorted(ages.items())},
        "worst_age": result.worst_age if result.versioned else None,
        "age_bound": result.age_bound if result.versioned else None,
        "groups_dropped": dict(sorted(result.dropped.items())),
        "requests_lost": result.lost,
        "deaths": result.deaths,
        "events": result.events,
    }


def _quantile(ranked: list[float], q: float) -> float:
    return ranked[min(len(ranked) - 1, int(q * len(ranked)))] if ranked else 0.0


def _round(value: float) -> float:
    """Six digits: enough for anybody, and the same on every machine."""
    return float(f"{value:.6g}")
