"""Tokens reach their experts and come back: results and gradients are those of the definition in
float64, on one rank and on several, also if a rank gets no tokens. Ranks have equal shapes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tolerance
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend

from forgedsl_runtime.data_types import Sample
from forgedsl_runtime.packing import Microbatch, pack
from forgedsl_runtime.services.titan.upstream.dispatch import local_order, order_by

PARTS = Path(__file__).parent / "dispatch_parts.py"
EXPERTS = 8


CASES = {
    1: {"one rank": (3, 7, False)},
    2: {
        "gathered": (3, 7, True),
        "gathered, none for the second rank": (3, 3, True),
        "sent one by one": (2, 7, False),
    },
    4: {"gathered by four": (5, 7, True), "sent one by one to four": (3, 7, False)},
}
"""by number of ranks, name of the case: experts of a token, the last expert that is chosen, and
whether all tokens are gathered"""


@cache
def measured(ranks: int, cases: tuple[tuple[int, int], ...], *, compiled: bool) -> Any:
    """What processes of so many ranks find in each case."""
    words = [f"{top_k},{last}" for top_k, last in cases]
    command = [sys.executable, str(PARTS), str(ranks), str(int(compiled)), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("RESULT")]
    return json.loads(line.removeprefix("RESULT"))


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        pytest.param(ranks, name, id=name, marks=[] if ranks == 2 else pytest.mark.full)
        for ranks, cases in CASES.items()
        for name in cases
    ],
)
def test_results_are_those_of_the_definition(ranks: int, name: str) -> None:
    cases = CASES[ranks]
    every = measured(ranks, tuple(case[:2] for case in cases.values()), compiled=False)
    found = dict(zip(cases, every, strict=True))[name]
    top_k, _, gathers = cases[name]
    assert found["gathers"] == gathers
    assert max(found["off"]) < tolerance.apart(torch.float32, 16 + top_k)


@pytest.mark.full
@pytest.mark.parametrize(("ranks", "last"), [(1, 7), (2, 7), (2, 3)])
def test_compiled_results_are_those_of_the_definition(ranks: int, last: int) -> None:
    (found,) = measured(ranks, ((3, last),), compiled=True)
    assert max(found["off"]) < tolerance.apart(torch.float32, 16 + 3)


@settings(deadline=None)
@given(
    ids=st.lists(st.permutations(range(EXPERTS)).map(lambda p: p[:3]), min_size=1, max_size=9),
    first=st.integers(0, EXPERTS - 1),
    count=st.integers(1, EXPERTS),
)
def test_rows_are_sorted_by_expert_and_each_pair_finds_its_row(
    ids: list[list[int]], first: int, count: int
) -> None:
    order, counts = local_order(torch.tensor(ids), first, count)
    flat = torch.tensor(ids).reshape(-1)
    here = range(first, first + count)
    assert counts.tolist() == [int((flat == expert).sum()) for expert in here]
    rows = order.pairs[:-1]
    assert flat[rows].tolist() == sorted(e for e in flat.tolist() if e in here)
    for pair, expert in enumerate(flat.tolist()):
        assert bool(order.mine[pair]) == (expert in here)  # type: ignore[index]
        if expert in here:
            assert int(rows[order.rows[pair]]) == pair
        else:
            assert int(order.rows[pair]) == len(rows)


def sample(length: int) -> Sample:
    return Sample(token_ids=[1] * length, num_prompt=1, mask=[True] * (length - 1))


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("batch_invariant", [True, False])
@pytest.mark.parametrize("pairs", [True, False])
@settings(deadline=None)
@given(lengths=st.lists(st.integers(2, 30), min_size=2, max_size=12), world=st.integers(1, 3))
def test_ranks_have_equal_shapes_and_all_samples(
    flat: bool, batch_invariant: bool, pairs: bool, lengths: list[int], world: int
) -> None:
    samples = [sample(length) for length in lengths[: len(lengths) // 2 * 2]]

    def of(rank: int) -> list[Microbatch]:
        return pack(
            samples, seq_len=30, rows=2, rank=rank, world=world, pairs=pairs, flat=flat,
            batch_invariant=batch_invariant, same_shape=True,
        )  # fmt: skip

    ranks = [of(rank) for rank in range(world)]
    for together in zip(*ranks, strict=True):
        assert len({micro.tokens.shape for micro in together}) == 1
    members = sorted(i for micros in ranks for micro in micros for i in micro.members)
    assert members == list(range(len(samples)))
    for micro in (micro for micros in ranks for micro in micros):
        assert micro.num_tokens == sum(len(samples[i].token_ids) for i in micro.members)
        assert int(micro.bounds[-1]) == micro.tokens.numel()


def test_the_order_is_compiled_once_for_few_and_for_many_rows() -> None:
    """Inductor compiles a sort twice, since it looks at 32,767 keys."""
    torch._dynamo.reset()
    counted = CompileCounterWithBackend("inductor")
    ordered = torch.compile(order_by, backend=counted, dynamic=True)
    for size in (40_000, 100, 32_767, 32_766):
        keys = torch.randint(EXPERTS, (size,))
        assert torch.equal(ordered(keys), torch.argsort(keys, stable=True))
    assert counted.frame_count == 1
