"""Draws whose rows are weighed by results: who is taken, what weights are told, resuming."""

from collections import Counter

import pytest
from fake_endpoints import FakeEndpoints, drive, job, math_nodes

from forgedsl.errors import RunError
from forgedsl_runtime.endpoints import Score


class Weighted(FakeEndpoints):
    """Even rows are one level and score 1, each odd one is its own and scores 0."""

    def __init__(self, job, weigh, **more):
        super().__init__(job, **more)
        self.weigh, self.told = weigh, []

    async def weight(self, node, results):
        self.told.append(results)
        return self.weigh(**results)

    async def score(self, node, rollout, target):
        return Score(value=float(rollout.prompt.row % 2 == 0))

    def restarted(self, state, **more):
        again = Weighted(self.job, self.weigh, **more)
        again.version.update(state["versions"])
        return again


def weighted(steps=6, weight="frontier", **more):
    draw, *rest = math_nodes()
    return job([draw.model_copy(update={"weight": weight, "observe": "score"}), *rest],
               steps=steps, **more)  # fmt: skip


def drawn(events):
    return [event["row"] for event in events if event["kind"] == "group.drawn"]


def test_a_level_that_is_solved_is_drawn_less_and_what_is_new_as_before():
    the_job = weighted(steps=20)
    endpoints = Weighted(the_job, lambda mean, count: 0.1 if mean == 1.0 else 1.0)
    _, events = drive(the_job, endpoints)
    kinds = Counter(row % 2 for row in drawn(events)[16:])
    assert kinds[1] > 5 * kinds[0] > 0


def test_weights_are_told_the_mean_and_the_number_of_groups_of_the_level():
    the_job = weighted(steps=4)
    endpoints = Weighted(the_job, lambda mean, count: 1.0)
    drive(the_job, endpoints)
    assert endpoints.told[0] == {"mean": 0.0, "count": 0.0}
    assert {told["mean"] for told in endpoints.told} == {0.0, 1.0}
    assert max(told["count"] for told in endpoints.told) >= 4


def test_weights_of_one_draw_what_a_draw_without_weights_does():
    the_job = weighted()
    _, ours = drive(the_job, Weighted(the_job, lambda mean, count: 1.0))
    plain = job(math_nodes(), steps=6)
    _, theirs = drive(plain, Weighted(plain, None))
    assert drawn(ours) == drawn(theirs)


def test_a_resumed_run_knows_the_results_and_draws_its_open_rows_again():
    the_job = weighted(steps=8, checkpoint={"every": 3})
    first = Weighted(the_job, lambda mean, count: 0.3 if mean == 1.0 else 0.9)
    drive(the_job, first)
    state = first.saved[0]
    books = state["ledgers"]["prompt"]
    open_rows = [entry["row"] for entry in books["open"]]
    count, recent = books["results"]["even"]
    assert (count, set(recent)) == (len(recent), {1.0})
    again = first.restarted(state)
    outcome, events = drive(the_job, again, state=state)
    assert outcome.step == 8
    assert drawn(events)[: len(open_rows)] == open_rows
    assert count in [told["count"] for told in again.told]


@pytest.mark.parametrize(
    ("weight", "says"),
    [(0.0, "no row of the last 20,000 was taken"), (float("nan"), "the weight is nan at mean 0")],
)
def test_weights_that_take_nothing_end_the_run_with_their_place(weight, says):
    the_job = weighted()
    with pytest.raises(RunError, match=f"draw prompt: {says}") as error:
        drive(the_job, Weighted(the_job, lambda mean, count: weight))
    assert error.value.origin == "test.forge:prompt"
