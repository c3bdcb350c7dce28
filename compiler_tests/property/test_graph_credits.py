"""The age bound, by simulating random schedules on `Credits`: it always holds and is attained."""

import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forgedsl.plan.credits import IN_FLIGHT, Credits
from forgedsl.plan.staleness import bound, plan_async

NUM_SCHEDULES = 10_000 if os.environ.get("FORGE_DEEP") == "1" else 400


def simulate(rng: random.Random, plan, *, steps: int, p_drop: float) -> int:
    """Worst age seen over `steps` optimizer steps; events come in random order.

    The generator's version at admission is the born version; a step's age is the number of steps
    done before it minus the born version. At most one step and one pull are under way.
    """
    credits = Credits(plan.prompts, plan.credits, plan.window, plan.every)
    born: dict[int, int] = {}
    trained = worst = 0
    training: tuple[int, ...] | None = None
    unpulled: list[int] = []
    favour = rng.choice(["admit", "finish", "newest"])
    while trained < steps:
        flying = credits.groups(IN_FLIGHT)
        moves = ["admit"] if credits.alive < plan.credits else []
        moves += ["finish"] if flying else []
        moves += ["take"] if training is None and credits.ready() else []
        moves += ["step"] if training is not None else []
        moves += ["pull"] if unpulled else []
        assert moves, "deadlock"
        move = favour if favour in moves and rng.random() < 0.8 else rng.choice(moves)
        if move == "admit":
            born[credits.admit()] = credits.pulled_version
        elif move == "finish":
            group = flying[-1] if favour == "newest" else rng.choice(flying)
            (credits.drop if rng.random() < p_drop else credits.finalize)(group)
        elif move == "take":
            training = credits.take()
            worst = max(worst, max(trained - born[group] for group in training))
        elif move == "step":
            trained += 1
            credits.stepped(training, trained)
            if trained % plan.every == 0:
                unpulled.append(trained)
            training = None
        else:
            credits.pulled(unpulled.pop(0))
    return worst


@pytest.mark.parametrize("p_drop", [0.0, 0.2])
def test_bound_holds_over_random_schedules(p_drop):
    rng = random.Random(17)
    for _ in range(NUM_SCHEDULES):
        plan = bound(
            prompts=rng.randint(1, 8),
            lag=rng.randint(0, 4),
            fraction=rng.choice([0.0, 0.1, 0.3, 0.7, 1.0]),
            every=rng.choice([1, 1, 2, 3]),
        )
        assert simulate(rng, plan, steps=20, p_drop=p_drop) <= plan.age_bound, plan


@pytest.mark.parametrize(("prompts", "lag", "fraction"), [(4, 1, 0.0), (2, 3, 0.3), (8, 2, 0.5)])
def test_bound_is_attained(prompts, lag, fraction):
    rng = random.Random(3)
    plan = bound(prompts=prompts, lag=lag, fraction=fraction)
    assert max(simulate(rng, plan, steps=60, p_drop=0.0) for _ in range(80)) == plan.age_bound


def test_releasing_before_the_pull_would_break_the_bound():
    plan = bound(prompts=2, lag=1)
    credits, worst = Credits(2, plan.credits), 0
    born = {}
    for trained in range(6):
        while (group := credits.admit()) is not None:
            born[group] = max(0, trained - 1)  # the pull lags one step behind
            credits.finalize(group)
        batch = credits.take()
        worst = max(worst, *(trained - born[group] for group in batch))
        credits.released(batch)
    assert worst == plan.age_bound + 1


@given(st.integers(1, 6), st.integers(0, 3), st.integers(1, 9), st.data())
def test_strict_order_within_the_window(prompts, lag, window, data):
    credits = Credits(prompts, (lag + 1) * prompts, window)
    taken: list[int] = []
    for _ in range(60):
        while credits.admit() is not None:
            pass
        flying = credits.groups(IN_FLIGHT)
        if flying:
            credits.finalize(data.draw(st.sampled_from(flying)))
        if credits.ready():
            batch = credits.take()
            oldest = min(credits.groups(IN_FLIGHT), default=credits.next_group)
            assert all(group < oldest + window for group in batch)
            assert list(batch) == sorted(batch)
            taken += batch
            credits.released(batch)
    assert len(taken) == len(set(taken))
    if window == 1:
        assert taken == sorted(taken)


def test_credits_life_of_a_group():
    credits = Credits(prompts=2, credits=3)
    assert [credits.admit() for _ in range(4)] == [0, 1, 2, None]
    credits.finalize(2)
    credits.finalize(0)
    assert not credits.ready()  # group 1 is the oldest in flight and window is 1
    credits.drop(1)
    assert credits.take() == (0, 2)
    assert credits.admit() == 3
    assert credits.admit() is None
    credits.released((0, 2))
    assert (credits.alive, credits.in_flight, credits.waiting) == (1, 1, 0)


def test_credits_refuses_wrong_moves():
    credits = Credits(prompts=1, credits=2)
    group = credits.admit()
    with pytest.raises(ValueError, match="group 0 is in_flight, not training"):
        credits.released([group])
    with pytest.raises(ValueError, match="0 of 1 groups are ready"):
        credits.take()
    with pytest.raises(ValueError, match="group 7 is not alive"):
        credits.finalize(7)


def test_credits_state_round_trip():
    first = Credits(prompts=2, credits=4, window=2)
    for _ in range(4):
        first.admit()
    first.finalize(1)
    first.finalize(0)
    first.stepped(first.take(), 1)
    second = Credits(prompts=2, credits=4, window=2)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    assert second.admit() is None
    second.pulled(1)
    assert second.admit() == 4


def test_sync_every_two_steps_holds_no_credit_before_the_sync_is_due():
    credits = Credits(prompts=1, credits=1, every=2)
    for version, alive in ((1, 0), (2, 1)):
        credits.finalize(credits.admit())
        credits.stepped(credits.take(), version)
        assert credits.alive == alive
    credits.pulled(2)
    assert credits.alive == 0


def test_without_sync_a_step_releases_at_once():
    credits = Credits(prompts=1, credits=1, every=None)
    for version in range(1, 5):
        credits.finalize(credits.admit())
        credits.stepped(credits.take(), version)
    assert credits.alive == 0


@pytest.mark.parametrize(
    ("prompts", "max_age", "fraction", "lag", "age"),
    [(16, 1, 0.0, 1, 1), (8, 5, 0.3, 3, 4), (32, 1, 0.0, 1, 1), (1, 4, 1.0, 2, 4)],
)
def test_largest_lag_within_the_bound(prompts, max_age, fraction, lag, age):
    plan = plan_async(prompts=prompts, max_age=max_age, fraction=fraction)
    assert (plan.lag, plan.age_bound) == (lag, age)
    later = bound(prompts=prompts, lag=lag + 1, fraction=fraction)
    assert later.age_bound > max_age


def test_no_lag_fits():
    assert plan_async(prompts=4, max_age=0) is None
    assert plan_async(prompts=4, max_age=1, every=2) is None


def test_formula_text():
    assert bound(prompts=16, lag=1).formula == "(32 + 1 - 2) // 16 = 1"
    assert bound(prompts=8, lag=3, fraction=0.3, every=2).formula == "(32 + 9 - 2) // 8 + 1 = 5"
