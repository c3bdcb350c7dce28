"""The losses of a step from recorded log-probs: value, reports, gradient to the log-probs.

samples + log-probs of each update --measure--> Measured, as the trainer reports it
batch + log-probs --Packed.measure(chosen)--> the same for some samples, such as those of one age
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from forgedsl.runtime.data_types import Batch, Sample
from forgedsl.runtime.losses import LossFunction
from forgedsl.runtime.packing import pack
from forgedsl.runtime.updates import members_by_update, samples_by_update

Traced = Sequence[Sequence[float] | None]
"""log-probs of the trained tokens of each sample"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """`gradient` is the L2 norm of the gradient of the loss with respect to the log-probs."""

    loss: float
    reports: Mapping[str, float]
    gradient: float


def measure(
    loss: LossFunction, batch: Batch, logprobs: Mapping[int, Traced]
) -> tuple[Measured, Packed] | None:
    """Return two results: the means over the updates of a step; and the whole batch, packed with
    the log-probs of the first epoch. Return None if a log-prob is not recorded. `logprobs` is by
    epoch."""
    updates = members_by_update(batch)
    if any(each is None for traced in logprobs.values() for each in traced):
        return None
    known = {epoch: [each or () for each in traced] for epoch, traced in logprobs.items()}
    whole = Packed(loss, batch.samples, known[0])
    if len(updates) == 1:
        return whole.measure(), whole
    found = []
    for number, (chosen, samples) in enumerate(zip(updates, samples_by_update(batch), strict=True)):
        epoch = number // (len(updates) // batch.epochs)
        found.append(Packed(loss, samples, [known[epoch][i] for i in chosen]).measure())
    means = Measured(
        loss=_mean([each.loss for each in found]),
        reports={name: _mean([each.reports[name] for each in found]) for name in found[0].reports},
        gradient=_mean([each.gradient for each in found]),
    )
    return means, whole


class Packed:
    """The trained tokens of samples, packed once, to compute a loss over all of them or some."""

    def __init__(
        self, loss: LossFunction, samples: Sequence[Sample], logprobs: Sequence[Sequence[float]]
    ) -> None:
        longest = max(len(sample.token_ids) for sample in samples)
        (micro,) = pack(
            samples, seq_len=longest, rows=len(samples), rank=0, world=1, pairs=loss.paired,
            share=False,
        )  # fmt: skip
        self._loss, self._micro = loss, micro
        self._place = {member: place for place, member in enumerate(micro.members)}
        self._inputs = {n: micro.inputs[n] for n in loss.input_names if n in micro.inputs}
        values = [value for i in micro.members for value in logprobs[i]]
        self._logprob = torch.tensor(values, dtype=torch.float32)

    def measure(self, chosen: Sequence[int] | None = None) -> Measured:
        """Return the loss of all samples, or of those at `chosen`, as one update."""
        labels, seq_id, logprob = self._micro.labels, self._micro.seq_id, self._logprob
        inputs = self._inputs
        if chosen is not None:
            places = torch.tensor(sorted(self._place[i] for i in chosen))
            number = torch.full((len(self._place),), -1)
            number[places] = torch.arange(len(places))
            kept = number[seq_id] >= 0
            inputs = {
                name: values[kept if name in self._micro.of_tokens else places]
                for name, values in inputs.items()
            }
            labels, logprob, seq_id = labels[kept], logprob[kept], number[seq_id[kept]]
        value, reports, gradient = self._loss.at_statistics(
            {"logprob": logprob}, labels=labels, seq_id=seq_id, **inputs
        )
        return Measured(
            loss=float(value), gradient=float(gradient["logprob"].double().norm()),
            reports={name: float(report) for name, report in reports.items()},
        )  # fmt: skip


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
