"""Guards: stop a run that no longer makes sense, with the evidence in the message.

    deadline(name, seconds)   bounds a named wait (DeadlinePassed)
    FailureGuard              completions that keep failing, without one that succeeds (RunError)
    RewardGuard               a reward that fails too often (GuardError)
    NonFiniteGuard            a loss or gradient that is not a number (GuardError, or a skip)
    AgeGuard                  drops stale groups; checks the age bound that the plan proved
    GapGuard                  trainer and sampler drift apart at equal weights (GuardError)
    UnchangedWeightsGuard     updates after which no published weight differs (GuardError)

Starvation is guarded where the trainer waits, in `controller/group_source.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from forgedsl.errors import GuardError, RunError
from forgedsl.lower.job import Node, Schedule
from forgedsl.operations.registry import operation
from forgedsl_runtime.data_types import StepResult
from forgedsl_runtime.endpoints import SyncResult

SAVE_SECONDS = 1800.0
LAST_SAVE_SECONDS = 30.0
"""limit for the checkpoint after a failure: the failed service may no longer answer"""
INTERRUPT_SECONDS = 1800.0
"""limit for the step or checkpoint in progress after Ctrl-C; more presses stop earlier"""
FAILURE_SECONDS = 60.0
"""limit for the step or checkpoint in progress after a failure"""
MAX_SKIPPED = 8


class DeadlinePassed(Exception):
    """A named wait passed its deadline."""

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"{what} gave no answer within {seconds:g} s")


@asynccontextmanager
async def deadline(what: str, seconds: float | None) -> AsyncIterator[None]:
    """Bound the body to `seconds` (None: unbounded). A TimeoutError raised by the body stays as it
    is.

    Raises:
        DeadlinePassed: the body took longer.
    """
    clock = asyncio.timeout(seconds)
    try:
        async with clock:
            yield
    except TimeoutError as error:
        if not clock.expired() or seconds is None:
            raise
        raise DeadlinePassed(what, seconds) from error


class NonFiniteError(GuardError):
    """The trainer's weights may be corrupt: no checkpoint is made of them."""


