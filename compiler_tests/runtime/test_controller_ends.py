"""How runs end that do not go well: failures, guards, interrupts; and how they are resumed."""

import asyncio
import json
import math
from collections import Counter

import pytest
from fake_endpoints import (
    DropRollout,
    FakeEndpoints,
    RolloutError,
    ServiceFailure,
    drive,
    evaluation,
    job,
    math_nodes,
    metrics,
    node,
    titan,
)

from forgedsl.errors import GuardError, RunError
from forgedsl_runtime.controller.group_source import starvation_remedy
from forgedsl_runtime.data_types import StepResult
from forgedsl_runtime.endpoints import CheckpointError, RewardError, ServiceError


def failing(op, error, *, after=0, only=lambda about: True):
    """Raise `error` from the call number `after` on."""
    count = iter(range(10**9))

    def fail(called, about):
        if called == op and only(about) and next(count) >= after:
            raise error

    return fail


def later(seconds, act):
    """Do something while the controller runs."""

    def prepare(controller):
        asyncio.get_running_loop().call_later(seconds, act, controller)

    return prepare


# ---- failures


def test_a_service_that_dies_ends_the_run_with_its_name_and_origin():
    the_job = job(steps=50)
    endpoints = FakeEndpoints(the_job, latency=lambda op: 1.0)
    failure = ServiceFailure(service="generator", origin="a.forge:9:3", message="killed")
    die = later(21.5, lambda controller: endpoints.failures.put_nowait(failure))
    with pytest.raises(RunError, match="service generator failed: killed") as caught:
        drive(the_job, endpoints, prepare=die)
    assert (caught.value.service, caught.value.origin) == ("generator", "a.forge:9:3")
    assert endpoints.saved[-1]["step"] == len(endpoints.trained) > 0, "the trainer still answers"


def test_a_death_that_is_told_after_what_it_broke_is_the_cause():
    """A generator that fetches weights from a trainer which is killed is the first to complain."""
    the_job = job(steps=50)
    endpoints = FakeEndpoints(the_job, latency=lambda op: 1.0)
    reset = ServiceFailure(service="generator", origin="a.forge:9:3", message="reset by peer")
    gone = ServiceFailure(service="trainer", origin="a.forge:1:1", message="killed", died=True)

    def die(controller):
        endpoints.failures.put_nowait(reset)
        asyncio.get_running_loop().call_later(2.0, endpoints.failures.put_nowait, gone)

    with pytest.raises(RunError, match="service trainer failed: killed") as caught:
        drive(the_job, endpoints, prepare=later(21.5, die))
    assert (caught.value.service, caught.value.origin) == ("trainer", "a.forge:1:1")


def test_a_failure_elsewhere_lets_the_step_in_progress_end():
    the_job = job(steps=50)
    times = {"step": 9.0, "save": 1.0}
    endpoints = FakeEndpoints(the_job, latency=lambda op: times.get(op, 0.1))
    failure = ServiceFailure(service="generator", origin="a.forge:9:3", message="killed")
    die = later(13.0, lambda controller: endpoints.failures.put_nowait(failure))
    with pytest.raises(RunError, match="killed"):
        drive(the_job, endpoints, prepare=die)
    assert [state["step"] for state in endpoints.saved] == [2] == [len(endpoints.trained)]


def test_a_call_to_a_dead_service_names_it():
    failure = ServiceFailure(service="reference", origin="a.forge:7:1", message="gone")
    the_job = job()
    endpoints = FakeEndpoints(the_job, fail=failing("logprobs", ServiceError(failure)))
    with pytest.raises(RunError, match=r"reference failed during logprobs ref_lp.*gone") as caught:
        drive(the_job, endpoints)
    assert caught.value.origin == "a.forge:7:1"


def test_a_dead_trainer_is_not_asked_for_a_checkpoint():
    the_job = job(checkpoint={"every": 1})
    failure = ServiceFailure(service="trainer", origin="a.forge:1:1", message="gone")
    endpoints = FakeEndpoints(the_job, fail=failing("step", ServiceError(failure), after=2))
    with pytest.raises(RunError, match="trainer failed"):
        drive(the_job, endpoints)
    assert [state["step"] for state in endpoints.saved] == [1, 2]


def test_unknown_exceptions_are_reported_with_the_node_and_its_line():
    the_job = job()
    endpoints = FakeEndpoints(the_job, fail=failing("call", KeyError("adv")))
    with pytest.raises(RunError, match="call adv on centered failed: KeyError: 'adv'") as caught:
        drive(the_job, endpoints)
    assert caught.value.origin == "test.forge:adv"


