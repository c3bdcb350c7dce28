"""Weighted draw: take or skip each row, in the dataset's order, with its own probability.

The level of a row is a key that the dataset computes, such as its difficulty. If the dataset
computes none, each row is a level of its own.

    row -> mean score and number of earlier groups of its level -> weight -> taken, or skipped

The weight is a function of the program. A row of weight 1 is taken whenever it comes, one of weight
0.05 once in twenty times. Skipped rows advance the position too, so positions, epochs and resuming
work as in any draw. The random number of a row depends on (run seed, name of the draw, position).
The scores of a group enter the mean of its level when the group is trained on or dropped.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from forgedsl.errors import RunError
from forgedsl_runtime.controller.context import Context
from forgedsl_runtime.controller.firing import demand
from forgedsl_runtime.endpoints import seed_of
from forgedsl_runtime.flow import Source
from forgedsl_runtime.group import GroupState

RECENT = 16
"""the mean score of a level is over this many of its recent groups"""
PATIENCE = 20_000
"""the run ends with an error after more consecutive skipped rows than this"""


class WeightedDraw:
    """The results of one weighted draw, by level."""

    def __init__(self, context: Context, source: Source) -> None:
        self._node = source.node
        self._seed = context.job.seed
        self._endpoints = context.endpoints
        self._recent: dict[str, deque[float]] = {}
        self._counts: dict[str, int] = {}
        self._passed = 0

    async def accepts(self, prompt: Any) -> bool:
        """True if a row is taken, by the weight of its level.

        Raises:
            RunError: the weight is negative or not finite, or no row was taken for very long.
        """
        level = _level(prompt)
        recent = self._recent.get(level, ())
        mean = sum(recent) / len(recent) if recent else 0.0
        results = {"mean": mean, "count": float(self._counts.get(level, 0))}
        weight = await demand(self._node, self._endpoints.weight(self._node, results))
        if not weight >= 0.0 or math.isinf(weight):
            count = results["count"]
            raise self._error(f"the weight is {weight} at mean {mean:.3g} and count {count:g}")
        chance = seed_of(self._seed, self._node.name, prompt.cursor) / 2**31
        taken = chance < weight
        self._passed = 0 if taken else self._passed + 1
        if self._passed > PATIENCE:
            raise self._error(
                f"no row of the last {PATIENCE:,} was taken, because the weight is 0 or nearly 0"
            )
        return taken

    def observe(self, group: GroupState) -> None:
        """Count the scores of a finished group, if it has any."""
        scores = group.scores.get(str(self._node.observe), {})
        if scores:
            level = _level(group.item)
            mean = sum(score.value for score in scores.values()) / len(scores)
            self._recent.setdefault(level, deque(maxlen=RECENT)).append(mean)
            self._counts[level] = self._counts.get(level, 0) + 1

    def state_dict(self) -> dict[str, Any]:
        return {k: [self._counts[k], list(recent)] for k, recent in self._recent.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._counts = {level: count for level, (count, _) in state.items()}
        self._recent = {k: deque(recent, maxlen=RECENT) for k, (_, recent) in state.items()}

    def _error(self, what: str) -> RunError:
        return RunError(
            f"draw {self._node.name}: {what}",
            origin=self._node.origin,
            remedy="a weight is the probability of taking a row, 0 to 1; give it a lower bound "
            "such as `max(0.05, ...)`, so that every row is drawn now and then",
        )


def _level(prompt: Any) -> str:
    """Return the key for results: the level of a row, else its number."""
    return str(prompt.row) if prompt.level is None else str(prompt.level)