class FailureGuard:
    """Counts consecutive failures per node. Single failures are dropped; `limit` in a row end the
    run."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in_a_row: dict[str, int] = {}

    def succeeded(self, node: Node) -> None:
        self._in_a_row[node.name] = 0

    def failed(self, node: Node, error: Exception) -> None:
        count = self._in_a_row.get(node.name, 0) + 1
        self._in_a_row[node.name] = count
        if count >= self._limit:
            raise RunError(
                f"{node.op} {node.name} on {node.target} failed {count} times in a row; "
                f"the last failure: {error}",
                origin=node.origin,
                remedy=operation(node.op).remedy,
            ) from error


class NonFiniteGuard:
    """Applies `optimizer.on_nan` to the result of a step."""

    def __init__(self) -> None:
        self._skipped = 0

    def check(self, node: Node, result: StepResult, step: int, on_nan: str) -> None:
        finite = math.isfinite(result.loss) and math.isfinite(result.grad_norm)
        if finite and not result.skipped:
            self._skipped = 0
            return
        self._skipped += 1
        values = f"loss {result.loss}, gradient norm {result.grad_norm} at step {step}"
        if on_nan == "stop":
            raise NonFiniteError(
                f"{node.target}: {values}",
                origin=node.origin,
                remedy="lower the learning rate or resume from the last checkpoint; "
                "`optimizer.on_nan = skip` skips such updates",
            )
        if self._skipped >= MAX_SKIPPED:
            raise NonFiniteError(
                f"{node.target}: {values}; {self._skipped} steps in a row were skipped",
                origin=node.origin,
                remedy="lower the learning rate",
            )


class AgeGuard:
    """Checks the age of a group: trainer version minus the version of its oldest token."""

    def __init__(self, schedule: Schedule, *, steps_per_version: int) -> None:
        self._bound = schedule.age_bound * steps_per_version
        self._limit = schedule.max_policy_age
        self._on_stale = schedule.on_stale

    def is_stale(self, group: int, age: int, origin: str) -> bool:
        """Return True if the group must be dropped.

        Raises:
            RunError: the age exceeds the proved bound, or the group is stale and `on_stale` is
                error.
        """
        if age > self._bound:
            raise RunError(
                f"group {group} is {age} versions old, but the plan proved an age of at most "
                f"{self._bound}: this is a bug in the runtime, please report it with events.jsonl",
                origin=origin,
            )
        if self._limit is None or age <= self._limit:
            return False
        if self._on_stale == "error":
            raise RunError(
                f"group {group} is {age} versions old, but `max_policy_age` is {self._limit}",
                origin=origin,
                remedy="raise `schedule.max_policy_age` or set `on_stale = drop`",
            )
        return True


class GapGuard:
    """Watches the gap between the log-probs of trainer and sampler at age 0, where both have the
    same weights. The gap of the first step is the baseline for these kernels and dtypes."""

    WARN_GROWTH, STOP_GROWTH = 8.0, 64.0
    """multiples of the first gap: above WARN_GROWTH the run warns, above STOP_GROWTH it stops"""
    LEAST = {"f32": 1e-4, "bf16": 1e-2, "f16": 2e-3}  # noqa: RUF012
    """by dtype: lower bound of the baseline"""

    def __init__(self, dtype: str) -> None:
        self._least = self.LEAST.get(dtype, self.LEAST["bf16"])
        self._first: float | None = None
        self._warned = False

    def check(self, node: Node, gap: float | None, *, proved: bool) -> str:
        """Return a warning, or "". `proved` says that the newest weights of the sampler are those
        published, bit for bit.

        Raises:
            GuardError: the gap has grown so much that the ratios of the loss mean nothing.
        """
        if gap is None or not math.isfinite(gap):
            return ""
        if self._first is None:
            self._first = max(gap, self._least)
            return ""
        grown = gap / self._first
        if grown < self.WARN_GROWTH:
            self._warned = False
            return ""
        side = (
            "the sampler holds exactly the published weights, so the kernels or settings of "
            "trainer and sampler differ"
            if proved
            else "the sampler's weights were not verified, so either they or its kernels differ"
        )
        what = (
            f"log-probs of {node.target} and of the sampler differ by {gap:.2g} on average for "
            f"the same weight version, {grown:.0f} times as much as at the start; {side}"
        )
        if grown >= self.STOP_GROWTH:
            raise GuardError(
                what,
                origin=node.origin,
                remedy="importance ratios are no longer reliable; use one dtype for both "
                "services, or a loss that corrects for the sampler",
            )
        told, self._warned = self._warned, True
        return "" if told else what


class UnchangedWeightsGuard:
    """Stops a run whose updates change no published weight. In bf16 an update may be smaller than
    half of the last digit of every weight: the trainer learns, and the sampler never sees it."""

    LIMIT, LIMIT_IN_F32 = 8, 1

    def __init__(self) -> None:
        self._in_a_row: Counter[str] = Counter()

    def check(self, node: Node, result: SyncResult, dtype: str) -> str:
        """Return a warning, or "". `dtype` is that of the sampler.

        Raises:
            GuardError: several syncs in a row, or one in f32, have changed nothing.
        """
        if result.changed is None:
            return ""
        if result.changed:
            self._in_a_row[node.name] = 0
            return ""
        self._in_a_row[node.name] += 1
        count = self._in_a_row[node.name]
        what = f"an update of {node.target} changed none of the weights of {node.to} ({dtype})"
        remedy = (
            "raise `optimizer.lr`"
            if dtype == "f32"
            else f"raise `optimizer.lr`, or give {node.to} and its model `dtype = f32`"
        )
        if count >= (self.LIMIT_IN_F32 if dtype == "f32" else self.LIMIT):
            raise GuardError(
                f"{what}, {count} times in a row" if count > 1 else what,
                origin=node.origin,
                remedy=remedy,
            )
        return (
            f"{what}: the update is below the precision of {dtype}; {remedy}" if count == 1 else ""
        )


class RewardGuard:
    """Stops a run if one of its rewards fails too often. Missing scores bias training: they are not
    a random sample (a reward may fail only on wrong answers)."""

    WINDOW = 256
    RATE_AFTER = 32
    ALL_AFTER = 16
    """number of calls after which a reward that always fails ends the run. FailureGuard would end
    the run too, after at least so many failures. RewardGuard is called first, so the user gets its
    error, which is more specific"""
    KILLS = 4
    """if every call so far has ended its process, the run ends after KILLS * n calls, where n is
    the number of calls that may run in one process at once"""
    BROKEN = 0.1
    """failure rate above which failing calls are reported as the cause of a stall"""

    def __init__(
        self,
        reward: str,
        limit: float,
        origin: str,
        *,
        what: str = "reward",
        remedy: str = "fix the reward: return 0.0 for a completion that earns nothing; "
        "`max_failed` is the fraction of calls that may fail",
    ) -> None:
        self._reward = reward
        self._what, self._remedy = what, remedy
        self._limit = limit
        self._origin = origin
        self._last: deque[tuple[str, str]] = deque(maxlen=self.WINDOW)
        """(error, example) of a failed call, ("", "") of a successful one"""
        self._answered = self._kills = self._tried = self._broken = 0
        self._error = ""
        self.ends = 0
        """calls that ended their process or ran out of memory"""

    @property
    def failure_summary(self) -> str:
        """Describe why many calls of this reward fail; empty if few do."""
        if self._kills > self._answered:
            count = f"{self._kills} of {self._kills + self._answered} calls so far"
            return f"{count} ended their process, which is then started again"
        if self._broken <= self.BROKEN * self._tried:
            return ""
        return (
            f"{self._broken} of {self._tried} calls so far failed, most recently with: "
            f"{self._error}"
        )

    def record_call(self, error: str) -> None:
        """Record the result of a call or retry: an error text, or "" if it returned a value."""
        self._tried += 1
        self._broken += bool(error)
        self.ends += error.startswith("MemoryError")
        self._error = error or self._error

    def record_survival(self) -> None:
        """Record a call that left its process alive."""
        self._answered += 1

    def record_process_end(self, error: str, example: str, at_once: int = 1) -> None:
        """Record a call that ended its process. Up to `at_once` calls, this one included, run in
        one process and end with it.

        Raises:
            GuardError: so far every call has ended its process.
        """
        self._kills += 1
        self.ends += 1
        if self._answered or self._kills < self.KILLS * at_once or self._limit >= 1.0:
            return
        raise GuardError(
            f"every call of {self._what} {self._reward} ends its process ({self._kills} of "
            f"{self._kills} so far): {error}\n  for example: {example}",
            origin=self._origin,
            remedy="call the function alone with these values: it exits, crashes, or needs more "
            "memory than is available",
            service=self._reward,
        )

    def succeeded(self) -> None:
        self._last.append(("", ""))

    def failed(self, error: str, example: str) -> None:
        self._last.append((error, example))
        failed = [pair for pair in self._last if pair[0]]
        count, rate = len(self._last), len(failed) / len(self._last)
        if rate <= self._limit or count < (self.ALL_AFTER if rate == 1.0 else self.RATE_AFTER):
            return
        kind, times = Counter(text.partition(":")[0] for text, _ in failed).most_common(1)[0]
        same_kind = [pair for pair in failed if pair[0].partition(":")[0] == kind]
        common, count_of = Counter(text for text, _ in same_kind).most_common(1)[0]
        what = common if count_of == times else f"{kind}, such as {common}"
        shown = next(example for text, example in same_kind if text == common)
        raise GuardError(
            f"{self._what} {self._reward} failed for {len(failed)} of its last {count} "
            f"completions ({rate:.0%}; the limit is {self._limit:.0%}); {times} times: {what}\n  "
            f"for example: {shown}",
            origin=self._origin,
            remedy=self._remedy,
            service=self._reward,
        )
