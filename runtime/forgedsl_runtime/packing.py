"""Samples of one optimizer step -> packed microbatches for one data-parallel rank.

    rows   samples --first-fit--> rows of seq_len tokens --deal--> ranks --cut--> microbatches
    flat   samples --longest first, to the emptiest--> microbatches of rows * seq_len tokens

`flat` concatenates all sequences of a microbatch in one row, for variable-length attention (GPUs).
`rows` keeps short rows, for masked attention. Every rank gets the same number of microbatches
(collectives must match), so short ranks get empty ones; flat microbatches are balanced by tokens,
as far as whole sequences allow. `positions` restart at 0 for each sequence, and `bounds` has the
index at which each begins. Only positions that predict a token with `mask` set are scored: `index`
selects their hidden states, so that no other logits are computed. The rows of a trajectory
(`row_starts`) are one sequence, each with positions and bounds of its own. The two sides of a
preference pair always share a microbatch. Shapes: R rows, L tokens, D segments of tokens that
attend to each other (sequences, rows of trajectories, and padding of rows), N scored tokens, B
sequences of the microbatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forgedsl_runtime.data_types import Sample
from forgedsl_runtime.routes import missing_route

FLAT_STEP = 128
"""a flat row is padded to a multiple of this"""
LANES, FINE = 16, 4
"""with `batch_invariant`, the width of a row is rounded up to a multiple of LANES; for a long row
the step is larger: the next power of two, divided by 2^FINE = 16. So there are few distinct widths
and little padding"""


@dataclass(slots=True, kw_only=True)
class Microbatch:
    """Input of one forward and backward pass on one rank."""

    tokens: Tensor  # int64 [R, L]
    positions: Tensor  # int64 [R, L]
    bounds: Tensor  # int32 [D + 1], where segments begin in R * L, and R * L
    longest: int  # tokens of the longest segment; in padded rows rounded up to a power of two
    index: Tensor  # int64 [N], into R * L
    labels: Tensor  # int64 [N]
    seq_id: Tensor  # int64 [N], 0 .. B-1, non-decreasing
    inputs: dict[str, Tensor]  # token fields f32 [N], sequence fields f32 [B]
    members: list[int]  # indices of the B samples in the step's list
    num_tokens: int  # real tokens in the rows
    of_tokens: tuple[str, ...]  # which of the inputs are token fields
    routes: Tensor | None = None
    """int16 [R, L, layers, active], the experts to choose for each token; -1 where the router
    chooses. None: it chooses for all"""
    exchange: Callable[[Tensor], Tensor] | None = None
    """sends the hidden states at `index` to the ranks that compute their loss (context
    parallelism)"""

    def to(self, device: torch.device) -> Microbatch:
        """Return the microbatch with its tensors on `device`."""
        names = ("tokens", "positions", "bounds", "index", "labels", "seq_id")
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in names}
        inputs = {k: v.to(device, non_blocking=True) for k, v in self.inputs.items()}
        if self.routes is not None:
            moved["routes"] = self.routes.to(device, non_blocking=True)
        return replace(self, inputs=inputs, **moved)

    def mask(self) -> Tensor:
        """Return bool [R, 1, L, L]: True where a query may attend."""
        rows = self.tokens.shape[0]
        length = int(self.bounds[-1]) // rows
        segment = torch.searchsorted(
            self.bounds[1:].long(), torch.arange(rows * length, device=self.bounds.device),
            right=True,
        ).view(rows, length)  # fmt: skip
        causal = torch.ones(length, length, dtype=torch.bool, device=self.tokens.device).tril()
        return ((segment[:, :, None] == segment[:, None, :]) & causal)[:, None]


def pack(
    samples: Sequence[Sample],
    *,
    seq_len: int,
    rows: int,
    rank: int,
    world: int,
    pairs: bool = False,
    flat: bool = False,
    share: bool = True,
    batch_invariant: bool = False,
    parts: int = 1,
    same_shape: bool = False,
) -> list[Microbatch]:
    """Return this rank's microbatches. Each has at most `rows` rows of `seq_len` tokens; with
    `flat` it has one row of at most `rows * seq_len` tokens. With `share`, samples share rows;
    otherwise each has its own row. Row lengths are multiples of `parts`. With `pairs`, samples 2p
    and 2p + 1 are in the same microbatch, as sequences 2q and 2q + 1. With `batch_invariant`, the
    results of a sample on a CPU are bitwise independent of the other samples: it has its own row,
    and all rows of its microbatch have the same width. With `same_shape`, the microbatches that
    ranks compute at the same time have equal shapes, with empty rows where there are no samples.

    Raises:
        ValueError: a sample is longer than `seq_len`, or a pair needs more than `rows` rows.
    """
    for sample in samples:
        if len(sample.token_ids) > seq_len:
            raise ValueError(
                f"a sequence of {len(sample.token_ids)} tokens does not fit "
                f"batch.seq_len = {seq_len}"
            )
    if batch_invariant and not (flat or pairs):
        step = lcm(LANES, parts)
        return _batch_invariant(samples, seq_len * rows, rank, world, step, same_shape)
    step = lcm(FLAT_STEP, parts) if flat else parts
    cuts = _cuts(samples, seq_len, rows, world, pairs=pairs, flat=flat, share=share)
    found = []
    for i, cut in enumerate(cuts[rank]):
        shapes = [_shape(samples, own[i], step) for own in cuts] if same_shape else []
        members = sorted(_flat(cut)) if pairs else _flat(cut)
        found.append(_microbatch(samples, cut, members, step, shapes))
    return found


def _cuts(
    samples: Sequence[Sample], seq_len: int, rows: int, world: int, *, pairs: bool, flat: bool,
    share: bool,
) -> list[list[list[list[int]]]]:  # fmt: skip
    """Return the rows of each microbatch of each rank, as samples of a row. Every rank has equally
    many microbatches."""
    if flat:
        most = len(samples) if share else rows
        shares = _balanced(samples, rows * seq_len, world, 2 if pairs else 1, most)
        return [[[own] for own in shares[r::world]] for r in range(world)]
    if pairs:
        mine = [range(r, len(samples) // 2, world) for r in range(world)]
        cuts = [_paired(samples, own, seq_len, rows, share) for own in mine]
        count = max(map(len, cuts))
        return [own + [[]] * (count - len(own)) for own in cuts]
    bins = _first_fit(samples, range(len(samples)), seq_len, share)
    return [_divided(bins[r::world], -(-len(bins) // world), rows) for r in range(world)]


def _divided(own: list[list[int]], per_rank: int, rows: int) -> list[list[list[int]]]:
    """Return the rows of a rank in microbatches of at most `rows`. `per_rank`: rows of the rank
    with the most, so that every rank has as many microbatches."""
    count = max(1, -(-per_rank // rows))
    size = -(-per_rank // count)
    return [own[i * size : (i + 1) * size] for i in range(count)]


def _batch_invariant(
    samples: Sequence[Sample], budget: int, rank: int, world: int, step: int, same_shape: bool
) -> list[Microbatch]:
    """Return microbatches of rows of one width. The width depends only on a sample's own length,
    because the number of keys changes the order of summation in attention."""
    widths: dict[int, list[int]] = {}
    for i, sample in enumerate(samples):
        length = max(len(sample.token_ids), 1)
        width = _up(length, lcm(step, 1 << max(length.bit_length() - FINE, 0)))
        widths.setdefault(width, []).append(i)
    found = []
    for width, members in sorted(widths.items() or [(step, [])]):
        most = max(budget // width, 1) * world
        for at in range(0, max(len(members), 1), most):
            these = members[at : at + most]
            own = these[rank::world]
            shapes = [(-(-len(these) // world), width)] if same_shape else []
            found.append(_microbatch(samples, [[i] for i in own], own, width, shapes))
    return found


def _balanced(
    samples: Sequence[Sample], budget: int, world: int, together: int, most: int
) -> list[list[int]]:
    """Return the sample indices of each microbatch, for all ranks. Their number is the smallest
    multiple of `world` that the greedy fill allows; they are balanced by tokens, and each has at
    most `most` samples.

    Raises:
        ValueError: `together` samples (a pair) are longer than the `budget` of tokens, or more than
            `most`.
    """
    units = [list(range(i, i + together)) for i in range(0, len(samples), together)]
    lengths = [sum(len(samples[i].token_ids) for i in unit) for unit in units]
    if lengths and (max(lengths) > budget or together > most):
        raise ValueError(f"a pair of {max(lengths)} tokens needs 2 rows, but batch.rows = 1")
    count = max(1, -(-sum(lengths) // (budget * world)))
    order = sorted(range(len(units)), key=lambda u: -lengths[u])
    while True:
        filled = [0] * (count * world)
        shares: list[list[int]] = [[] for _ in filled]
        for u in order:
            room = [i for i in range(len(filled)) if len(shares[i]) + together <= most]
            least = min(room, key=filled.__getitem__, default=None)
            if least is None or filled[least] + lengths[u] > budget:
                break
            filled[least] += lengths[u]
            shares[least] += units[u]
        else:
            return [sorted(share) for share in shares]
        count += 1


def _paired(
    samples: Sequence[Sample], pairs: Sequence[int], seq_len: int, rows: int, share: bool
) -> list[list[list[int]]]:
    """Return the rows of each microbatch for these pairs: as many pairs as fit, in order."""
    cuts: list[list[list[int]]] = [[]]
    members: list[int] = []
    for pair in pairs:
        both = [2 * pair, 2 * pair + 1]
        bins = _first_fit(samples, [*members, *both], seq_len, share)
        if len(bins) > rows:
            members, bins = [], _first_fit(samples, both, seq_len, share)
            cuts.append([])
        if len(bins) > rows:
            tokens = sum(len(samples[i].token_ids) for i in both)
            raise ValueError(f"a pair of {tokens} tokens needs 2 rows, but batch.rows = 1")
        members += both
        cuts[-1] = bins
    return cuts


def _flat(bins: list[list[int]]) -> list[int]:
    return [i for row in bins for i in row]


def _first_fit(
    samples: Sequence[Sample], members: Sequence[int], seq_len: int, share: bool
) -> list[list[int]]:
    """Assign samples to rows: first fit, longest first, stable (packing is deterministic). Without
    `share`, each sample has its own row."""
    order = sorted(members, key=lambda i: -len(samples[i].token_ids))
    bins: list[list[int]] = []
    room: list[int] = []
    first_open = 0
    for i in order:
        length = len(samples[i].token_ids)
        while first_open < len(room) and room[first_open] < 2:
            first_open += 1
        for k in range(first_open, len(bins)):
            if room[k] >= length:
                bins[k].append(i)
                room[k] -= length
                break
        else:
            bins.append([i])
            room.append(seq_len - length if share else 0)
    return bins


def _up(length: int, step: int) -> int:
    return -(-length // step) * step


def _shape(samples: Sequence[Sample], bins: list[list[int]], step: int) -> tuple[int, int]:
    """Return the number of rows, and their length, padded to a multiple of `step`."""
    used = max((sum(len(samples[i].token_ids) for i in row) for row in bins), default=0)
    return max(len(bins), 1), max(_up(used, step), step)


def _microbatch(
    samples: Sequence[Sample],
    bins: list[list[int]],
    members: list[int],
    step: int = 1,
    shapes: Sequence[tuple[int, int]] = (),
) -> Microbatch:
    """Build a microbatch from the rows of `bins`, as large as the largest of `shapes` and padded to
    a multiple of `step`. Sequences are numbered as in `members`."""
    every = [_shape(samples, bins, step), *shapes]
    num_rows, length = (max(sizes) for sizes in zip(*every, strict=True))
    tokens = np.zeros(num_rows * length, dtype=np.int64)
    begins: dict[int, int] = {}
    bounds: list[int] = []
    for r in range(num_rows):
        start = r * length
        for i in bins[r] if r < len(bins) else ():
            begins[i] = start
            bounds += [start, *(start + at for at in samples[i].row_starts)]
            end = start + len(samples[i].token_ids)
            tokens[start:end] = samples[i].token_ids
            start = end
        if start < (r + 1) * length:
            bounds.append(start)
    edges = np.array([*bounds, num_rows * length])
    lengths = np.diff(edges)
    longest = int(lengths.max())
    return Microbatch(
        tokens=torch.from_numpy(tokens).view(num_rows, length),
        positions=torch.from_numpy(
            np.arange(len(tokens)) - np.repeat(edges[:-1], lengths)
        ).view(num_rows, length),
        bounds=torch.from_numpy(edges.astype(np.int32)),
        longest=longest if step == 1 else 1 << (longest - 1).bit_length(),
        **_scored_rows(samples, members, begins, tokens),
        members=members,
        num_tokens=sum(len(samples[i].token_ids) for i in members),
        routes=_routes(samples, begins, (num_rows, length)),
    )  # fmt: skip


def _routes(
    samples: Sequence[Sample], begins: dict[int, int], shape: tuple[int, int]
) -> Tensor | None:
    """Return the routes of all tokens of the rows; None if no sample has any."""
    given = {i: routes for i in begins if (routes := samples[i].routes) is not None}
    if not given:
        return None
    like = next(iter(given.values()))
    found = np.full((shape[0] * shape[1], *like.shape[1:]), -1, np.int16)
    for i, routes in given.items():
        here = routes.astype(np.int16)
        here[routes == missing_route(routes.dtype)] = -1
        found[begins[i] : begins[i] + len(here)] = here
    return torch.from_numpy(found).view(*shape, *like.shape[1:])


def _scored_rows(
    samples: Sequence[Sample],
    members: list[int],
    begins: dict[int, int],
    tokens: np.ndarray[Any, np.dtype[np.int64]],
) -> dict[str, Any]:
    """Return the loss inputs: index, labels and fields of the scored tokens of `members`."""
    chosen = [samples[i] for i in members]
    lengths = np.array([len(sample.mask) for sample in chosen], dtype=np.int64)
    firsts = np.cumsum(lengths) - lengths
    on = _joined([sample.mask for sample in chosen], np.dtype(np.bool_))
    for first, sample in zip(firsts, chosen, strict=True):
        if sample.num_prompt == 0:  # nothing predicts its first token
            on[first : first + min(1, len(sample.mask))] = False
    at = np.flatnonzero(on)
    seq_id = np.repeat(np.arange(len(chosen)), lengths)[at]
    names = chosen[0].token_fields if chosen else {}
    inputs = {}
    for name in names if len(at) else ():
        values = _joined([sample.token_fields[name] for sample in chosen], np.dtype(np.float32))
        if len(values) != len(on):
            raise ValueError(f"`{name}` has {len(values)} values for {len(on)} tokens")
        inputs[name] = values[at]
    inputs["last"] = np.diff(seq_id, append=-1) != 0
    starts = [begins[i] + sample.num_prompt for i, sample in zip(members, chosen, strict=True)]
    where = at + (np.array(starts, dtype=np.int64) - firsts)[seq_id]
    for name in samples[members[0]].sequence_fields if members else ():
        numbers = [samples[i].sequence_fields[name] for i in members]
        inputs[name] = np.array(numbers, dtype=np.float32)
    return {
        "of_tokens": (*names, "last"),
        "index": torch.from_numpy(where - 1),
        "labels": torch.from_numpy(tokens[where]),
        "seq_id": torch.from_numpy(seq_id),
        "inputs": {name: torch.from_numpy(values) for name, values in inputs.items()},
    }


def _joined(parts: Sequence[Sequence[Any]], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Concatenate lists to an array."""
    return np.concatenate([np.asarray(part, dtype) for part in parts or [()]])
