"""Gap between trainer and sampler: absolute difference of their log-probs of the same tokens.

    batch --chosen--> a few samples of the youngest and the oldest age --trainer's log-probs-->
        gap/age_0, gap/age_0_max, gap/age_1, ...

At age 0 both have the same weights, so the gap comes from their kernels and dtypes alone. At higher
ages the change of the policy adds to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from forgedsl.runtime.data_types import Batch, Sample

FEW = 4
"""samples of an age that are compared in a step: some 3 % of a batch of 128, one forward pass"""
BEHAVIOR = "behavior"
Compared = Sequence[tuple[Sample, int]]
"""samples, and the age of each in policy versions"""


def chosen(batch: Batch) -> Compared:
    """Return samples of the youngest and of the oldest age of a batch."""
    by_age: dict[int, list[Sample]] = defaultdict(list)
    for sample, age in zip(batch.samples, batch.sample_ages, strict=False):
        if age is not None and BEHAVIOR in sample.token_fields and any(sample.mask):
            by_age[age].append(sample)
    ages = sorted({min(by_age), max(by_age)}) if by_age else []
    return [(sample, age) for age in ages for sample in _spread(by_age[age])]


def gaps(compared: Compared, logprobs: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return metrics: mean and largest distance over the sampled tokens of each age."""
    by_age: dict[int, list[float]] = defaultdict(list)
    for (sample, age), trained in zip(compared, logprobs, strict=True):
        rows = zip(trained, sample.token_fields[BEHAVIOR], sample.mask, strict=True)
        by_age[age] += [abs(new - old) for new, old, on in rows if on]
    found: dict[str, float] = {}
    for age, distances in sorted(by_age.items()):
        found[f"gap/age_{age}"] = sum(distances) / len(distances)
        found[f"gap/age_{age}_max"] = max(distances)
    return found


def _spread(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return at most FEW samples, evenly spaced."""
    step = max(1, len(samples) // FEW)
    return samples[::step][:FEW]
