"""Measured seconds of a call of each reward, for an entry of the calibration file.

RUN --reward_seconds--> {"grpo_math cpu": {"correct": 0.0011}}
"""

from __future__ import annotations

import statistics

from forgedsl.plan.calibration import run_name
from forgedsl.runs.data import RunData
from forgedsl.sim.calibrate import FIRST, seconds_of_call


def reward_seconds(data: RunData) -> dict[str, dict[str, float]]:
    """Return the seconds of a call by reward, under the name and profile of the run: the median
    over the steps of the longest call of a step, or the mean of all calls if that is shorter."""
    found = {}
    for name, reward in data.job.rewards.items():
        key = f"reward_s/{name}"
        longest = [row[key] for row in data.rows[FIRST:] if row.get(key) is not None]
        if not reward.is_pure and longest:
            typical, mean = statistics.median(longest), seconds_of_call(data, name)
            seconds = typical if mean is None else min(typical, mean)
            found[name] = float(f"{seconds:.4g}")
    return {run_name(data.job.name, data.job.profile): found} if found else {}