def test_the_original_error_survives_a_checkpoint_that_fails_too():
    the_job = job()
    failures = {"call": KeyError("adv"), "save": OSError("disk full")}

    def fail(op, about):
        if op in failures and endpoints.trained:
            raise failures[op]

    endpoints = FakeEndpoints(the_job, latency=lambda op: 0.1, fail=fail)
    with pytest.raises(RunError, match="KeyError") as caught:
        drive(the_job, endpoints)
    assert "disk full" in caught.value.__notes__[0]


def test_a_completion_that_fails_once_is_tried_again():
    the_job = job(steps=2)
    broken = set()

    def fail(op, about):
        key = (about.get("group"), about.get("sibling"))
        if op == "sample" and key not in broken:
            broken.add(key)
            raise RolloutError("connection lost")

    healthy = FakeEndpoints(the_job)
    drive(the_job, healthy)
    endpoints = FakeEndpoints(the_job, fail=lambda *a: fail(*a) if len(broken) < 9 else None)
    _, events = drive(the_job, endpoints)
    assert len([e for e in events if e["kind"] == "rollout.failed"]) == 9
    assert endpoints.trained == healthy.trained


def test_a_completion_that_stays_broken_is_dropped_and_its_credit_returns():
    broken = failing("sample", RolloutError("bad"), only=lambda about: about["group"] == 1)
    the_job = job(steps=3)
    endpoints = FakeEndpoints(the_job, fail=broken)
    _, events = drive(the_job, endpoints)
    dropped = [e for e in events if e["kind"] == "group.dropped"]
    assert [(e["group"], e["reason"]) for e in dropped] == [(1, "sample generator")]
    assert [len(step["groups"]) for step in endpoints.trained] == [4, 4, 4]


def test_a_group_without_completions_is_dropped_where_nothing_but_the_batch_reads_it():
    nodes = [
        node("prompt", "draw", target="data", count=4),
        node("rollout", "sample", "prompt", target="generator", n=2),
        node("batch", "replay", "rollout"),
        node("step", "step", "batch", target="trainer", loss="loss"),
    ]
    broken = failing("sample", RolloutError("bad"), only=lambda about: about["group"] == 1)
    the_job = job(nodes, steps=2)
    endpoints = FakeEndpoints(the_job, fail=broken)
    _, events = drive(the_job, endpoints)
    dropped = [e for e in events if e["kind"] == "group.dropped"]
    assert [(e["group"], e["reason"]) for e in dropped] == [(1, "sample generator")]
    assert [len(step["groups"]) for step in endpoints.trained] == [4, 4]


@pytest.mark.parametrize(
    ("op", "error", "remedy"),
    [
        ("sample", RolloutError("no memory"), "read the log of the service"),
        ("score", RewardError("tests", "no memory"), "fix the reward"),
    ],
)
def test_failures_without_end_stop_the_run(op, error, remedy):
    the_job = job()
    endpoints = FakeEndpoints(the_job, fail=failing(op, error), jitter=1)
    with pytest.raises(RunError, match=r"failed 16 times in a row.*no memory") as caught:
        drive(the_job, endpoints)
    assert caught.value.remedy.startswith(remedy)


@pytest.mark.parametrize("op", ["draw", "logprobs", "call", "step", "sync", "save"])
def test_no_wait_is_without_end(op):
    the_job = job(checkpoint={"every": 1})
    endpoints = FakeEndpoints(the_job, latency=lambda called: 1e9 if called == op else 0.1)
    with pytest.raises(RunError, match=r"gave no answer within \d+ s"):
        drive(the_job, endpoints)


def test_a_function_that_returns_too_few_values_is_named():
    nodes = [
        each if each.name != "adv" else node("adv", "call", "r=score", target="short")
        for each in math_nodes()
    ]
    from fake_endpoints import FUNCTIONS

    FUNCTIONS["short"] = lambda scores: scores[1:]
    with pytest.raises(RunError, match="call adv returned 3 values for 4 completions"):
        drive(job(nodes), FakeEndpoints(job(nodes)))


# ---- guards


