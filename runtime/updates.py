"""The updates of one optimizer step: several passes over a batch, each in several minibatches.

    Batch --parts--> samples of each update --trainer--> StepResult each --summary--> one StepResult

Groups stay whole: their advantages compare siblings. Every pass deals them anew, in an order by the
batch's seed and the pass; a single update takes the batch as it is. A batch that has lost groups on
its way may give parts that differ by a group, and no empty ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from forgedsl.runtime.data_types import Batch, Sample, StepResult
from forgedsl.runtime.endpoints import seed_of
from forgedsl.schema.reports import LAST


def parts(batch: Batch) -> Iterator[Sequence[Sample]]:
    """The samples of each update, in the order of the batch."""
    updates = batch.epochs * batch.minibatches
    if updates == 1:
        yield batch.samples
        return
    number = 0
    for epoch in range(batch.epochs):
        for chosen in _dealt(batch, epoch):
            yield [_at(batch.samples[i], updates, number) for i in chosen]
            number += 1


def summary(results: Sequence[StepResult], batch: Batch, *, stopped: bool = False) -> StepResult:
    """What a step says of its updates: means, of each report of the loss also the last value.

    Updates left out for a loss that is no number do not count, unless one has `stopped` the run.
    """
    if len(results) == 1:
        return results[0]
    made = [result for result in results if not result.skipped]
    shown = results[-1:] if stopped or not made else made
    metrics = {name: _mean(r.metrics[name] for r in shown) for name in shown[0].metrics}
    last = {name + LAST: value for name, value in shown[-1].metrics.items()}
    return replace(
        shown[-1],
        version=results[-1].version,
        loss=_mean(result.loss for result in shown),
        grad_norm=_mean(result.grad_norm for result in shown),
        tokens=sum(result.tokens for result in results) // batch.epochs,
        metrics=metrics | last,
        skipped=len(made) < len(results),
    )


def _mean(values: Iterable[float]) -> float:
    """Of infinite numbers too, of which `fmean` may say nothing: a report may be infinite."""
    found = list(values)
    return fmean(found) if all(map(math.isfinite, found)) else sum(found)


def _dealt(batch: Batch, epoch: int) -> Iterator[list[int]]:
    """Samples of each minibatch of a pass."""
    members = batch.members or [0] * len(batch.samples)
    groups = list(dict.fromkeys(members))
    random.Random(seed_of(batch.seed, epoch)).shuffle(groups)
    count = min(batch.minibatches, len(groups))
    place = {group: at * count // len(groups) for at, group in enumerate(groups)}
    for part in range(count):
        yield [i for i, group in enumerate(members) if place[group] == part]


def _at(sample: Sample, updates: int, number: int) -> Sample:
    """The sample as it counts updates: `num_steps` of a batch counts steps."""
    fields = dict(sample.sequence_fields)
    if "num_steps" in fields:
        fields["num_steps"] = updates * fields["num_steps"] + number
    return replace(sample, sequence_fields=fields)
