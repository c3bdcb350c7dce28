"""What becomes of the step in progress when a scheduler ends the run in so many seconds."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from fake_endpoints import FakeEndpoints, drive, job, metrics
from test_trainer_ranks import published, recorded_batch, recorded_loss, trainer_of

from forgedsl_runtime.actors.abandon_step import AbandonStep, StepAbandoned

STEP, SAVE = 240.0, 10.0


def told(at: float, seconds: float | None) -> Any:
    """Tell the controller at a time of the run; the first step begins at 0."""

    def prepare(controller: Any) -> None:
        asyncio.get_running_loop().call_later(at, controller.interrupt, seconds)

    return prepare


def endpoints(the_job: Any) -> FakeEndpoints:
    times = {"step": STEP, "save": SAVE}
    return FakeEndpoints(the_job, latency=lambda op: times.get(op, 0.0))


def test_a_step_that_cannot_end_in_time_is_left_and_what_was_before_it_is_saved() -> None:
    """Two steps are done, the third has 230 s to go, and the notice is 120 s."""
    the_job = job(steps=50, checkpoint={"every": 1000})
    first = endpoints(the_job)
    outcome, events = drive(the_job, first, prepare=told(2 * STEP + 10.0, 120.0))
    assert (outcome.ended, outcome.checkpoint) == ("interrupted", "checkpoints/step-2")
    (said,) = [e["text"] for e in events if e["kind"] == "notice"]
    assert said == "step 3 did not end in time and was abandoned"
    end = next(e for e in events if e["kind"] == "controller.end")
    assert end["step"] == 2


def test_the_groups_of_a_step_that_was_left_are_trained_on_after_a_resume() -> None:
    the_job = job(steps=4)
    first = endpoints(the_job)
    drive(the_job, first, prepare=told(2 * STEP + 10.0, 120.0))
    state = first.saved[-1]
    second = first.restarted(state)
    drive(the_job, second, state=state)
    groups = [g for fake in (first, second) for step in fake.trained for g in step["groups"]]
    assert sorted(groups) == list(range(len(groups)))


def test_a_step_that_ends_in_time_is_not_left() -> None:
    the_job = job(steps=50)
    outcome, events = drive(the_job, endpoints(the_job), prepare=told(2 * STEP + 200.0, 120.0))
    assert (outcome.ended, outcome.checkpoint) == ("interrupted", "checkpoints/step-3")
    assert [m["step"] for m in metrics(events)] == [1, 2, 3]


def test_who_presses_ctrl_c_waits_for_the_step() -> None:
    the_job = job(steps=50)
    outcome, _ = drive(the_job, endpoints(the_job), prepare=told(2 * STEP + 10.0, None))
    assert outcome.checkpoint == "checkpoints/step-3"


def test_a_step_that_cannot_be_left_is_given_up_when_the_time_is_over() -> None:
    the_job = job(steps=50, checkpoint={"every": 1})
    fake = endpoints(the_job)
    fake.leaves = False
    outcome, events = drive(the_job, fake, prepare=told(2 * (STEP + SAVE) + 10.0, 120.0))
    assert (outcome.ended, outcome.step, fake.saved[-1]["step"]) == ("interrupted", 2, 2)
    assert any("it is lost" in e["message"] for e in events if e["kind"] == "warning")


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_ranks_that_meet_in_each_microbatch_leave_at_the_same_one(ahead: int) -> None:
    """One rank may be told while it is `ahead` microbatches before the others."""
    ranks, micros = [AbandonStep() for _ in range(3)], 30
    meet = threading.Barrier(len(ranks), timeout=20)
    slow, done, left = threading.Event(), [0] * len(ranks), [False] * len(ranks)

    def work(rank: int) -> None:
        with ranks[rank].step(possible=True):
            try:
                for i in range(micros):
                    ranks[rank].microbatch()
                    if i == 5 + (ahead if rank == 0 else 0):
                        slow.wait(20)
                    if i < 5 or i > 5 + ahead:
                        meet.wait()
                    done[rank] += 1
            except StepAbandoned:
                left[rank] = True

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(ranks))]
    for thread in threads:
        thread.start()
    while done != [5 + ahead, 5, 5]:
        pass
    held = [rank.pause() for rank in ranks]
    assert held == [8 + ahead, 8, 8]
    slow.set()
    for rank in ranks:
        rank.decide(max(h for h in held if h is not None))
    for thread in threads:
        thread.join(20)
    assert (done, left) == ([8 + ahead] * 3, [True] * 3)


def test_a_step_of_several_updates_is_not_left() -> None:
    rank = AbandonStep()
    with rank.step(possible=False):
        assert rank.pause() is None
        rank.decide(0)
        rank.microbatch()


async def hurried(mesh: Any, batch: Any) -> Any:
    """A step that is asked to end when it has hardly begun."""
    step = asyncio.ensure_future(mesh.first("step", batch, "recorded"))
    held = await mesh.call("pause")
    await mesh.call("abandon_before", max(held))
    return await step


@pytest.mark.full
@pytest.mark.timeout(300)
def test_two_ranks_leave_a_step_with_weights_and_moments_as_before(
    make_job: Any, make_titan: Any, tmp_path: Path
) -> None:
    service = make_titan(procs=2)
    small = service.batch.model_copy(update={"rows": 1})
    service = service.model_copy(update={"batch": small})
    job = make_job(services={"trainer": service}, losses={"recorded": recorded_loss()})

    async def main() -> Any:
        async with trainer_of(job, 2, tmp_path) as (mesh, _):
            before = await published(mesh)
            batch = recorded_batch()
            left = await hurried(mesh, batch)
            after = await published(mesh)
            await mesh.call("abandon_before", None)
            return left, before, after, await mesh.first("step", batch, "recorded")

    left, before, after, whole = asyncio.run(main())
    assert (left.left, left.version) == (True, 0)
    assert all((before[name] == after[name]).all() for name in before)
    assert (whole.left, whole.version) == (False, 1)