def test_starvation_says_where_the_groups_went():
    nodes = math_nodes()
    nodes = [
        *nodes[:5],
        node("mask", "mask", "score", target="never"),
        node("kept", "keep", "rollout", "mask"),
        node("batch", "replay", "kept", "adv=adv", "ref=ref_lp"),
        *nodes[6:],
    ]
    the_job = job(nodes, starve_timeout=120.0)
    endpoints = FakeEndpoints(the_job, latency=lambda op: 1.0)
    with pytest.raises(GuardError) as caught:
        drive(the_job, endpoints)
    message = str(caught.value)
    assert "starved at step 1: no group became ready for 120 s" in message
    assert "filter never: " in message
    assert "generator: ok" in message
    assert caught.value.origin == "test.forge:schedule"


@pytest.mark.parametrize(
    ("drops", "at", "words"),
    [
        ({"reward correct": 9, "filter mixed": 2}, {}, "`reward correct`: it fails, or takes"),
        ({"filter mixed": 9, "reward correct": 2}, {"score": 3}, "rejects nearly every group"),
        ({}, {"sample": 3, "score": 2}, "raise `schedule.starve_timeout`"),
        ({}, {"sample": 2, "score": 3}, "the rewards are the bottleneck: give them more `procs`"),
    ],
)
def test_the_remedy_for_starvation_names_what_took_the_groups(drops, at, words):
    assert words in starvation_remedy(Counter(drops), Counter(at))


def test_a_long_queue_before_the_rewards_loses_nothing():
    times = {"score": 1000.0, "eval score": 1000.0}
    the_job = job(steps=2, evals={"held_out": evaluation(1)}, mode="sync")
    endpoints = FakeEndpoints(the_job, latency=lambda op: times.get(op, 0.0))
    _, events = drive(the_job, endpoints)
    assert [e for e in events if e["kind"].startswith("rollout.")] == []
    assert {e["failed"] for e in events if e["kind"] == "eval.end"} == {0}


def test_slow_progress_is_not_starvation():
    the_job = job(starve_timeout=30.0, steps=2)
    times = {"draw": 25.0}
    outcome, _ = drive(the_job, FakeEndpoints(the_job, latency=lambda op: times.get(op, 0.0)))
    assert outcome.step == 2


class Poisoned(FakeEndpoints):
    """A trainer whose loss is not a number from step 3 on."""

    async def step(self, node, batch):
        result = await super().step(node, batch)
        if len(self.trained) < 3:
            return result
        fields = {name: getattr(result, name) for name in StepResult.__dataclass_fields__}
        return StepResult(**{**fields, "loss": math.nan, "skipped": True})


def test_a_loss_that_is_not_a_number_stops_the_run():
    the_job = job(checkpoint={"every": 1})
    endpoints = Poisoned(the_job)
    with pytest.raises(GuardError, match=r"loss nan.* at step 3") as caught:
        drive(the_job, endpoints)
    assert caught.value.origin == "test.forge:step"
    assert endpoints.saved[-1]["step"] == 2, "spoiled weights are not saved"


def test_steps_may_be_skipped_but_not_for_ever():
    the_job = job(steps=30, services={"trainer": titan("skip")})
    seen = Poisoned(the_job)
    with pytest.raises(GuardError, match="step 10; 8 steps in a row were skipped"):
        drive(the_job, seen)


def test_an_age_beyond_the_proved_bound_is_a_bug():
    the_job = job(age_bound=0)
    with pytest.raises(RunError, match="but the plan proved an age of at most 0: this is a bug"):
        drive(the_job, FakeEndpoints(the_job, jitter=1))


def test_stale_groups_are_dropped_or_an_error_as_declared():
    dropping = job(max_policy_age=0, steps=8)
    endpoints = FakeEndpoints(dropping, jitter=1)
    _, events = drive(dropping, endpoints)
    assert {e["reason"] for e in events if e["kind"] == "group.dropped"} == {"stale"}
    assert {age for step in endpoints.trained for age in step["ages"]} == {0}
    strict = job(max_policy_age=0, on_stale="error")
    with pytest.raises(RunError, match="1 versions old, but `max_policy_age` is 0"):
        drive(strict, FakeEndpoints(strict, jitter=1))


def test_data_that_ends_before_the_first_step_is_an_error():
    the_job = job(steps=None, epochs=1.0)
    with pytest.raises(GuardError, match="data ended before the first step"):
        drive(the_job, FakeEndpoints(the_job, rows=0))


# ---- interrupts and resume


def test_an_interrupt_waits_for_the_step_and_saves():
    the_job = job(steps=50)
    times = {"step": 8.0, "sample": 1.0}
    endpoints = FakeEndpoints(the_job, latency=lambda op: times.get(op, 0.0))
    outcome, events = drive(the_job, endpoints, prepare=later(12.0, lambda c: c.interrupt()))
    assert outcome.ended == "interrupted"
    assert outcome.checkpoint == f"checkpoints/step-{outcome.step}"
    assert endpoints.saved[-1]["step"] == outcome.step == len(endpoints.trained) == 2
    assert [m["step"] for m in metrics(events)] == [1, 2]


