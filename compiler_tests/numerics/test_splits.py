"""However a batch is cut into ranks and microbatches, ordered and padded, the step is the same.

A split is drawn at random: sequences (pairs stay together) are dealt to ranks in any order, each
rank's share is cut into microbatches, packed, or padded on either side. Losses, gradients and
metrics of all microbatches add up to those of the whole batch; ranks only exchange the counts.
"""

from __future__ import annotations

import os
import random

import pytest
import torch
from tolerance import EXACT

import forgedsl

DEEP = os.environ.get("FORGE_DEEP") == "1"
SPLITS = 200 if DEEP else 4
LENGTHS = (5, 3, 6, 4, 1, 2, 7, 3)
OWN_COUNTS = """
loss own(
  logprob: diff [B, T] f32, entropy: diff [B, T] f32, learn: [B, T] bool, adv: [B] f32,
  mask: [B, T] bool,
) {
  w = adv - batch_mean(adv, mask) - 0.5 * batch_mean(adv)
  minimize token_mean(-w * logprob - 0.1 * entropy, mask and learn)
  report part = token_mean(w * entropy, mask and learn)
}
"""


def deal(rng, num_sequences, paired):
    """Ranks of microbatches of sequence numbers."""
    units = [[2 * p, 2 * p + 1] for p in range(num_sequences // 2)] if paired else [
        [s] for s in range(num_sequences)
    ]  # fmt: skip
    rng.shuffle(units)
    ranks = [[[]] for _ in range(rng.randint(1, 3))]
    for unit in units:
        share = rng.choice(ranks)
        if share[-1] and rng.random() < 0.5:
            share.append([])
        share[-1].extend(unit)
    return ranks


def packed(case, sequences):
    """The rows of these sequences, one after the other."""
    rows = torch.cat([(case.seq_id == s).nonzero().squeeze(1) for s in sequences])
    numbers = torch.cat([
        torch.full((LENGTHS[s],), place) for place, s in enumerate(sequences)
    ])  # fmt: skip
    call = {"labels": case.labels[rows], "mask": case.mask[rows], "seq_id": numbers}
    return rows, call


def padded(case, sequences, rng):
    """The same as `[B, T]`, filled up on either side."""
    width = max(LENGTHS[s] for s in sequences) + rng.randint(0, 2)
    rows, call = packed(case, sequences)
    left = rng.random() < 0.5
    places = []
    for line, s in enumerate(sequences):
        first = line * width + (width - LENGTHS[s] if left else 0)
        places.append(torch.arange(first, first + LENGTHS[s]))
    place = torch.cat(places)
    size = (len(sequences), width)

    def fill(value, empty):
        out = value.new_full((size[0] * size[1], *value.shape[1:]), empty)
        return out.index_copy(0, place, value).view(*size, *value.shape[1:])

    return rows, {"labels": fill(call["labels"], -100), "mask": fill(call["mask"], False)}, fill


def microbatch(case, sequences, rng):
    """Arguments of a call for these sequences, in a random form."""
    if rng.random() < 0.5:
        rows, call = packed(case, sequences)
        shape = lambda value, empty: value  # noqa: E731
    else:
        rows, call, shape = padded(case, sequences, rng)
    for name, value in case.inputs.items():
        over_tokens = value.shape == case.mask.shape
        empty = False if value.dtype == torch.bool else torch.nan
        call[name] = shape(value[rows], empty) if over_tokens else value[sequences]
    return shape(case.hidden[rows], torch.nan), call


@pytest.mark.cover
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("name", ["sft_smoothed", "grpo_entropy", "dr_grpo", "gspo", "dpo", "own"])
def test_any_split_is_the_same_step(losses, monkeypatch, name, backend):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    loss = forgedsl.compile_loss(OWN_COUNTS) if name == "own" else losses.standard(name)
    loss = loss.using(backend)
    case = losses.make_case(loss, lengths=LENGTHS, noise=1e-4 if name == "gspo" else 0.3, seed=3)
    if "learn" in case.inputs:
        case.inputs["learn"] = case.inputs["learn"] > case.inputs["learn"].median()
    whole = loss.linear(hidden=case.hidden, weight=case.weight, **case.batch, **case.inputs)
    want = losses.gradients(whole.loss, case)
    for split in range(SPLITS):
        rng = random.Random(split)
        ranks = [
            [microbatch(case, sequences, rng) for sequences in share if sequences]
            for share in deal(rng, len(LENGTHS), loss.paired)
        ]
        counts = [loss.totals(**call) for share in ranks for _, call in share]
        totals = {key: sum(count[key].double() for count in counts) for key in counts[0]}
        chunk = rng.choice([None, 3, 8])
        outs = [
            loss.linear(hidden=hidden, weight=case.weight, totals=totals, chunk_rows=chunk, **call)
            for share in ranks
            for hidden, call in share
        ]
        value = torch.stack([out.loss for out in outs]).sum()
        torch.testing.assert_close(value, whole.loss, **EXACT)
        torch.testing.assert_close(losses.gradients(value, case), want, **EXACT)
        for key, metric in whole.metrics.items():
            total = torch.stack([out.metrics[key] for out in outs]).sum()
            torch.testing.assert_close(total, metric, **EXACT)
