"""Packing: every scored token appears once, with its own fields, whatever the split."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forgedsl.runtime.items import Sample
from forgedsl.runtime.packing import LANES, pack


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


def attended(items: list[Sample], of: int) -> torch.Tensor:
    """What attention makes of a sample among the others of its microbatch."""
    (micro,) = pack(items, seq_len=128, rows=8, rank=0, world=1, step=LANES)
    table = torch.randn(200, 2, 3, 32, generator=torch.Generator().manual_seed(3))
    q, k, v = table[micro.tokens + micro.positions].permute(3, 0, 2, 1, 4)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=micro.mask())
    at = micro.index[micro.seq_id == micro.members.index(of)]
    return out.transpose(1, 2).flatten(0, 1)[at]


def test_who_shares_a_row_changes_no_bit_where_sequences_begin_at_lanes() -> None:
    first, *others = [
        Sample(token_ids=list(range(length)), num_prompt=1, mask=[True] * (length - 1))
        for length in (45, 50, 61, 70, 47)
    ]
    alone = attended([first], 0)
    for count in (1, 2, 3, 4):
        assert attended([*others[:count], first], count).equal(alone)


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
    with pytest.raises(ValueError, match=r"a pair needs 2 rows, batch.rows = 1"):
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
