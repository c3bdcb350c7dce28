"""What the decode steps of a completion took, from when completions began and ended."""

import random

import pytest

from forgedsl.sim.decoding import DecodeCost, Decoding, Swaps
from forgedsl.sim.engine import Batching

COST = DecodeCost(step=2e-3, sequence=1e-5, context=3e-8)
PROMPT = 64


def decoded(seed, *, arrive, slowness=1.0):
    """Completions of an engine with these costs: start, end and tokens of each."""
    rng = random.Random(seed)
    engine = Batching(
        decode=COST.step, decode_empty=COST.sequence, decode_context=COST.context,
        max_running=4096,
    )  # fmt: skip
    engine.slowness = slowness
    coming = sorted((rng.choice(arrive) + 1e-6 * i, rng.randint(20, 1000)) for i in range(300))
    begun, found = {}, []
    while coming or engine.running:
        if coming and coming[0][0] <= engine.next_end():
            start, tokens = coming.pop(0)
            begun[start] = tokens
            engine.add(start, start, tokens, 0.0, context=PROMPT)
            continue
        end = engine.next_end()
        found += [(start, end, begun[start]) for start in engine.ended(end)]
    return found


@pytest.mark.parametrize("slowness", [1.0, 1.4])
@pytest.mark.parametrize("arrive", [(0.0,), (0.0, 1.0, 1.5), (0.0, 0.4, 3.0)])
def test_steps_take_what_their_completions_took(arrive, slowness):
    """Times that are planned too short by a factor come out short by it, each by the same."""
    completions = decoded(5, arrive=arrive, slowness=slowness)
    decoding = Decoding(completions, COST, PROMPT)
    for start, end, tokens in completions:
        planned = tokens * (COST.step + decoding.shared(start, end))
        assert slowness * planned == pytest.approx(end - start, rel=1e-3)


def test_those_that_begin_meanwhile_are_counted():
    completions = decoded(7, arrive=(0.0, 1.0, 1.5))
    decoding = Decoding(completions, COST, PROMPT)
    assert decoding.begun(0.5, 1.2) == sum(0.5 <= start <= 1.2 for start, _, _ in completions)
    assert decoding.begun(-1.0, 9.0) == 300


def test_what_runs_at_a_swap_is_counted():
    completions = [(0.0, 4.0, 40), (1.0, 2.0, 10), (2.5, 6.0, 35), (5.0, 7.0, 8)]
    even = Decoding(completions, DecodeCost(step=0.1, sequence=0.0, context=0.0), 0.0)
    swaps = Swaps([2.0, 3.0, 5.5], completions, even)
    assert swaps.within(0.0, 9.0) == pytest.approx((1 + 2 + 2, 20 + 30 + 5 + 30 + 2))
    assert swaps.within(2.0, 5.5) == pytest.approx((2, 35))  # the swap at 3.0 alone
    assert swaps.within(3.2, 4.0) == (0.0, 0.0)
    assert Swaps([], completions, even).within(0.0, 9.0) == (0.0, 0.0)


def test_a_completion_is_further_at_a_swap_if_its_first_steps_were_faster():
    """Two run together from the second half on: by then the first has most of its tokens."""
    completions = [(0.0, 2.0, 100), (1.0, 3.0, 100)]
    cost = DecodeCost(step=0.0, sequence=0.01, context=0.0)
    swaps = Swaps([1.0], completions, Decoding(completions, cost, 0.0))
    assert swaps.within(0.0, 3.0) == pytest.approx((1, 100 * 2 / 3))


def test_steps_get_slower_between_two_events():
    """The n-th step takes 0.1 ms for each of 100 + n tokens, so n steps take 0.1 ms times
    100 n + n^2 / 2. After half of the time of 1,000 steps, 681 are done."""
    cost = DecodeCost(step=0.0, sequence=0.0, context=1e-4)
    end = 1e-4 * (100 * 1000 + 1000**2 / 2)
    half = (100**2 + end / 1e-4) ** 0.5 - 100
    decoding = Decoding([(0.0, end, 1000)], cost, 100.0)
    swaps = Swaps([end / 2], [(0.0, end, 1000)], decoding)
    assert swaps.within(0.0, end) == pytest.approx((1, half), rel=1e-2)


def test_completions_without_time_have_no_steps():
    decoding = Decoding([(1.0, 1.0, 4)], COST, PROMPT)
    assert decoding.shared(1.0, 1.0) == decoding.steps(1.0) == 0.0
