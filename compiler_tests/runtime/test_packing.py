"""Packing: every scored token appears once, with its own fields, whatever the split."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear, scaled_dot_product_attention

from forgedsl_runtime.data_types import Sample
from forgedsl_runtime.losses import token_logprobs
from forgedsl_runtime.packing import LANES, pack


@st.composite
def samples(draw: st.DrawFn) -> list[Sample]:
    made = []
    for i in range(draw(st.integers(0, 12))):
        num_prompt = draw(st.integers(0, 6))
        length = draw(st.integers(1, 10))
        made.append(
            Sample(
                token_ids=[100 * i + k for k in range(num_prompt + length)],
                num_prompt=num_prompt,
                mask=draw(st.lists(st.booleans(), min_size=length, max_size=length)),
                token_fields={"behavior": [float(100 * i + k) for k in range(length)]},
                sequence_fields={"adv": float(i)},
            )
        )
    return made


@settings(max_examples=120, deadline=None)
@given(samples(), st.integers(1, 4), st.integers(1, 3), st.booleans(), st.booleans())
def test_each_scored_token_once(
    items: list[Sample], rows: int, world: int, flat: bool, share: bool
) -> None:
    seen = []
    counts = set()
    for rank in range(world):
        micros = pack(items, seq_len=16, rows=rows, rank=rank, world=world, flat=flat, share=share)
        counts.add(len(micros))
        for micro in micros:
            assert micro.tokens.shape[0] <= (1 if flat else rows)
            assert micro.num_tokens <= rows * 16
            assert share or len(micro.members) <= rows
            packed = micro.tokens.flatten()
            for at, label, seq in zip(
                micro.index.tolist(), micro.labels.tolist(), micro.seq_id.tolist(), strict=True
            ):
                sample = items[micro.members[seq]]
                t = sample.token_ids.index(label) - sample.num_prompt
                assert int(packed[at]) == sample.token_ids[sample.num_prompt + t - 1]
                assert float(micro.inputs["adv"][seq]) == sample.sequence_fields["adv"]
                seen.append((micro.members[seq], t))
            if len(micro.index):
                fields = micro.inputs["behavior"].tolist()
                offsets = [items[micro.members[s]].num_prompt for s in micro.seq_id.tolist()]
                starts = [items[micro.members[s]].token_ids[0] for s in micro.seq_id.tolist()]
                labels = micro.labels.tolist()
                assert fields == [
                    float(v - s - p + 100 * (s // 100))
                    for v, s, p in zip(labels, starts, offsets, strict=True)
                ]
    assert len(counts) == 1, "collectives need equally many microbatches on all ranks"
    wanted = [
        (i, t)
        for i, sample in enumerate(items)
        for t, on in enumerate(sample.mask)
        if on and sample.num_prompt + t > 0
    ]
    assert sorted(seen) == wanted


def test_sequences_do_not_see_each_other() -> None:
    items = [Sample(token_ids=[1, 2, 3], num_prompt=1, mask=[True, True]) for _ in range(2)]
    (micro,) = pack(items, seq_len=8, rows=1, rank=0, world=1)
    allowed = micro.mask()[0, 0]
    assert allowed[:3, :3].equal(allowed[3:6, 3:6])
    assert not allowed[3:6, :3].any()
    assert micro.positions[0].tolist()[:6] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("flat", [False, True])
def test_rows_of_a_trajectory_do_not_see_each_other_and_are_one_sequence(flat: bool) -> None:
    mask = [True, True, False, False, True]
    item = Sample(token_ids=[1, 2, 3, 1, 3, 4], num_prompt=1, mask=mask, row_starts=(3,))
    (micro,) = pack([item, item], seq_len=12, rows=1, rank=0, world=1, flat=flat)
    allowed = micro.mask()[0, 0]
    assert allowed[:3, :3].equal(allowed[3:6, 3:6])
    assert not allowed[3:6, :3].any()
    assert micro.positions[0].tolist()[:12] == [0, 1, 2] * 4
    assert micro.seq_id.tolist() == [0, 0, 0, 1, 1, 1]
    assert micro.labels.tolist() == [2, 3, 4] * 2


@settings(max_examples=80, deadline=None)
@given(samples(), st.integers(1, 4), st.integers(1, 3))
def test_rows_of_samples_that_are_computed_alike_are_as_wide_as_their_microbatch(
    items: list[Sample], rows: int, world: int
) -> None:
    shares = [
        pack(items, seq_len=32, rows=rows, rank=rank, world=world, batch_invariant=True)
        for rank in range(world)
    ]
    assert len({len(share) for share in shares}) == 1, "collectives need equally many on all ranks"
    for same in zip(*shares, strict=True):
        assert len({micro.tokens.shape[1] for micro in same}) == 1
    micros = [micro for share in shares for micro in share]
    assert sorted(i for micro in micros for i in micro.members) == list(range(len(items)))
    for micro in micros:
        width = micro.tokens.shape[1]
        assert width % LANES == 0
        assert micro.tokens.shape[0] <= max(rows * 32 // width, 1)
        for row, i in zip(micro.tokens.tolist(), micro.members, strict=False):
            assert row[: len(items[i].token_ids)] == items[i].token_ids
            assert width == -(-len(items[i].token_ids) // LANES) * LANES


def predicted(items: list[Sample], heads: int = 2, width: int = 32) -> list[list[float]]:
    """Log-probs of the completions, by a layer of attention and products of random matrices."""
    draw = torch.Generator().manual_seed(3)
    hidden = heads * width
    table = torch.randn(400, hidden, generator=draw)
    into = torch.randn(3 * hidden, hidden, generator=draw) / 8
    out, vocabulary = torch.randn(hidden, hidden, generator=draw) / 8, table[:48]
    found: list[list[float]] = [[] for _ in items]
    for micro in pack(items, seq_len=512, rows=8, rank=0, world=1, batch_invariant=True):
        shape = (*micro.tokens.shape, 3, heads, width)
        q, k, v = linear(table[micro.tokens + micro.positions], into).view(shape).unbind(2)
        mixed = scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=micro.mask()
        )
        rows = linear(mixed.transpose(1, 2).flatten(2), out).flatten(0, 1)[micro.index]
        numbers = token_logprobs(rows, vocabulary, micro.labels % 48).tolist()
        for seq, number in zip(micro.seq_id.tolist(), numbers, strict=True):
            found[micro.members[seq]].append(number)
    return found


def test_no_bit_of_a_log_prob_depends_on_what_it_is_asked_with() -> None:
    """Of rows whose sums over keys were alike, those of 208 tokens were not, and the last three of
    eleven of a product."""
    draw = random.Random(5)
    lengths = [draw.choice((6, 9, 11, 18, 19, 20, 31, 47, 90, 140, 300)) for _ in range(60)]
    items = [
        Sample(
            token_ids=[draw.randrange(48) for _ in range(length)],
            num_prompt=min(length // 2, 9),
            mask=[True] * (length - min(length // 2, 9)),
        )
        for length in lengths
    ]
    alone = [predicted([item])[0] for item in items]
    for _ in range(60):
        chosen = draw.sample(range(len(items)), draw.choice((2, 3, 5, 8, 16)))
        assert predicted([items[i] for i in chosen]) == [alone[i] for i in chosen]


def test_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match=r"9 tokens does not fit batch.seq_len = 8"):
        pack(
            [Sample(token_ids=[0] * 9, num_prompt=1, mask=[True] * 8)],
            seq_len=8,
            rows=1,
            rank=0,
            world=1,
        )


@settings(max_examples=80, deadline=None)
@given(samples(), st.integers(2, 4), st.integers(1, 3), st.booleans())
def test_both_sides_of_a_pair_share_a_microbatch(
    items: list[Sample], rows: int, world: int, flat: bool
) -> None:
    items = items[: len(items) // 2 * 2]
    shares = [
        pack(items, seq_len=16, rows=rows, rank=rank, world=world, pairs=True, flat=flat)
        for rank in range(world)
    ]
    assert len({len(share) for share in shares}) == 1
    micros = [micro for share in shares for micro in share]
    assert all(micro.tokens.shape[0] <= (1 if flat else rows) for micro in micros)
    pairs = [pair for m in micros for pair in zip(m.members[::2], m.members[1::2], strict=True)]
    assert sorted(pairs) == [(i, i + 1) for i in range(0, len(items), 2)]
    for micro in micros:
        labels = [items[micro.members[seq]].token_ids[0] // 100 for seq in micro.seq_id.tolist()]
        assert labels == [label // 100 for label in micro.labels.tolist()]
        assert micro.seq_id.tolist() == sorted(micro.seq_id.tolist())


def test_a_pair_that_fits_no_microbatch_is_refused() -> None:
    side = Sample(token_ids=[0] * 8, num_prompt=1, mask=[True] * 7)
    with pytest.raises(ValueError, match=r"a pair of 16 tokens needs 2 rows, but batch.rows = 1"):
        pack([side, side], seq_len=8, rows=1, rank=0, world=1, pairs=True)


@settings(max_examples=80, deadline=None)
@given(samples(), st.booleans())
def test_a_token_attends_to_its_own_sequence_up_to_itself(items: list[Sample], flat: bool) -> None:
    for micro in pack(items, seq_len=16, rows=3, rank=0, world=1, flat=flat):
        owner = {token: i for i, sample in enumerate(items) for token in sample.token_ids}
        lengths = micro.bounds.diff()
        assert int(lengths.max()) <= micro.longest
        assert int(lengths.sum()) == micro.tokens.numel()
        for tokens, positions, mask in zip(
            micro.tokens.tolist(), micro.positions.tolist(), micro.mask()[:, 0], strict=True
        ):
            for at, token in enumerate(tokens):
                seen = [tokens[k] for k in mask[at].nonzero().flatten().tolist()]
                if token > 0:  # 0 may be what fills a row up
                    assert {owner[other] for other in seen} == {owner[token]}
                    assert len(seen) == positions[at] + 1


def test_flat_shares_are_even() -> None:
    items = [Sample(token_ids=[1] * n, num_prompt=1, mask=[True] * (n - 1)) for n in range(2, 42)]
    shares = [pack(items, seq_len=64, rows=4, rank=rank, world=2, flat=True) for rank in range(2)]
    counts = [micro.num_tokens for share in shares for micro in share]
    assert max(counts) - min(counts) <= 2
