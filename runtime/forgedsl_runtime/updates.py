"""The updates of one optimizer step: several passes over a batch, each in several minibatches.

    Batch --samples_by_update--> samples of each update --trainer--> a StepResult for each
          --combine_results--> one StepResult

Groups stay whole, because their advantages compare siblings. Every pass shuffles the groups by the
batch's seed and the pass; a single update takes the batch as it is. If groups were dropped,
minibatches may differ by one group; none is empty.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from forgedsl.schema.reports import LAST
from forgedsl_runtime.data_types import Batch, Sample, StepResult
from forgedsl_runtime.endpoints import seed_of


def samples_by_update(batch: Batch) -> Iterator[Sequence[Sample]]:
    """Yield the samples of each update."""
    updates = batch.epochs * batch.minibatches
    if updates == 1:
        yield batch.samples
        return
    for number, chosen in enumerate(members_by_update(batch)):
        yield [_with_num_steps(batch.samples[i], updates, number) for i in chosen]


def members_by_update(batch: Batch) -> list[list[int]]:
    """Return the sample indices of each update."""
    if batch.epochs * batch.minibatches == 1:
        return [list(range(len(batch.samples)))]
    return [chosen for epoch in range(batch.epochs) for chosen in _minibatches(batch, epoch)]


def combine_results(
    results: Sequence[StepResult], batch: Batch, *, stopped: bool = False
) -> StepResult:
    """Combine the results of the updates of a step: means, and for each report of the loss also the
    last value. Skipped updates (non-finite loss or gradient) do not count. `stopped`: the last
    update ends the run; only its result is returned."""
    if len(results) == 1:
        return results[0]
    made = [result for result in results if not result.skipped]
    shown = results[-1:] if stopped or not made else made
    metrics = {name: _mean(r.metrics[name] for r in shown) for name in shown[0].metrics}
    loads = [r.experts_load for r in shown if r.experts_load is not None]
    shares = [r.routes_changed for r in shown if r.routes_changed is not None]
    last = {name + LAST: value for name, value in shown[-1].metrics.items()}
    return replace(
        shown[-1],
        version=results[-1].version,
        loss=_mean(result.loss for result in shown),
        grad_norm=_mean(result.grad_norm for result in shown),
        tokens=sum(result.tokens for result in results) // batch.epochs,
        metrics=metrics | last,
        experts_load=_mean(loads) if loads else None,
        routes_changed=_mean(shares) if shares else None,
        skipped=len(made) < len(results),
    )


def _mean(values: Iterable[float]) -> float:
    """Return the mean. A report may be infinite, and `fmean` may raise on infinite numbers."""
    found = list(values)
    return fmean(found) if all(map(math.isfinite, found)) else sum(found)


def _minibatches(batch: Batch, epoch: int) -> Iterator[list[int]]:
    """Yield the sample indices of each minibatch of a pass."""
    members = batch.members or [0] * len(batch.samples)
    groups = list(dict.fromkeys(members))
    random.Random(seed_of(batch.seed, epoch)).shuffle(groups)
    count = min(batch.minibatches, len(groups))
    place = {group: at * count // len(groups) for at, group in enumerate(groups)}
    for part in range(count):
        yield [i for i, group in enumerate(members) if place[group] == part]


def _with_num_steps(sample: Sample, updates: int, number: int) -> Sample:
    """Set `num_steps` of a sample to the number of optimizer updates so far. The batch holds the
    number of steps; a step makes `updates` updates."""
    fields = dict(sample.sequence_fields)
    if "num_steps" in fields:
        fields["num_steps"] = updates * fields["num_steps"] + number
    return replace(sample, sequence_fields=fields)
