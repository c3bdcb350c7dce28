"""Replay of samples: what is put and drawn, how old it is, and that a resume draws the same."""

from dataclasses import asdict, replace
from itertools import pairwise

import pytest
from fake_endpoints import FakeEndpoints, drive, job, math_nodes, metrics, node
from hypothesis import given, settings
from hypothesis import strategies as st

from forgedsl.errors import RunError
from forgedsl.lower import job as spec


class Recording(FakeEndpoints):
    """Keeps what every step trained on."""

    def __init__(self, job, **more):
        super().__init__(job, **more)
        self.batches = []

    async def step(self, node, batch):
        self.batches.append(batch)
        return await super().step(node, batch)

    def restarted(self, state, **more):
        again = type(self)(self.job, **more)
        again.version.update(state["versions"])
        return again


def replaying(*, steps=6, groups=16, max_age=8, count=2, keep=None, fields=("adv=adv",), **more):
    """Fresh groups and what is drawn of those before, under one loss."""
    nodes = list(math_nodes(reference=False))
    at = next(i for i, each in enumerate(nodes) if each.op == "replay")
    nodes[at + 1] = nodes[at + 1].model_copy(update={
        "inputs": (spec.Input(argument="batch", edge="batch"),
                   spec.Input(argument="batch_2", edge="again")),
        "beside": more.pop("beside", ("",)),
    })  # fmt: skip
    kept = [] if keep is None else [node("kept", "mask", "s=score", target=keep)]
    given = ["rollout=rollout", *fields, *(["keep=kept"] if kept else [])]
    nodes[at + 1 : at + 1] = [
        *kept,
        node("good.put", "put", *given, target="good", level="batch"),
        node("old", "recall", target="good", count=count, level="rollout"),
        node("again", "replay", "rollout=old", "adv=old.adv"),
    ]
    buffers = {"good": spec.Buffer(groups=groups, max_age=max_age)}
    return job(nodes, steps=steps, buffers=buffers, **more)


def trained(endpoints):
    """By step: fresh samples, then drawn ones, as plain values."""
    found = []
    for batch in endpoints.batches:
        pairs = zip(batch.samples, batch.members, strict=True)
        found.append([(member >= 0, asdict(sample)) for sample, member in pairs])
    return found


def content(sample):
    return sample["token_ids"], sample["token_fields"]["behavior"]


def test_what_a_step_draws_was_trained_on_before_with_the_numbers_of_then():
    the_job = replaying()
    endpoints = Recording(the_job)
    drive(the_job, endpoints)
    seen = []
    for step in trained(endpoints):
        for fresh, sample in step:
            if not fresh:
                assert (content(sample), sample["sequence_fields"]["adv"]) in seen
        seen += [(content(s), s["sequence_fields"]["adv"]) for fresh, s in step if fresh]
    assert sum(not fresh for step in trained(endpoints) for fresh, _ in step) == 5 * 2 * 4


def test_fresh_groups_are_those_of_a_run_without_a_buffer():
    the_job = replaying()
    ours, theirs = Recording(the_job), Recording(job(math_nodes(reference=False)))
    drive(the_job, ours)
    drive(theirs.job, theirs)
    fresh = [[s for is_fresh, s in step if is_fresh] for step in trained(ours)]
    assert fresh == [[s for _, s in step] for step in trained(theirs)]


def test_only_groups_that_the_filter_keeps_are_put():
    the_job = replaying(keep="never")
    endpoints = Recording(the_job)
    _, events = drive(the_job, endpoints)
    assert all(fresh for step in trained(endpoints) for fresh, _ in step)
    assert {row["replay/held"] for row in metrics(events)} == {0}


def test_the_oldest_groups_leave_a_full_buffer():
    the_job = replaying(groups=3, count=3, steps=5)
    endpoints = Recording(the_job)
    drive(the_job, endpoints)
    steps = trained(endpoints)
    for before, step in pairwise(steps):
        last = [content(s) for fresh, s in before if fresh][-3 * 4 :]
        assert [content(s) for fresh, s in step if not fresh] == last


def test_metrics_tell_what_was_drawn_and_leave_the_rest_to_fresh_groups():
    the_job = replaying(steps=3)
    _, events = drive(the_job, Recording(the_job))
    rows = metrics(events)
    assert [row["replay/groups"] for row in rows] == [0, 2, 2]
    assert [row["replay/share"] for row in rows] == [0.0, 2 / 6, 2 / 6]
    assert [row["groups"] for row in rows] == [4, 4, 4]
    assert [row["sequences"] for row in rows] == [16, 24, 24]
    assert rows[0]["replay/age_mean"] is None
    assert rows[1]["replay/age_max"] == 1
    assert max(row["age_max"] for row in rows) <= the_job.schedule.age_bound


