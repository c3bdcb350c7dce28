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
    """An optimizer step: `seconds` since the previous one, of which the trainer waited `idle`."""

    step: int
    end: float
    seconds: float
    idle: float
    tokens: float
    ages: Mapping[int, int]
    """completions by age"""
    dropped: int
    """groups dropped since the previous step"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a simulation. `ended`: steps, data, or what stopped it. Busy times are seconds,
    summed over replicas."""

    steps: tuple[Step, ...]
    ended: str
    seconds: float
    events: int
    replicas: Mapping[str, int]
    sampling: Mapping[str, float]
    stopped: Mapping[str, float]
    sampled: Mapping[str, float]
    """sampled tokens by generator service"""
    scoring: Mapping[str, float]
    """busy fraction of each frozen model"""
    pools: Mapping[str, float]
    """busy fraction of the processes of a reward pool"""
    controller: float
    """busy fraction of the controller"""
    dropped: Mapping[str, int]
    lost: int
    """requests lost with an engine that died"""
    deaths: int
    age_bound: int
    versioned: bool
    warm: int
    """initial steps that the summary ignores"""

    @property
    def settled(self) -> tuple[Step, ...]:
        """Steps after the start-up; all steps of a short run."""
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
        """Fraction of time in which the trainer waits."""
        spent = sum(step.seconds for step in self.settled)
        return sum(step.idle for step in self.settled) / spent if spent else 0.0

    @property
    def busy(self) -> dict[str, float]:
        """Fraction of time in which each part works; the trainer is named `trainer`."""
        return {
            "trainer": 1 - self.trainer_idle,
            **{name: 1 - self.sampler_idle(name) for name in self.replicas},
            **self.scoring,
            **self.pools,
            "controller": self.controller,
        }

    def sampler_idle(self, service: str) -> float:
        """Average fraction of time in which an engine of the service is idle."""
        whole = self.seconds * self.replicas[service]
        worked = self.sampling[service] + self.stopped[service]
        return max(0.0, 1.0 - worked / whole) if whole else 0.0


def summary(result: Result) -> dict[str, Any]:
    """Return the summary as JSON data. It is deterministic."""
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
    """Round to six digits, which are equal on every machine."""
    return float(f"{value:.6g}")
