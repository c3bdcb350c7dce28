"""Microbatches cut among ranks that share rows: every scored token once, by what its loss needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_packing import samples

from forgedsl import api
from forgedsl.diagnostics import Reporter
from forgedsl.lower.loss import lower_loss
from forgedsl_runtime import context_parallel
from forgedsl_runtime.context_parallel import Context, RowExchange, shard_microbatch
from forgedsl_runtime.data_types import Sample
from forgedsl_runtime.losses import LossFunction
from forgedsl_runtime.packing import pack

GROUP: Any = SimpleNamespace()


def cuts(micro: Any, size: int, **how: Any) -> list[Any]:
    return [
        shard_microbatch(micro, Context(rank=r, size=size, group=GROUP), **how) for r in range(size)
    ]


def delivered(parts: list[Any], rows: list[torch.Tensor], monkeypatch: Any) -> list[torch.Tensor]:
    """What each rank's exchange makes of the rows of all: an all-to-all in one process."""

    def exchange(mine: torch.Tensor, receives: list[int], sends: list[int], _: Any) -> torch.Tensor:
        pieces = [r.split(p.exchange.sends) for r, p in zip(rows, parts, strict=True)]
        assert [len(piece[rank]) for piece in pieces] == receives
        return torch.cat([piece[rank] for piece in pieces])

    monkeypatch.setattr(context_parallel, "all_to_all_single", exchange)
    found = []
    for rank, part in enumerate(parts):
        assert isinstance(part.exchange, RowExchange)
        found.append(part.exchange(rows[rank]))
    return found


@settings(max_examples=40, deadline=None)
@given(samples(), st.integers(1, 3), st.sampled_from([2, 3, 4]), st.booleans())
def test_tokens_stay_where_their_hidden_states_are(
    items: list[Sample], rows: int, size: int, flat: bool
) -> None:
    for micro in pack(items, seq_len=16, rows=rows, rank=0, world=1, flat=flat, parts=size):
        parts = cuts(micro, size)
        whole = torch.cat([part.tokens for part in parts], 1)
        assert whole.tolist() == micro.tokens.tolist()
        assert sum(part.num_tokens for part in parts) == micro.num_tokens
        assert all(part.mask().equal(micro.mask()) for part in parts)
        seen = sorted(
            (sequence, label, field)
            for part in parts
            for sequence, label, field in zip(
                part.seq_id.tolist(), part.labels.tolist(),
                part.inputs.get("behavior", torch.zeros(0)).tolist(), strict=True,
            )
        )  # fmt: skip
        fields = micro.inputs.get("behavior", torch.zeros(0)).tolist()
        ids, labels = micro.seq_id.tolist(), micro.labels.tolist()
        assert seen == sorted(zip(ids, labels, fields, strict=True))
        for part in parts:  # the position before a token predicts it
            found = part.tokens.flatten()[part.index]
            assert (part.labels - found).tolist() == [1] * len(found)


@settings(max_examples=40, deadline=None)
@given(samples(), st.sampled_from([2, 3, 4]), st.booleans(), st.booleans())
def test_whole_sequences_come_together(
    items: list[Sample], size: int, flat: bool, pairs: bool
) -> None:
    items = items[: len(items) // 2 * 2] if pairs else items
    step = 2 if pairs else 1
    with pytest.MonkeyPatch.context() as patch:
        for micro in pack(items, seq_len=32, rows=3, rank=0, world=1, flat=flat, pairs=pairs,
                          parts=size):  # fmt: skip
            parts = cuts(micro, size, whole=True, step=step)
            here = [part.tokens.flatten()[part.index] for part in parts]
            owners: dict[int, set[int]] = {}
            for rank, rows in enumerate(delivered(parts, here, patch)):
                assert (parts[rank].labels - rows).tolist() == [1] * len(rows)
                for sequence in parts[rank].seq_id.tolist():
                    owners.setdefault(sequence // step, set()).add(rank)
            assert all(len(ranks) == 1 for ranks in owners.values())
            assert sum(len(part.labels) for part in parts) == len(micro.labels)


@pytest.mark.parametrize(
    ("name", "couples"),
    [("dapo", False), ("sft", False), ("cispo", False), ("ppo_critic", False),
     ("grpo", True), ("gspo", True), ("gmpo", True), ("dpo", True), ("bradley_terry", True)],
)  # fmt: skip
def test_which_losses_need_whole_sequences(name: str, couples: bool) -> None:
    functions, sources = api.load_functions("std/rl")
    loss = lower_loss(functions[name], Reporter(), sources)
    assert loss is not None
    assert LossFunction.from_job(loss).couples is couples
