"""The controller's order of things: batches, versions, transfers, evaluations, checkpoints."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from fake_endpoints import (
    FakeEndpoints,
    drive,
    evaluation,
    job,
    math_nodes,
    metrics,
    node,
)

from forgedsl.lower import job as spec
from forgedsl_runtime.endpoints import RewardError, Score

CONTRACT = (
    "step", "policy_version", "reward_mean", "reward_std", "loss", "grad_norm", "entropy", "tokens",
    "tokens_per_s", "age_max", "age_mean", "step_s", "wall_s", "loss/clip_frac", "eval/held_out",
)  # fmt: skip


def spans(events, kind):
    """(start, end) events by span id, in order of start."""
    ends = {event["id"]: event for event in events if event["kind"] == f"{kind}.end"}
    return [(e, ends[e["id"]]) for e in events if e["kind"] == f"{kind}.start"]


def test_every_step_has_a_record_with_the_fields_of_the_contract():
    the_job = job(evals={"held_out": evaluation(4)})
    _, events = drive(the_job, FakeEndpoints(the_job, jitter=1))
    records = metrics(events)
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    for record in records:
        assert [name for name in CONTRACT if name not in record] == []
    assert records[3]["policy_version"] == 4
    assert records[3]["reward_mean"] == records[3]["reward/correct"]


def test_failed_scores_dead_groups_and_the_longest_call_are_in_the_records():
    the_job = job(steps=2)
    endpoints = FakeEndpoints(the_job, jitter=1)

    async def score(node, rollout, target):
        if rollout.sibling == 0:
            raise RewardError("correct", "no number")
        return Score(value=1.0, seconds={"correct": float(rollout.sibling)}, failed=("beside",))

    endpoints.score = score
    _, events = drive(the_job, endpoints)
    record = metrics(events)[0]
    assert record["failed/correct"] >= 3
    assert record["scores_failed"] == record["failed/correct"] + record["failed/beside"]
    assert record["groups_dead"] == record["groups"]
    assert record["reward_s/correct"] == 3.0


def test_weights_that_came_are_in_the_record_of_the_next_step_with_their_rate():
    the_job = job(steps=3)
    endpoints = FakeEndpoints(the_job, jitter=1)
    sync = endpoints.sync

    async def four_seconds(node, version):
        return replace(await sync(node, version), bytes=1000, seconds=4.0)

    endpoints.sync = four_seconds
    _, events = drive(the_job, endpoints)
    records = [{k: v for k, v in r.items() if k.startswith("sync_")} for r in metrics(events)]
    assert records[0] == {}, "the first weights came before the first step began"
    came = {"sync_bytes/generator": 1000, "sync_s/generator": 4.0}
    assert {**came, "sync_bytes_per_s/generator": 250.0} in records[1:]


def test_supervised_records_have_no_rewards_and_no_ages():
    nodes = [node("batch", "batches", target="data"), node("step", "step", "batch", target="t")]
    the_job = job(nodes, mode="sync", steps=None, epochs=1.0, prompts=1, credits=2)
    endpoints = FakeEndpoints(the_job, rows=5)
    outcome, events = drive(the_job, endpoints)
    assert (outcome.ended, outcome.step) == ("data", 5)
    record = metrics(events)[0]
    assert [record[f] for f in ("reward_mean", "reward_std", "age_max", "age_mean")] == [None] * 4
    assert record["loss"] == 0.5


def test_batches_repeat_exactly_with_strict_fifo_and_one_version():
    nodes = [each for each in math_nodes() if each.op != "sync"]
    runs = []
    for jitter in (1, 2):  # other latencies, other order of completion
        the_job = job(nodes, credits=12, steps=5)
        endpoints = FakeEndpoints(the_job, jitter=jitter)
        drive(the_job, endpoints)
        runs.append(endpoints.trained)
    assert runs[0] == runs[1]


def test_synchronous_batches_repeat_exactly_and_have_age_zero():
    runs = []
    for jitter in (1, 2):
        the_job = job(mode="sync", credits=4, steps=5)
        endpoints = FakeEndpoints(the_job, jitter=jitter)
        drive(the_job, endpoints)
        runs.append(endpoints.trained)
    assert runs[0] == runs[1]
    assert {age for step in runs[0] for age in step["ages"]} == {0}


def test_a_synchronous_run_does_one_thing_at_a_time():
    the_job = job(mode="sync", credits=4, steps=4, evals={"held_out": evaluation(1)})
    _, events = drive(the_job, FakeEndpoints(the_job, latency=lambda op: 1.0))
    phases = [e["kind"] for e in events if e["kind"].startswith(("step.", "sync.", "eval."))]
    turn = ["step.start", "step.end", "sync.start", "sync.end", "eval.start", "eval.end"]
    assert phases == turn[2:] + 4 * turn


def test_an_asynchronous_run_samples_while_it_trains_and_syncs():
    the_job = job(credits=8, steps=6)
    times = {"step": 5.0, "sync": 3.0, "sample": 4.0}
    endpoints = FakeEndpoints(the_job, latency=lambda op: times.get(op, 0.0))
    _, events = drive(the_job, endpoints)
    syncs, steps = spans(events, "sync"), spans(events, "step")
    second_step = events[order_of(events, steps[1][0]) : order_of(events, steps[1][1])]
    assert {"sample.start", "sync.end"} <= {event["kind"] for event in second_step}
    assert syncs[1][0]["version"] == 1
    assert max(max(step["ages"]) for step in endpoints.trained) == 1


def order_of(events, event):
    return events.index(event)


def test_rewards_start_when_their_rollout_ends_not_when_the_group_does():
    the_job = job(steps=1)
    slow = iter([9.0] + [1.0] * 1000)
    latency = {"sample": lambda: next(slow)}
    endpoints = FakeEndpoints(the_job, latency=lambda op: latency.get(op, float)())
    _, events = drive(the_job, endpoints)
    first_score = next(e for e in events if e["kind"] == "score.start" and e["group"] == 0)
    samples = [e for e in events if e["kind"] == "sample.end" and e["group"] == 0]
    assert order_of(events, first_score) < order_of(events, samples[-1])


def test_slots_bound_the_groups_a_node_works_on():
    nodes = [
        each.model_copy(update={"slots": 2 if each.name == "ref_lp" else 64})
        for each in math_nodes()
    ]
    the_job = job(nodes, credits=16, prompts=4)
    endpoints = FakeEndpoints(the_job, latency=lambda op: 0.0 if op == "draw" else 1.0)
    drive(the_job, endpoints)
    assert endpoints.peak["ref_lp"] == 2
    assert endpoints.peak["rollout"] == 16


def test_credits_return_only_after_the_pull():
    the_job = job(credits=8, steps=3)
    times = {"sync": 100.0}
    _, events = drive(the_job, FakeEndpoints(the_job, latency=lambda op: times.get(op, 0.0)))
    kinds = [e["kind"] for e in events if e["kind"] in ("group.drawn", "sync.end", "step.end")]
    second_pull = [i for i, kind in enumerate(kinds) if kind == "sync.end"][1]
    assert kinds[:second_pull].count("group.drawn") == 8


def test_evaluations_pin_their_version_and_land_in_its_record():
    the_job = job(steps=7, evals={"held_out": evaluation(3)})
    times = {"eval": 60.0, "sync": 1.0, "step": 1.0}
    endpoints = FakeEndpoints(the_job, latency=lambda op: times.get(op, 0.1))
    _, events = drive(the_job, endpoints)
    seen = {m["step"]: (m["eval/held_out"], m["eval_version/held_out"]) for m in metrics(events)}
    nothing = (None, None)
    # the fake's score of an evaluation is the version its sampler serves
    assert seen == {1: (0, 0), 2: nothing, 3: (3, 3), 4: nothing, 5: nothing, 6: (6, 6), 7: (7, 7)}


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_losses_are_measured_between_steps_under_the_weights_of_their_record(mode):
    nll = spec.Eval(dataset="data", service="trainer", loss="nll", every=3)
    the_job = job(steps=7, mode=mode, credits=8 if mode == "async" else 4, evals={"nll": nll})
    times = {"eval loss": 60.0, "sync": 1.0, "step": 1.0}
    endpoints = FakeEndpoints(the_job, latency=lambda op: times.get(op, 0.1))
    _, events = drive(the_job, endpoints)
    seen = {m["step"]: (m["eval/nll"], m["eval_version/nll"]) for m in metrics(events)}
    nothing = (None, None)
    assert seen == {1: (10, 0), 2: nothing, 3: (7, 3), 4: nothing, 5: nothing, 6: (4, 6), 7: (3, 7)}


def test_the_last_evaluation_sees_the_final_weights_though_no_sync_is_due():
    nodes = [*math_nodes()[:-1], node("sync", "sync", target="trainer", to="generator", every=4)]
    the_job = job(nodes, steps=6, credits=8, evals={"held_out": evaluation(100)})
    endpoints = FakeEndpoints(the_job, jitter=3)
    _, events = drive(the_job, endpoints)
    assert [version for _, version in endpoints.synced] == [0, 4, 6]
    assert metrics(events)[-1]["eval_version/held_out"] == 6


def test_checkpoints_come_every_n_steps_and_at_the_end():
    the_job = job(steps=5, checkpoint={"every": 2})
    endpoints = FakeEndpoints(the_job, jitter=2)
    outcome, _ = drive(the_job, endpoints)
    assert [state["step"] for state in endpoints.saved] == [2, 4, 5]
    assert outcome.checkpoint == "checkpoints/step-5"


def test_the_last_batch_at_the_end_of_the_data_is_smaller():
    the_job = job(steps=None, epochs=1.0)
    endpoints = FakeEndpoints(the_job, rows=10, jitter=4)
    outcome, _ = drive(the_job, endpoints)
    assert outcome.ended == "data"
    assert [len(step["groups"]) for step in endpoints.trained] == [4, 4, 2]


def test_filtered_groups_are_refilled_and_counted():
    nodes = math_nodes()
    nodes = [
        *nodes[:5],
        node("mask", "mask", "score", target="most"),
        node("kept", "keep", "rollout", "mask"),
        node("batch", "replay", "kept", "adv=adv", "ref=ref_lp"),
        *nodes[6:],
    ]
    the_job = job(nodes, steps=6)
    endpoints = FakeEndpoints(the_job, jitter=5)
    _, events = drive(the_job, endpoints)
    dropped = [event for event in events if event["kind"] == "group.dropped"]
    assert {event["reason"] for event in dropped} == {"filter most"}
    assert [len(step["groups"]) for step in endpoints.trained] == [4] * 6
    assert sum(m["groups_dropped"] for m in metrics(events)) >= len(dropped) - 8
    assert any("dropped/filter most" in m for m in metrics(events))


def test_named_fields_reach_the_samples():
    nodes = [
        *math_nodes()[:5],
        node("prox", "logprobs", "rollout", target="trainer", at_step=True),
        node("batch", "replay", "rollout", "adv=adv", "ref=ref_lp", "proximal=prox"),
        *math_nodes()[6:],
    ]
    the_job = job(nodes, steps=1)
    endpoints = FakeEndpoints(the_job)
    _, events = drive(the_job, endpoints)
    sample = endpoints.trained[0]["samples"][0]
    assert sorted(sample["token_fields"]) == ["behavior", "proximal", "ref"]
    assert sorted(sample["sequence_fields"]) == ["adv", "num_steps", "num_tokens", "truncated"]
    assert len(sample["token_fields"]["ref"]) == len(sample["token_ids"]) - sample["num_prompt"]
    order = [(e["kind"], e.get("node")) for e in events]
    assert order.index(("logprobs.end", "prox")) < order.index(("step.start", None))


def test_a_part_of_a_rollout_is_a_field():
    nodes = list(math_nodes(reference=False))
    at = next(i for i, each in enumerate(nodes) if each.op == "replay")
    nodes[at] = node("batch", "replay", "rollout", "adv=adv", "size=rollout.num_tokens")
    endpoints = FakeEndpoints(the_job := job(nodes, steps=1))
    drive(the_job, endpoints)
    (step,) = endpoints.trained
    assert len(step["samples"]) == 16
    for sample in step["samples"]:
        assert sample["sequence_fields"]["size"] == sample["sequence_fields"]["num_tokens"]


def test_a_batch_level_function_sees_the_whole_batch():
    nodes = [
        each if each.name != "adv" else each.model_copy(update={"level": "batch"})
        for each in math_nodes()
    ]
    the_job = job(nodes, steps=2)
    endpoints = FakeEndpoints(the_job)
    drive(the_job, endpoints)
    for step in endpoints.trained:
        advantages = [sample["sequence_fields"]["adv"] for sample in step["samples"]]
        mean = sum(step["rewards"]) / len(step["rewards"])
        assert advantages == pytest.approx([reward - mean for reward in step["rewards"]])
    assert endpoints.calls["call"] == 2
    assert endpoints.groups == [[n for n in range(4) for _ in range(4)]] * 2


def test_pairs_are_trained_chosen_before_rejected():
    nodes = [
        node("pair", "pairs", target="data", count=2),
        node("ref", "logprobs", "pair", target="reference"),
        node("batch", "replay", "pair", "ref=ref"),
        node("step", "step", "batch", target="trainer"),
    ]
    the_job = job(nodes, mode="sync", prompts=2, credits=4, steps=3)
    endpoints = FakeEndpoints(the_job)
    drive(the_job, endpoints)
    rows = [sample["token_ids"][0] for sample in endpoints.trained[0]["samples"]]
    assert rows == [0, 0, 1, 1]
    assert list(endpoints.trained[0]["samples"][0]["token_fields"]) == ["ref"]


def test_two_draws_are_merged_and_a_third_has_a_loss_of_its_own():
    nodes = [
        node("a", "draw", target="data", count=3),
        node("b", "draw", target="more", count=1),
        node("shown", "batches", target="demos"),
        node("one", "sample", "a", target="generator", n=2),
        node("two", "sample", "b", target="other", n=4),
        node("score_one", "score", "one", target="rubric"),
        node("score_two", "score", "two", target="rubric"),
        node("adv_one", "call", "r=score_one", target="centered"),
        node("adv_two", "call", "r=score_two", target="centered"),
        node("batch_one", "replay", "one", "adv=adv_one"),
        node("batch_two", "replay", "two", "adv=adv_two"),
        node("step", "step", "batch_one", "batch_two", "shown", target="trainer", loss="x",
             beside=("", "y")),
        node("sync", "sync", target="trainer", to="generator"),
        node("sync2", "sync", target="trainer", to="other", every=2),
    ]  # fmt: skip
    the_job = job(nodes, prompts=5, credits=10, steps=4)
    endpoints = FakeEndpoints(the_job, jitter=3)
    _, events = drive(the_job, endpoints)
    for step in endpoints.trained:
        sizes = [sum(s["num_prompt"] == 2 for s in step["samples"]), len(step["samples"])]
        assert sizes == [10, 10]
        assert step["beside"] == [("y", 1)]
        assert len(step["groups"]) == 5
        assert max(step["ages"]) <= 2
    assert metrics(events)[0]["sequences"] == 11


def test_a_dropped_completion_leaves_its_group_smaller():
    from fake_endpoints import DropRollout

    def fail(op, about):
        if op == "score" and about["sibling"] == 2:
            raise DropRollout("bad reward")

    the_job = job(steps=2)
    endpoints = FakeEndpoints(the_job, fail=fail)
    _, events = drive(the_job, endpoints)
    assert [len(step["samples"]) for step in endpoints.trained] == [12, 12]
    assert metrics(events)[0]["rollouts_dropped"] >= 4


def test_a_completion_has_one_task_from_its_prompt_to_its_score():
    the_job = job(math_nodes(4, 16), prompts=4, credits=8, steps=4)
    tasks = []

    def count(loop, coroutine, **more):
        tasks.append(coroutine)
        return asyncio.Task(coroutine, loop=loop, **more)

    endpoints = FakeEndpoints(the_job, jitter=1)
    drive(
        the_job, endpoints,
        prepare=lambda controller: asyncio.get_running_loop().set_task_factory(count),
    )  # fmt: skip
    assert endpoints.calls["sample"] == endpoints.calls["score"] == 4 * 4 * 16
    assert len(tasks) < 1.3 * endpoints.calls["sample"]


def test_a_group_that_waits_is_looked_at_once_for_each_version(monkeypatch):
    looks = Counter()

    def is_stale(guard, group, age, origin):
        looks[group, age] += 1
        return False

    monkeypatch.setattr("forgedsl_runtime.guards.AgeGuard.is_stale", is_stale)
    the_job = job(math_nodes(24, 2), prompts=24, credits=48, steps=3)
    drive(the_job, FakeEndpoints(the_job, jitter=1))
    assert len(looks) >= 72
    assert set(looks.values()) == {1}


def test_siblings_of_two_samplers_have_seeds_of_their_own():
    nodes = [
        node("prompt", "draw", target="data", count=2),
        node("a", "sample", "prompt", target="generator", n=2),
        node("b", "sample", "prompt", target="generator", n=3),
        node("batch", "replay", "rollout=a", "rollout=b"),
        node("step", "step", "batch", target="trainer"),
        node("sync", "sync", target="trainer", to="generator"),
    ]
    the_job = job(nodes, prompts=2, credits=4, steps=1)
    seen = []
    endpoints = FakeEndpoints(the_job, fail=lambda op, about: seen.append(about.get("sibling")))
    drive(the_job, endpoints)
    assert sorted(s for s in seen if s is not None)[:10:2] == [0, 1, 2, 3, 4]
    assert len({str(s["token_ids"]) for s in endpoints.trained[0]["samples"]}) > 6


def test_no_algorithm_is_named_in_the_executor():
    import re
    from pathlib import Path

    import forgedsl_runtime.controller as package

    folder = Path(package.__file__).parent
    text = "".join(path.read_text().lower() for path in sorted(folder.glob("*.py")))
    names = "grpo|dapo|ppo|gspo|cispo|sapo|reinforce|rloo|dpo"
    assert re.findall(rf"\b({names})\b", text) == []


def test_a_judge_that_compares_is_asked_when_all_siblings_are_there():
    nodes = [n.model_copy(update={"compares": n.op == "score"}) for n in math_nodes(n=4)]
    the_job = job(nodes, steps=2)
    endpoints, seen = FakeEndpoints(the_job, jitter=1), {}

    async def score(node, rollout, target):
        assert endpoints.calls["sample"] >= 4
        seen.setdefault(rollout.group, {})[rollout.sibling] = (rollout.text, rollout.others)
        return Score(value=float(rollout.sibling))

    endpoints.score = score
    drive(the_job, endpoints)
    group = seen[0]
    texts = [group[sibling][0] for sibling in range(4)]
    for sibling, (_, others) in group.items():
        assert list(others) == [text for i, text in enumerate(texts) if i != sibling]
