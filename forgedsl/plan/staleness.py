"""Policy age of rollouts, and the number of groups that may be alive to stay within it.

P prompts per step, lag S, window fraction f, sync every k steps:

    B = (S + 1) P                                  credits: groups alive at once
    W = max(1, floor(f B))                         groups that may be consumed out of order
    age <= (B + W - 2) // P + (k - 1)              in optimizer steps

When a group is drawn, at most B - 1 others are alive, and at most W - 1 later ones may be consumed
before it. So at most B + W - 2 groups are consumed first, P in a step. Syncs add up to k - 1 steps.

`plan_async` picks the largest S whose bound is within `max_policy_age`. In a synchronous schedule
S = 0: a group is drawn only after the weights of the step before were pulled.
"""

from __future__ import annotations

from math import floor

from forgedsl.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """The numbers of one schedule."""

    prompts: int
    lag: int
    credits: int
    window: int
    every: int
    age_bound: int

    @property
    def formula(self) -> str:
        """The bound with its numbers, e.g. "(32 + 1 - 2) // 16 = 1"."""
        later = f" + {self.every - 1}" if self.every > 1 else ""
        return f"({self.credits} + {self.window} - 2) // {self.prompts}{later} = {self.age_bound}"

    @property
    def text(self) -> str:
        """Return two lines of text: the credits, and the bound."""
        later = " + every - 1" if self.every > 1 else ""
        return (
            f"credits B = (S + 1) P = ({self.lag} + 1) x {self.prompts} = {self.credits}, "
            f"window W = {self.window}\n"
            f"worst age = (B + W - 2) // P{later} = {self.formula}"
        )


def bound(*, prompts: int, lag: int, fraction: float = 0.0, every: int = 1) -> Staleness:
    """The staleness of a schedule with target lag `lag`."""
    credits = (lag + 1) * prompts
    window = max(1, floor(fraction * credits))
    age = (credits + window - 2) // prompts + every - 1
    return Staleness(
        prompts=prompts, lag=lag, credits=credits, window=window, every=every, age_bound=age
    )


def plan_async(
    *, prompts: int, max_age: int, fraction: float = 0.0, every: int = 1
) -> Staleness | None:
    """Return the schedule with the largest lag >= 1 whose worst age is within `max_age`; None if
    there is none.

    The age grows with the lag and is at least the lag, so the search ends at `max_age`.
    """
    for lag in range(max_age, 0, -1):
        found = bound(prompts=prompts, lag=lag, fraction=fraction, every=every)
        if found.age_bound <= max_age:
            return found
    return None
