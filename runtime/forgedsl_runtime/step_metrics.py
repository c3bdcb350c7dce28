"""Measures a run between two optimizer steps and makes the metrics record of a step.

    batch, StepResult, Meter counters --record--> one flat dict (the contract of metrics.jsonl)

Fields without meaning in a flow (rewards in supervised training, ages without a weight sync) are
None. Times are in seconds. Counts, drops and times cover one iteration: from the end of the step
before to the end of this one.

    loss/<name>               report of the loss; with several updates a step, their mean
    loss/<name>_last          report of the last update, if a step has several
    reward/<name>             mean of each reward that the score is made of
    dropped/<reason>          dropped groups
    scores_failed             rewards that gave no value after their retries
    failed/<name>             the same by reward
    retried/<name>            repeated calls of a reward
    requests_made/<name>      HTTP requests of a judge behind an endpoint (rewards/requests.py);
                              also requests_again/, requests_slow/ and requests_failed/
    groups_dead               groups of the batch whose completions all have the same score
    replay/...                groups drawn from buffers; rewards, ages and `groups` exclude them
    sync_bytes/<service>      bytes of weight syncs that reached all replicas
    sync_s/<service>          time of these syncs, from publishing to use
    sync_bytes_per_s/<service>
    sync_changed/<service>    share of the elements that differ from the version before
    reward_s/<name>           longest call of a reward
    step_s                    wall time of the whole iteration
    trainer_idle_s            wait of the trainer for a batch or for a weight transfer
    sampler_idle_s            time without a completion in progress
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from forgedsl_runtime.data_types import Batch, StepResult
from forgedsl_runtime.endpoints import RewardError, Score, SyncResult
from forgedsl_runtime.rewards.requests import FIELDS, Requests

Record = dict[str, Any]


class Meter:
    """Counters and clocks of the current iteration; `end_iteration` starts the next one.
    Completions are made inside `with meter`, which measures the idle time of samplers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.running = 0
        """completions in progress"""
        self.progress = 0
        """grows whenever the run makes progress"""
        self.trainer_idle_s = 0.0
        self.groups_dropped: Counter[str] = Counter()
        self.rollouts_dropped = 0
        self.rows_dropped = 0
        """unusable dataset rows that were skipped, counted again in every epoch"""
        self.scores_failed: Counter[str] = Counter()
        self.scores_retried: Counter[str] = Counter()
        self.requests: dict[str, Requests] = {}
        self.reward_s: dict[str, float] = {}
        self._synced: dict[str, tuple[int, float]] = {}
        self._changed: dict[str, float] = {}
        self._sampler_idle_s = 0.0
        self._idle_since: float | None = self._clock()
        self._turned = self._clock()

    def group_dropped(self, reason: str) -> None:
        self.groups_dropped[reason] += 1

    def count_score(self, score: Score | RewardError) -> None:
        """Count the failures, retries, requests and durations of the rewards of one rollout."""
        if score.failed:
            self.scores_failed.update(score.failed)
        if score.retried:
            self.scores_retried.update(score.retried)
        for name, sent in score.requests.items():
            self.requests.setdefault(name, Requests()).add(sent)
        for name, longest in score.seconds.items():
            self.reward_s[name] = max(longest, self.reward_s.get(name, 0.0))

    def count_sync(self, service: str, result: SyncResult) -> None:
        """Count a weight sync that reached all replicas of a service. Simulated syncs have no
        bytes."""
        if result.bytes and result.seconds:
            before, took = self._synced.get(service, (0, 0.0))
            self._synced[service] = before + result.bytes, took + result.seconds
        if result.changed is not None:
            self._changed[service] = result.changed

    def __enter__(self) -> None:
        """Start of a completion."""
        if self._idle_since is not None:
            self._sampler_idle_s += self._clock() - self._idle_since
            self._idle_since = None
        self.running += 1

    def __exit__(self, *error: object) -> None:
        self.running -= 1
        if self.running == 0:
            self._idle_since = self._clock()

    @contextmanager
    def measure_idle(self) -> Iterator[None]:
        """Measure a wait of the trainer."""
        start = self._clock()
        try:
            yield
        finally:
            self.trainer_idle_s += self._clock() - start

    def end_iteration(self) -> Record:
        """Return the times and drops of the iteration that ends now, and reset them."""
        now = self._clock()
        if self._idle_since is not None:
            self._sampler_idle_s += now - self._idle_since
            self._idle_since = now
        found: Record = {
            "step_s": now - self._turned,
            "trainer_idle_s": self.trainer_idle_s,
            "sampler_idle_s": self._sampler_idle_s,
            "groups_dropped": self.groups_dropped.total(),
            "rollouts_dropped": self.rollouts_dropped,
            "rows_dropped": self.rows_dropped,
            "scores_failed": self.scores_failed.total(),
        }
        found.update({f"dropped/{k}": n for k, n in sorted(self.groups_dropped.items())})
        found.update({f"failed/{k}": n for k, n in sorted(self.scores_failed.items())})
        found.update({f"retried/{k}": n for k, n in sorted(self.scores_retried.items())})
        for name, sent in sorted(self.requests.items()):
            found.update({f"requests_{what}/{name}": getattr(sent, what) for what in FIELDS})
        found.update({f"reward_s/{k}": s for k, s in sorted(self.reward_s.items())})
        for name, (size, seconds) in sorted(self._synced.items()):
            found[f"sync_bytes/{name}"], found[f"sync_s/{name}"] = size, seconds
            found[f"sync_bytes_per_s/{name}"] = size / seconds
        found.update({f"sync_changed/{k}": share for k, share in sorted(self._changed.items())})
        self._turned = now
        self.trainer_idle_s = self._sampler_idle_s = 0.0
        self.rollouts_dropped = self.rows_dropped = 0
        self.groups_dropped.clear()
        self.scores_failed.clear()
        self.scores_retried.clear()
        self.requests.clear()
        self.reward_s.clear()
        self._synced.clear()
        self._changed.clear()
        return found