def test_an_interrupt_waits_for_a_step_of_minutes():
    the_job = job(steps=50)
    endpoints = FakeEndpoints(the_job, latency=lambda op: 250.0 if op == "step" else 0.0)
    outcome, _ = drive(the_job, endpoints, prepare=later(5.0, lambda c: c.interrupt()))
    assert (outcome.ended, outcome.checkpoint) == ("interrupted", "checkpoints/step-1")


def test_an_interrupt_does_not_wait_for_a_step_that_hangs():
    the_job = job(steps=50)
    endpoints = FakeEndpoints(the_job, latency=lambda op: 1e9 if op == "step" else 0.0)
    outcome, events = drive(the_job, endpoints, prepare=later(5.0, lambda c: c.interrupt()))
    assert (outcome.ended, outcome.checkpoint, endpoints.saved) == ("interrupted", None, [])
    assert "gave no answer within" in next(
        event["message"] for event in events if event["kind"] == "warning"
    )


def test_checkpoints_come_by_the_clock():
    the_job = job(steps=10, checkpoint={"every_s": 25.0})
    times = {"step": 10.0}
    endpoints = FakeEndpoints(the_job, latency=lambda op: times.get(op, 0.0))
    drive(the_job, endpoints)
    assert [state["step"] for state in endpoints.saved] == [3, 6, 9, 10]


def test_a_checkpoint_that_cannot_be_written_is_not_tried_again():
    the_job = job(steps=10, checkpoint={"every": 2})
    refused = failing("save", CheckpointError("disk full"))
    tries = []

    def fail(op, about):
        if op == "save":
            tries.append(about)
        refused(op, about)

    with pytest.raises(CheckpointError, match="disk full"):
        drive(the_job, FakeEndpoints(the_job, fail=fail))
    assert len(tries) == 1


@pytest.mark.parametrize("pressed", [12.0, 25.0, 39.0])
def test_an_interrupt_while_a_checkpoint_is_written_lets_it_become_whole(pressed):
    the_job = job(steps=8, checkpoint={"every": 1})
    first = FakeEndpoints(the_job, latency=lambda op: 30.0 if op == "save" else 1.0)
    outcome, _ = drive(the_job, first, prepare=later(pressed, lambda c: c.interrupt()))
    state = first.saved[-1]
    assert (outcome.ended, outcome.checkpoint) == (
        "interrupted",
        f"checkpoints/step-{state['step']}",
    )
    resumed, _ = drive(the_job, first.restarted(state), state=state)
    assert (resumed.step, outcome.step) == (8, state["step"])


def test_an_interrupt_before_the_first_step_saves_what_was_drawn():
    the_job = job()
    endpoints = FakeEndpoints(the_job, latency=lambda op: 0.0 if op == "draw" else 5.0)
    drive(the_job, endpoints, prepare=later(7.0, lambda c: c.interrupt()))
    (state,) = endpoints.saved
    assert state["step"] == 0
    assert [entry["row"] for entry in state["ledgers"]["prompt"]["open"]] == list(range(8))


def test_nothing_is_left_running_after_an_interrupt():
    async def main():
        from forgedsl_runtime.controller import Controller
        from forgedsl_runtime.events import EventLog

        the_job = job(steps=50)
        controller = Controller(the_job, FakeEndpoints(the_job, jitter=1), EventLog())
        asyncio.get_running_loop().call_later(30.0, controller.interrupt)
        await controller.run()
        return asyncio.all_tasks() - {asyncio.current_task()}

    from fake_endpoints import run

    assert run(main()) == set()


def test_resume_continues_steps_versions_and_groups():
    the_job = job(steps=8, checkpoint={"every": 3})
    first = FakeEndpoints(the_job, jitter=1)
    drive(the_job, first)
    state = first.saved[0]
    second = first.restarted(state, jitter=2)
    outcome, events = drive(the_job, second, state=state)
    assert (outcome.step, outcome.versions) == (8, {"trainer": 8})
    assert [m["step"] for m in metrics(events)] == [4, 5, 6, 7, 8]
    assert second.synced[0] == ("generator", 3), "samplers start from the restored weights"
    before = {group for step in first.trained[:3] for group in step["groups"]}
    after = [group for step in second.trained for group in step["groups"]]
    assert before.isdisjoint(after)
    assert sorted(before | set(after)) == list(range(32))


