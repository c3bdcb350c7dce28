"""Samples of one optimizer step -> packed microbatches for one data-parallel rank.

    samples --first-fit--> rows of at most seq_len tokens --deal--> ranks --cut--> microbatches

Rows hold whole sequences; `positions` restart at 0 for each and the attention mask keeps them
apart. Every rank gets the same number of microbatches (collectives must match), so short ranks get
empty ones. Only positions that predict a token with `mask` set are scored: `index` selects their
hidden states, so that no row of the vocabulary is computed for nothing. The two sides of a
preference pair always share a microbatch. Shapes: R rows, L tokens, N scored tokens, B sequences
of the microbatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forgedsl.runtime.items import Sample


@dataclass(slots=True, kw_only=True)
class Microbatch:
    """One forward and backward of one rank."""

    tokens: Tensor  # int64 [R, L]
    positions: Tensor  # int64 [R, L]
    attention: Tensor  # bool [R, 1, L, L]
    index: Tensor  # int64 [N], into R * L
    labels: Tensor  # int64 [N]
    seq_id: Tensor  # int64 [N], 0 .. B-1, non-decreasing
    inputs: dict[str, Tensor]  # token fields f32 [N], sequence fields f32 [B]
    members: list[int]  # indices of the B samples in the step's list
    num_tokens: int  # real tokens in the rows

    def to(self, device: torch.device) -> Microbatch:
        """The same microbatch with its tensors on `device`."""
        moved = {
            name: getattr(self, name).to(device)
            for name in ("tokens", "positions", "attention", "index", "labels", "seq_id")
        }
        inputs = {name: value.to(device) for name, value in self.inputs.items()}
        return Microbatch(**moved, inputs=inputs, members=self.members, num_tokens=self.num_tokens)


def pack(
    samples: Sequence[Sample],
    *,
    seq_len: int,
    rows: int,
    rank: int,
    world: int,
    pairs: bool = False,
) -> list[Microbatch]:
    """This rank's microbatches, each of at most `rows` rows.

    With `pairs`, samples 2p and 2p + 1 are in the same microbatch, as its sequences 2q and 2q + 1.

    Raises:
        ValueError: a sample is longer than `seq_len`, or a pair needs more than `rows` rows.
    """
    if pairs:
        shares = [_paired(samples, range(r, len(samples) // 2, world), seq_len, rows)
                  for r in range(world)]  # fmt: skip
        mine = shares[rank] + [[]] * (max(map(len, shares)) - len(shares[rank]))
        return [_microbatch(samples, cut, sorted(_flat(cut)), seq_len) for cut in mine]
    bins = _first_fit(samples, range(len(samples)), seq_len)
    per_rank = -(-len(bins) // world)
    count = max(1, -(-per_rank // rows))
    own = bins[rank::world]
    size = -(-per_rank // count)
    cuts = [own[i * size : (i + 1) * size] for i in range(count)]
    return [_microbatch(samples, cut, _flat(cut), seq_len) for cut in cuts]


def _paired(
    samples: Sequence[Sample], pairs: Sequence[int], seq_len: int, rows: int
) -> list[list[list[int]]]:
    """The rows of each microbatch for these pairs: as many pairs as fit, in order."""
    cuts: list[list[list[int]]] = [[]]
    members: list[int] = []
    for pair in pairs:
        both = [2 * pair, 2 * pair + 1]
        bins = _first_fit(samples, [*members, *both], seq_len)
        if len(bins) > rows:
            members, bins = [], _first_fit(samples, both, seq_len)
            cuts.append([])
        if len(bins) > rows:
            raise ValueError(f"a pair needs {len(bins)} rows, batch.rows = {rows}")
        members += both
        cuts[-1] = bins
    return cuts


def scored_tokens(samples: Sequence[Sample]) -> int:
    """The global token denominator of the step: tokens with `mask` set that can be scored."""
    return sum(sum(_scored(sample)) for sample in samples)


def _scored(sample: Sample) -> list[bool]:
    """The mask, without the very first token of a row-less prompt (nothing predicts it)."""
    return [on and sample.num_prompt + t > 0 for t, on in enumerate(sample.mask)]


def _flat(bins: list[list[int]]) -> list[int]:
    return [i for row in bins for i in row]


def _first_fit(samples: Sequence[Sample], members: Sequence[int], seq_len: int) -> list[list[int]]:
    """Indices per row. Longest first; stable, so that packing is deterministic."""
    order = sorted(members, key=lambda i: -len(samples[i].token_ids))
    bins: list[list[int]] = []
    room: list[int] = []
    first_open = 0
    for i in order:
        length = len(samples[i].token_ids)
        if length > seq_len:
            raise ValueError(
                f"a sequence of {length} tokens does not fit batch.seq_len = {seq_len}"
            )
        while first_open < len(room) and room[first_open] < 2:
            first_open += 1
        for k in range(first_open, len(bins)):
            if room[k] >= length:
                bins[k].append(i)
                room[k] -= length
                break
        else:
            bins.append([i])
            room.append(seq_len - length)
    return bins


def _microbatch(
    samples: Sequence[Sample], bins: list[list[int]], members: list[int], seq_len: int
) -> Microbatch:
    """The rows of `bins`; their samples are numbered in the order of `members`."""
    length = max((sum(len(samples[i].token_ids) for i in row) for row in bins), default=1)
    num_rows = max(len(bins), 1)
    tokens = torch.zeros(num_rows, length, dtype=torch.int64)
    positions = torch.arange(length).repeat(num_rows, 1)
    document = torch.full((num_rows, length), -1, dtype=torch.int64)
    number = {i: n for n, i in enumerate(members)}
    begins: dict[int, int] = {}
    for r, row in enumerate(bins):
        start = 0
        for i in row:
            n = len(samples[i].token_ids)
            tokens[r, start : start + n] = torch.tensor(samples[i].token_ids)
            positions[r, start : start + n] = torch.arange(n)
            document[r, start : start + n] = number[i]
            begins[i] = r * length + start
            start += n
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    same = document[:, :, None] == document[:, None, :]
    return Microbatch(
        tokens=tokens,
        positions=positions,
        attention=(same & causal)[:, None],
        **_scored_rows(samples, members, begins),
        members=members,
        num_tokens=int((document >= 0).sum()),
    )


def _scored_rows(
    samples: Sequence[Sample], members: list[int], begins: dict[int, int]
) -> dict[str, Any]:
    """What the loss computes on: the tokens of `members` that carry loss, and their fields."""
    index: list[int] = []
    labels: list[int] = []
    seq_id: list[int] = []
    fields: dict[str, list[float]] = {}
    for number, i in enumerate(members):
        sample = samples[i]
        for t, on in enumerate(_scored(sample)):
            if on:
                at = sample.num_prompt + t
                index.append(begins[i] + at - 1)
                labels.append(sample.token_ids[at])
                seq_id.append(number)
                for name, values in sample.token_fields.items():
                    fields.setdefault(name, []).append(values[t])
    inputs = {name: torch.tensor(values, dtype=torch.float32) for name, values in fields.items()}
    for name in samples[members[0]].sequence_fields if members else ():
        inputs[name] = torch.tensor(
            [samples[i].sequence_fields[name] for i in members], dtype=torch.float32
        )
    return {
        "index": torch.tensor(index, dtype=torch.int64),
        "labels": torch.tensor(labels, dtype=torch.int64),
        "seq_id": torch.tensor(seq_id, dtype=torch.int64),
        "inputs": inputs,
    }
