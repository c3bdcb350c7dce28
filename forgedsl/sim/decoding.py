"""What completions of a run had to wait for, from when they began and ended in their engine.

    starts, ends and tokens of completions --Decoding--> planned seconds of their decode steps
                                           --Swaps--> contexts that were computed again

A calibration compares these with the seconds that the completions took.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import ceil

from forgedsl.records import dataclass
from forgedsl.sim.engine import LEAST

PASSES = 3
"""how often the progress of completions is computed: even in time, then by the pass before"""
LONGEST, PARTS = 0.1, 50_000
"""seconds over which decode steps count as equally long; longer if a run would have more than PARTS
such parts"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCost:
    """Seconds of a decode step, as planned: of itself, of each running sequence, and of each token
    of their contexts."""

    step: float
    sequence: float
    context: float


class Decoding:
    """The completions of an engine, and what the steps of each took by a planned cost.

    A completion of n tokens is in n decode steps. How long each took depends on the completions
    beside it and on their tokens by then, and these again on how long the steps took. So progress
    is first taken to be even in time, and then by the planned seconds of a step.

    Args:
        completions: start, end and number of tokens of each.
        cost: the planned cost of a step.
        context: tokens of a completion's context when it begins.
    """

    def __init__(
        self, completions: Sequence[tuple[float, float, float]], cost: DecodeCost, context: float
    ) -> None:
        self.starts = sorted(start for start, _, _ in completions)
        ends = sorted({time for start, end, _ in completions for time in (start, end)})
        longest = max(LONGEST, (ends[-1] - ends[0]) / PARTS)
        later = (time for pair in pairwise(ends) for time in _divided(*pair, longest))
        self._times = [ends[0], *later]
        self._steps: list[float] = list(self._times)
        """decode steps by then"""
        for _ in range(PASSES):
            counts, contexts = self._running(completions, context)
            shared = [
                cost.sequence * n + cost.context * c for n, c in zip(counts, contexts, strict=True)
            ]
            gained = [
                (b - a) / max(LEAST, cost.step + each)
                for (a, b), each in zip(pairwise(self._times), shared, strict=True)
            ]
            self._steps = list(accumulate(gained, initial=0.0))
        self._shared = list(
            accumulate((n * each for n, each in zip(gained, shared, strict=True)), initial=0.0)
        )
        """planned seconds of the steps until then, without those of the steps themselves"""

    def shared(self, start: float, end: float) -> float:
        """Return what sequences and contexts add to a step, in the mean of the steps between two
        times, in planned seconds."""
        steps = self.steps(end) - self.steps(start)
        spent = self._at(self._shared, end) - self._at(self._shared, start)
        return spent / steps if steps else 0.0

    def begun(self, start: float, end: float) -> int:
        """Return the completions that begin within a span."""
        return bisect_right(self.starts, end) - bisect_left(self.starts, start)

    def steps(self, time: float) -> float:
        """Return the decode steps until a time, as planned."""
        return self._at(self._steps, time)

    def _at(self, values: Sequence[float], time: float) -> float:
        i = min(max(bisect_right(self._times, time) - 1, 0), len(self._times) - 2)
        if i < 0:  # no completion took any time
            return 0.0
        a, b = self._times[i : i + 2]
        part = min(1.0, max(0.0, (time - a) / (b - a)))
        return values[i] + part * (values[i + 1] - values[i])

    def _running(
        self, completions: Sequence[tuple[float, float, float]], context: float
    ) -> tuple[list[int], list[float]]:
        """Return the completions that run between two times, and the tokens of their contexts in
        the middle."""
        place = {time: i for i, time in enumerate(self._times)}
        size = len(self._times)
        counts, rates, bases = [0] * size, [0.0] * size, [0.0] * size
        for start, end, tokens in completions:
            first, last = place[start], place[end]
            steps = self._steps[last] - self._steps[first]
            rate = tokens / steps if steps else 0.0
            base = context - rate * self._steps[first]
            for i, sign in ((first, 1), (last, -1)):
                counts[i] += sign
                rates[i] += sign * rate
                bases[i] += sign * base
        middles = [(a + b) / 2 for a, b in pairwise(self._steps)]
        sums = [list(accumulate(each))[:-1] for each in (rates, bases)]
        contexts = [
            max(0.0, rate * middle + base)
            for rate, base, middle in zip(*sums, middles, strict=True)
        ]
        return list(accumulate(counts))[:-1], contexts


def _divided(start: float, end: float, longest: float) -> list[float]:
    """Return the ends of equal parts of a span, of at most `longest` seconds."""
    parts = max(1, ceil((end - start) / longest))
    return [*(start + (end - start) * i / parts for i in range(1, parts)), end]


class Swaps:
    """Completions that run at each swap of weights, and the tokens that they have by then: their
    contexts are computed again.

    Args:
        times: the ends of the swaps, in order.
        completions: start, end and number of tokens of each.
        decoding: how far they are at a time.
    """

    def __init__(
        self,
        times: Sequence[float],
        completions: Sequence[tuple[float, float, float]],
        decoding: Decoding,
    ) -> None:
        self._times = times
        waiting = sorted(completions, reverse=True)
        running: list[tuple[float, float, float]] = []  # end, steps before it, tokens a step
        counts: list[float] = []
        tokens: list[float] = []
        for time in times:
            while waiting and waiting[-1][0] < time:
                start, end, length = waiting.pop()
                begun = decoding.steps(start)
                steps = decoding.steps(end) - begun
                heapq.heappush(running, (end, begun, length / steps if steps else 0.0))
            while running and running[0][0] <= time:
                heapq.heappop(running)
            now = decoding.steps(time)
            counts.append(len(running))
            tokens.append(sum((now - begun) * rate for _, begun, rate in running))
        self._counts, self._tokens = (
            list(accumulate(each, initial=0.0)) for each in (counts, tokens)
        )

    def within(self, start: float, end: float) -> tuple[float, float]:
        """Return the completions and the tokens, summed over the swaps between two times."""
        first, last = bisect_right(self._times, start), bisect_left(self._times, end)
        if last <= first:
            return 0.0, 0.0
        return (
            self._counts[last] - self._counts[first], self._tokens[last] - self._tokens[first]
        )  # fmt: skip