def batch_record(
    batch: Batch, groups: Sequence[Sequence[float]], truncated: Sequence[bool]
) -> Record:
    """Return the metrics of a batch; `groups` are the scores of each group of completions."""
    samples = [*batch.samples, *(each for _, beside in batch.beside for each in beside)]
    lengths = [len(sample.token_ids) - sample.num_prompt for sample in samples]
    compared = [scores for scores in groups if len(scores) > 1]
    rows = sum(1 + len(sample.row_starts) for sample in samples)
    dead = sum(max(scores) - min(scores) < 1e-12 for scores in compared)
    return {
        "reward_mean": _mean(batch.rewards),
        "reward_std": statistics.pstdev(batch.rewards) if batch.rewards else None,
        "age_max": max(batch.ages, default=None),
        "age_mean": _mean(batch.ages),
        "groups": len(batch.groups),
        "sequences": len(samples),
        **({"rows": rows} if rows > len(samples) else {}),
        "response_tokens_mean": _mean(lengths),
        "truncated_fraction": _mean([float(cut) for cut in truncated]),
        "groups_dead": dead if compared else None,
        "dead_group_fraction": dead / len(compared) if compared else None,
    }


def replay_record(ages: Sequence[int], fresh: int) -> Record:
    """Return metrics of groups drawn from buffers: number, age, share of the step's groups."""
    return {
        "replay/groups": len(ages),
        "replay/age_mean": _mean(ages),
        "replay/age_max": max(ages, default=None),
        "replay/share": len(ages) / (len(ages) + fresh),
    }


def step_record(result: StepResult) -> Record:
    """Return the metrics of a step result; `entropy` is a field of its own."""
    reports = {f"loss/{k}": v for k, v in sorted(result.metrics.items()) if k != "entropy"}
    load, changed, peak = result.experts_load, result.routes_changed, result.peak_bytes
    return {
        "policy_version": result.version,
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "entropy": result.metrics.get("entropy"),
        "lr": result.lr,
        "tokens": result.tokens,
        "skipped": result.skipped,
        "kernel": result.kernel,
        **({} if load is None else {"experts_load": load}),
        **({} if changed is None else {"routes_changed": changed}),
        **({} if peak is None else {"trainer_peak_gib": round(peak / 2**30, 3)}),
        **reports,
        **result.gaps,
    }


def finite(record: Record) -> Record:
    """Replace non-finite numbers by None, since JSON has no such numbers."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