def test_a_loss_of_its_own_waits_until_something_is_drawn():
    the_job = replaying(beside=("imitate",), steps=3)
    endpoints = Recording(the_job)
    drive(the_job, endpoints)
    assert [[loss for loss, _ in batch.beside] for batch in endpoints.batches] == [
        [], ["imitate"], ["imitate"]
    ]  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    mode=st.sampled_from(["sync", "async"]), groups=st.integers(2, 12), count=st.integers(1, 4),
    max_age=st.integers(1, 5), seed=st.integers(0, 9), save=st.integers(2, 6),
)  # fmt: skip
def test_nothing_is_older_than_max_age_and_a_resume_draws_the_same(
    mode, groups, count, max_age, seed, save
):
    credits = {"sync": 4, "async": 8}[mode]
    the_job = replaying(
        mode=mode, credits=credits, steps=8, groups=groups, count=count, max_age=max_age,
        checkpoint={"every": save}, seed=seed,
    )  # fmt: skip
    first = Recording(the_job)
    _, events = drive(the_job, first)
    ages = [row["replay/age_max"] for row in metrics(events)]
    assert max(age for age in ages if age is not None) <= max_age
    assert all(row["replay/held"] <= groups for row in metrics(events))
    state = first.saved[0]
    again = first.restarted(state)
    drive(the_job, again, state=state, replay=first.replays[save])
    drawn, after = ([[s for fresh, s in step if not fresh] for step in trained(run)]
                    for run in (first, again))  # fmt: skip
    assert after[0] == drawn[save]
    if mode == "sync":
        assert trained(again) == trained(first)[save:]


class OfRows(Recording):
    """Makes completions whose first token begins a row."""

    async def sample(self, node, prompt, sibling, seed):
        return replace(await super().sample(node, prompt, sibling, seed), row_starts=(0,))


def test_rows_of_a_trajectory_are_kept_and_resumed():
    the_job = replaying(steps=6, checkpoint={"every": 3})
    first = OfRows(the_job)
    drive(the_job, first)
    state = first.saved[0]
    again = first.restarted(state)
    drive(the_job, again, state=state, replay=first.replays[3])
    for step in (*trained(first), trained(again)[0]):
        for _, sample in step:
            assert sample["row_starts"] == (sample["num_prompt"],)
    assert any(not fresh for fresh, _ in trained(again)[0])


def test_a_field_of_tokens_is_kept_by_token():
    the_job = replaying(fields=("adv=adv", "ref=ref_lp"), steps=3)
    reference = node("ref_lp", "logprobs", "rollout", target="reference")
    before, put, old, again, *after = the_job.nodes[:5], *the_job.nodes[5:]
    again = again.model_copy(update={
        "inputs": (*again.inputs, spec.Input(argument="ref", edge="old", attribute="ref"))
    })  # fmt: skip
    nodes = (*before[:2], reference, *before[2:], put, old, again, *after)
    the_job = the_job.model_copy(update={"nodes": nodes})
    endpoints = Recording(the_job)
    drive(the_job, endpoints)
    drawn = [s for fresh, s in trained(endpoints)[-1] if not fresh]
    assert drawn
    assert all(len(s["token_fields"]["ref"]) == len(s["mask"]) for s in drawn)


@pytest.mark.parametrize(("data", "says"), [(None, "is missing"), (b"PK", "cannot be read")])
def test_a_checkpoint_without_its_groups_is_told(data, says):
    the_job = replaying(checkpoint={"every": 3})
    first = Recording(the_job)
    drive(the_job, first)
    with pytest.raises(RunError, match=f"replay.npz of the checkpoint, .* groups of good, {says}"):
        drive(the_job, first.restarted(first.saved[0]), state=first.saved[0], replay=data)


def test_a_buffer_that_is_filled_with_something_else_starts_empty():
    the_job = replaying(checkpoint={"every": 3})
    first = Recording(the_job)
    drive(the_job, first)
    other = replaying(fields=("adv=adv", "score=score"), checkpoint={"every": 3})
    state, data = first.saved[0], first.replays[3]
    _, events = drive(other, first.restarted(state), state=state, replay=data)
    told = [event["text"] for event in events if event["kind"] == "warning"]
    assert told == [("buffer good starts empty: its fields differ from those in the checkpoint")]
    assert metrics(events)[0]["replay/groups"] == 0


def test_what_is_put_and_is_no_number_ends_the_run_with_its_place():
    the_job = replaying(fields=("adv=adv", "gold=prompt.text"))
    with pytest.raises(RunError, match=r"`gold` of a completion is .* which is not a number"):
        drive(the_job, Recording(the_job))
