"""The losses of a step from recorded log-probs: value, reports, gradient to the log-probs.

samples + log-probs of each update --measure--> Measured, as the trainer reports it
batch + log-probs --Packed.reports(chosen)--> the reports for some samples, such as those of one age
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, zip_longest

import torch

from forgedsl_runtime.data_types import Batch, Sample
from forgedsl_runtime.losses import LossFunction
from forgedsl_runtime.packing import Microbatch, pack
from forgedsl_runtime.updates import members_by_update, samples_by_update

Traced = Sequence[Sequence[float] | None]
"""log-probs of the trained tokens of each sample"""
F32 = torch.float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """`gradient` is the L2 norm of the gradient of the loss with respect to the log-probs."""

    loss: float
    reports: Mapping[str, float]
    gradient: float


def measure(
    loss: LossFunction,
    batch: Batch,
    logprobs: Mapping[int, Traced],
    like: Sequence[Packed] = (),
) -> tuple[Measured, list[Packed]] | None:
    """Return the means over the updates of a step, and the packed tokens: first those of the whole
    batch, with the log-probs of the first epoch, then those of each update if there are several.
    Return None if a log-prob is not recorded. `logprobs` is by epoch. `like` is what another job
    has packed of the same step."""
    updates = members_by_update(batch)
    if any(each is None for traced in logprobs.values() for each in traced):
        return None
    known = {epoch: [each or () for each in traced] for epoch, traced in logprobs.items()}
    parts: list[tuple[Sequence[Sample], list[Sequence[float]]]] = [(batch.samples, known[0])]
    if len(updates) > 1:
        by_epoch = len(updates) // batch.epochs
        for number, samples in enumerate(samples_by_update(batch)):
            values = known[number // by_epoch]
            parts.append((samples, [values[i] for i in updates[number]]))
    packed = [
        Packed(loss, samples, values, other)
        for (samples, values), other in zip_longest(parts, like[: len(parts)])
    ]
    found = [each.measured for each in packed[1:] or packed]
    if len(found) == 1:
        return found[0], packed
    means = Measured(
        loss=_mean([each.loss for each in found]),
        reports={name: _mean([each.reports[name] for each in found]) for name in found[0].reports},
        gradient=_mean([each.gradient for each in found]),
    )
    return means, packed


class Packed:
    """The trained tokens of samples, packed once, to compute a loss over all of them or some.
    `like` are tokens that were packed before: they are used again if these samples have the same
    tokens and differ only in what is one number for a sequence, such as the advantage."""

    def __init__(
        self, loss: LossFunction, samples: Sequence[Sample], logprobs: Sequence[Sequence[float]],
        like: Packed | None = None,
    ) -> None:  # fmt: skip
        self._loss, self._samples, self._logprobs = loss, samples, logprobs
        self._logprob: torch.Tensor
        if like is not None and self._has_tokens_of(like):
            micro, self._logprob = _with_sequence_fields(like._micro, samples), like._logprob
        else:
            longest = max(len(sample.token_ids) for sample in samples)
            (micro,) = pack(
                samples, seq_len=longest, rows=len(samples), rank=0, world=1, pairs=loss.paired,
                share=False,
            )  # fmt: skip
            values = [*chain.from_iterable(logprobs[i] for i in micro.members)]
            self._logprob = torch.tensor(values, dtype=F32)
        self._micro: Microbatch = micro
        self._place = {member: place for place, member in enumerate(micro.members)}
        self._inputs = {n: micro.inputs[n] for n in loss.input_names if n in micro.inputs}

    def _has_tokens_of(self, other: Packed) -> bool:
        return (
            self._loss.paired == other._loss.paired
            and list(self._logprobs) == list(other._logprobs)
            and len(self._samples) == len(other._samples)
            and all(
                mine.token_ids == its.token_ids
                and mine.num_prompt == its.num_prompt
                and mine.mask == its.mask
                and mine.token_fields == its.token_fields
                and mine.sequence_fields.keys() == its.sequence_fields.keys()
                for mine, its in zip(self._samples, other._samples, strict=True)
            )
        )

    @cached_property
    def measured(self) -> Measured:
        """The loss of all samples, as one update."""
        value, reports, gradient = self._loss.at_statistics(
            {"logprob": self._logprob}, labels=self._micro.labels, seq_id=self._micro.seq_id,
            **self._inputs,
        )  # fmt: skip
        return Measured(
            loss=float(value), gradient=float(gradient["logprob"].double().norm()),
            reports={name: float(report) for name, report in reports.items()},
        )  # fmt: skip

    def reports(self, chosen: Sequence[int]) -> Mapping[str, float]:
        """Return the reports of the samples at `chosen`, as of one update."""
        if len(chosen) == len(self._place):
            return self.measured.reports
        places = torch.tensor(sorted(self._place[i] for i in chosen))
        number = torch.full((len(self._place),), -1)
        number[places] = torch.arange(len(places))
        renumbered = number[self._micro.seq_id]
        index = (renumbered >= 0).nonzero().squeeze(1)
        reports = self._loss.reports_at_statistics(
            {"logprob": self._logprob[index]}, labels=self._micro.labels[index],
            seq_id=renumbered[index],
            **{
                name: values[index if name in self._micro.of_tokens else places]
                for name, values in self._inputs.items()
            },
        )  # fmt: skip
        return {name: float(report) for name, report in reports.items()}


def _with_sequence_fields(micro: Microbatch, samples: Sequence[Sample]) -> Microbatch:
    """Return a microbatch of the same tokens with the sequence fields of `samples`."""
    names = samples[micro.members[0]].sequence_fields
    fields = {
        name: torch.tensor([samples[i].sequence_fields[name] for i in micro.members], dtype=F32)
        for name in names
    }
    return replace(micro, inputs={**micro.inputs, **fields})


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
