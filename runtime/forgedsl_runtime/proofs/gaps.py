"""Gap between trainer and sampler: absolute difference of their log-probs of the same tokens.

    batch --chosen--> a few samples of the youngest and the oldest age --trainer's log-probs-->
        gap/age_0, gap/age_0_max, gap/age_1, ...

At age 0 both have the same weights, so the gap comes from their kernels and dtypes alone. At higher
ages the change of the policy adds to it. The trainer's log-probs are those of the forward pass that
trains, where its loss keeps them; else a forward pass of the chosen samples computes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

from forgedsl_runtime.data_types import Batch, Sample

FEW = 4
"""samples of an age that are compared in a step: some 3 % of a batch of 128"""
BEHAVIOR = "behavior"


class Compared(NamedTuple):
    """A sample to compare: its index in the batch, and its age in policy versions."""

    at: int
    sample: Sample
    age: int


def chosen(batch: Batch) -> list[Compared]:
    """Return samples of the youngest and of the oldest age of a batch."""
    by_age: dict[int, list[Compared]] = defaultdict(list)
    for at, (sample, age) in enumerate(zip(batch.samples, batch.sample_ages, strict=False)):
        if age is not None and BEHAVIOR in sample.token_fields and any(scored(sample)):
            by_age[age].append(Compared(at, sample, age))
    ages = sorted({min(by_age), max(by_age)}) if by_age else []
    return [each for age in ages for each in _spread(by_age[age])]


def scored(sample: Sample) -> list[bool]:
    """Return which tokens of the completion a loss scores: those of the mask, without a first token
    that nothing predicts."""
    predicted = sample.num_prompt > 0
    return [on and (predicted or i > 0) for i, on in enumerate(sample.mask)]


def gaps(compared: Sequence[Compared], logprobs: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return metrics: mean and largest distance over the scored tokens of each age. `logprobs` are
    the trainer's, of the scored tokens of each sample."""
    by_age: dict[int, list[float]] = defaultdict(list)
    for (_, sample, age), trained in zip(compared, logprobs, strict=True):
        sampled = compress(sample.token_fields[BEHAVIOR], scored(sample))
        by_age[age] += [abs(new - old) for new, old in zip(trained, sampled, strict=True)]
    found: dict[str, float] = {}
    for age, distances in sorted(by_age.items()):
        found[f"gap/age_{age}"] = sum(distances) / len(distances)
        found[f"gap/age_{age}_max"] = max(distances)
    return found


def _spread(samples: Sequence[Compared]) -> Sequence[Compared]:
    """Return at most FEW samples, evenly spaced."""
    step = max(1, len(samples) // FEW)
    return samples[::step][:FEW]
