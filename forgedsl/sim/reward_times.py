"""Measured seconds of a call of each reward, for an entry of the calibration file.

RUN --reward_seconds--> {"grpo_math cpu": {"correct": 0.0011}}
"""

from __future__ import annotations

import statistics

from forgedsl.plan.calibration import run_name
from forgedsl.runs.data import RunData
from forgedsl.sim.calibrate import FIRST, scores_of, seconds_of_call


def reward_seconds(data: RunData) -> dict[str, dict[str, float]]:
    """Return the seconds of a call by reward, under the name and profile of the run. Metrics have
    the longest call of each step. If its calls keep a pool busy for less in the mean, that counts.
    """
    found = {}
    for name, reward in data.job.rewards.items():
        key = f"reward_s/{name}"
        longest = [row[key] for row in data.rows[FIRST:] if row.get(key) is not None]
        if not reward.is_pure and longest:
            bounds = (statistics.median(longest), *_busy(data, name))
            found[name] = float(f"{min(bounds):.4g}")
    return {run_name(data.job.name, data.job.profile): found} if found else {}


def _busy(data: RunData, name: str) -> tuple[float, ...]:
    """Return the seconds in which scores were computed, for each call; () without a score."""
    scores = scores_of(data, name)
    return (seconds_of_call(data, name, scores),) if scores else ()