def test_a_resumed_run_says_what_its_first_evaluation_found():
    the_job = job(steps=4, checkpoint={"every": 1}, evals={"held_out": evaluation(2)})
    first = FakeEndpoints(the_job)
    _, events = drive(the_job, first)
    value = next(e["value"] for e in events if e["kind"] == "eval.end")
    state = json.loads(json.dumps(first.saved[-1]))
    _, resumed = drive(the_job, first.restarted(state), state=state)
    (start,) = [e for e in resumed if e["kind"] == "controller.start"]
    assert start["first"] == {"held_out": [0, value]}


def rows_by_group(events):
    return {e["group"]: e["row"] for e in events if e["kind"] == "group.drawn"}


def test_rows_that_are_passed_over_are_counted_and_leave_the_position_right():
    the_job = job(steps=8, checkpoint={"every": 3})
    first = FakeEndpoints(the_job, jitter=1, bad=lambda row: row % 3 == 1)
    _, events = drive(the_job, first)
    rows = rows_by_group(events)
    _, resumed = drive(the_job, first.restarted(first.saved[0], jitter=2), state=first.saved[0])
    assert rows_by_group(resumed).items() <= rows.items(), "a group keeps its row"
    assert sum(m["rows_dropped"] for m in metrics(events)) == max(rows.values()) + 1 - len(rows)


def test_a_repaired_data_file_goes_on_where_that_is_allowed():
    the_job = job(steps=4, checkpoint={"every": 1})
    slow = {"draw": 0.0}
    first = FakeEndpoints(
        the_job, latency=lambda op: slow.get(op, 5.0), bad=lambda row: row % 3 == 1
    )
    drive(the_job, first)
    state = first.saved[0]
    entries = state["ledgers"]["prompt"]["open"]
    assert any(entry["row"] > entry["before"] for entry in entries), "bad rows were passed over"
    mended = first.restarted(state, bad=lambda row: False)
    outcome, events = drive(the_job, mended, state=state, changed_data=True)
    assert outcome.step == 4
    assert "changed since the checkpoint" in next(
        event["text"] for event in events if event["kind"] == "warning"
    )


def test_a_record_that_waits_for_its_evaluation_survives_a_crash():
    from fake_endpoints import evaluation

    the_job = job(steps=4, checkpoint={"every": 2}, evals={"held_out": evaluation(2)})
    times = {"eval": 90.0}
    first = FakeEndpoints(the_job, latency=lambda op: times.get(op, 0.0))
    drive(the_job, first)
    state = first.saved[0]
    assert (state["step"], state["recorded"]) == (2, 1)
    _, events = drive(the_job, first.restarted(state), state=state)
    seen = {m["step"]: m["eval/held_out"] for m in metrics(events)}
    assert seen == {2: 2, 3: None, 4: 4}


def test_a_longer_run_keeps_the_last_evaluation_and_does_not_repeat_it():
    from fake_endpoints import evaluation

    short, long = (job(steps=n, evals={"held_out": evaluation(2)}) for n in (4, 6))
    first = FakeEndpoints(short)
    drive(short, first)
    state = first.saved[-1]
    _, events = drive(long, first.restarted(state), state=state)
    assert (state["recorded"], state["records"]) == (4, [])
    assert [e["step"] for e in events if e["kind"] == "eval.start"] == [6]
    assert {m["step"]: m["eval/held_out"] for m in metrics(events)} == {5: None, 6: 6}


def test_data_that_changed_since_the_checkpoint_is_refused():
    the_job = job(checkpoint={"every": 1})
    first = FakeEndpoints(the_job, jitter=1)
    drive(the_job, first)
    state = first.saved[0]
    state["ledgers"]["prompt"]["open"][0]["row"] += 1
    with pytest.raises(RunError, match="dataset data changed since the checkpoint"):
        drive(the_job, first.restarted(state), state=state)


def test_a_dropped_reward_is_told_with_its_message():
    the_job = job(steps=1)
    broken = failing(
        "score", RewardError("tests", "exit 3"), only=lambda about: about["sibling"] == 0
    )
    _, events = drive(the_job, FakeEndpoints(the_job, fail=broken))
    dropped = next(event for event in events if event["kind"] == "rollout.dropped")
    assert (dropped["reason"], dropped["message"]) == ("reward tests", "reward tests: exit 3")
    assert issubclass(RewardError, DropRollout)
