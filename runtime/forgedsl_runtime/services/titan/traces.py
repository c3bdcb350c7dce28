"""Log-probs of a step: from microbatches to samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from forgedsl_runtime.data_types import Sample
from forgedsl_runtime.packing import Microbatch


def complete_traces(
    found: Sequence[Mapping[int, list[float]]], terms: Sequence[Sequence[Sample]]
) -> list[list[list[list[float]]]]:
    """Return a list with the log-probs of all samples of an update as its only item, or an empty
    list if those of a sample are missing."""
    if not found or any(len(f) < len(t) for f, t in zip(found, terms, strict=True)):
        return []
    return [[[f[i] for i in range(len(t))] for f, t in zip(found, terms, strict=True)]]


def logprobs_by_sample(passes: Sequence[tuple[Microbatch, Tensor]]) -> dict[int, list[float]]:
    """Return the log-probs of the tokens of each sample."""
    found: dict[int, list[float]] = {i: [] for micro, _ in passes for i in micro.members}
    for micro, logprob in passes:
        for sequence, value in zip(micro.seq_id.tolist(), logprob.tolist(), strict=True):
            found[micro.members[sequence]].append(value)
    return found
