"""Random legal graphs through the one controller: none hangs, and the promises hold on each.

A graph is drawn as a handful of switches (samplers, judge, rewards, filters, batch-level values,
supervised sources, ...) and turned into nodes; latencies, failures and schedules are drawn too.
Time is virtual, so a hang is an error at once.
"""

import asyncio
import os
import random
from dataclasses import dataclass

import pytest
from fake_endpoints import (
    DropRollout,
    FakeEndpoints,
    RolloutError,
    drive,
    evaluation,
    job,
    metrics,
    node,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from forgedsl.plan.staleness import bound

EXAMPLES = 1_000 if os.environ.get("FORGE_DEEP") == "1" else 200
PATIENT = {"interrupt_seconds": 1e6}


@dataclass(frozen=True)
class Shape:
    """The switches of a graph."""

    source: str
    samplers: int
    n: int
    frozen: bool
    judge: bool
    reference: bool
    proximal: bool
    rewards: int
    filters: int
    batch_level: bool
    second_source: bool
    slots: int
    every: int
    overlap: bool


@dataclass(frozen=True)
class Case:
    shape: Shape
    mode: str
    prompts: int
    lag: int
    fraction: float
    steps: int | None
    rows: int | None
    evals: bool
    checkpoint: int | None
    seed: int
    failures: float


def flags():
    return st.booleans()


shapes = st.builds(
    Shape,
    source=st.sampled_from(["draw", "draw", "draw", "draw", "batches", "pairs"]),
    samplers=st.integers(1, 2),
    n=st.integers(1, 4),
    frozen=flags(),
    judge=flags(),
    reference=flags(),
    proximal=flags(),
    rewards=st.integers(0, 2),
    filters=st.integers(0, 2),
    batch_level=flags(),
    second_source=flags(),
    slots=st.sampled_from([1, 2, 64]),
    every=st.sampled_from([1, 1, 2, 3]),
    overlap=flags(),
)
lengths = st.sampled_from([(5, None), (3, 400), (None, 23), (None, 8)])
cases = st.builds(
    lambda length, **more: Case(steps=length[0], rows=length[1], **more),
    length=lengths,
    shape=shapes,
    mode=st.sampled_from(["async", "async", "sync"]),
    prompts=st.integers(1, 4),
    lag=st.integers(1, 3),
    fraction=st.sampled_from([0.0, 0.3, 1.0]),
    evals=flags(),
    checkpoint=st.sampled_from([None, 1, 2]),
    seed=st.integers(0, 10_000),
    failures=st.sampled_from([0.0, 0.0, 0.05]),
)


def rollout_nodes(shape, prompt, tag, sampler):
    """One sampler with what hangs on it; the nodes and the inputs of the replay."""
    name, slots = f"rollout{tag}", {"slots": shape.slots}
    nodes = [node(name, "sample", prompt, target=sampler, n=shape.n, **slots)]
    given, scored = name, name
    filters = ("most", "mixed" if shape.n > 1 else "most")
    fields = []
    if shape.judge:
        nodes.append(node(f"verdict{tag}", "sample", name, target="judge", **slots))
        scored = f"verdict{tag}"
    for i in range(shape.rewards):
        read = scored if i == 0 else name
        nodes.append(
            node(f"score{tag}{i}", "score", read, f"{prompt}.target", target="rubric", **slots)
        )
    for i in range(shape.filters if shape.rewards else 0):
        nodes.append(node(f"mask{tag}{i}", "mask", f"score{tag}0", target=filters[i], **slots))
        nodes.append(node(f"kept{tag}{i}", "keep", given, f"mask{tag}{i}", **slots))
        given = f"kept{tag}{i}"
    if shape.rewards:
        scores = [f"s{i}=score{tag}{i}" for i in range(shape.rewards)]
        level = {"level": "batch"} if shape.batch_level else {}
        nodes.append(node(f"adv{tag}", "call", *scores, target="centered", **slots, **level))
        fields.append(f"adv=adv{tag}")
    if shape.reference:
        nodes.append(node(f"ref{tag}", "logprobs", given, target="reference", **slots))
        fields.append(f"ref=ref{tag}")
    if shape.proximal:
        nodes.append(node(f"prox{tag}", "logprobs", given, target="trainer", at_step=True))
        fields.append(f"proximal=prox{tag}")
    return nodes, [f"rollout={given}", *fields]


def build(shape, prompts):
    """The nodes of a graph, and the groups per step of all its sources."""
    end = [node("step", "step", "batch", target="trainer", loss="loss")]
    if shape.source == "batches":
        return [node("batch", "batches", target="data"), *end], 1
    syncs = [
        node(f"sync{i}", "sync", target="trainer", to=f"generator{i}", every=shape.every,
             overlap=shape.overlap)
        for i in range(2)
    ]  # fmt: skip
    if shape.source == "pairs":
        reference = [node("ref", "logprobs", "pair", target="reference", slots=shape.slots)]
        nodes = [node("pair", "pairs", target="data", count=prompts)]
        nodes += reference if shape.reference else []
        fields = ["ref=ref"] if shape.reference else []
        return [*nodes, node("batch", "replay", "pair", *fields), *end], prompts
    nodes, inputs = [], []
    sources = ["prompt", "other"] if shape.second_source else ["prompt"]
    for s, source in enumerate(sources):
        nodes.append(node(source, "draw", target="data", count=prompts))
        for i in range(shape.samplers):
            sampler = "frozen" if shape.frozen and i else f"generator{i}"
            more, reads = rollout_nodes(shape, source, f"_{s}{i}", sampler)
            nodes += more
            inputs += reads
    used = {each.target for each in nodes if each.op == "sample"}
    return (
        [*nodes, node("batch", "replay", *inputs), *end, *(s for s in syncs if s.to in used)],
        prompts * len(sources),
    )


def job_of(case):
    nodes, prompts = build(case.shape, case.prompts)
    synced = [each.every for each in nodes if each.op == "sync"]
    lag = 0 if case.mode == "sync" and synced else case.lag
    plan = bound(prompts=prompts, lag=lag, fraction=case.fraction, every=max(synced, default=1))
    evals = {"held_out": evaluation(2, "generator0")} if case.evals else {}
    evals = {
        name: spec.model_copy(update={"service": "generator0"}) for name, spec in evals.items()
    }
    return job(
        nodes, mode=case.mode, prompts=prompts, credits=plan.credits, window=plan.window,
        age_bound=plan.age_bound, max_policy_age=plan.age_bound, steps=case.steps, evals=evals,
        epochs=None if case.steps else 1.0, starve_timeout=1e4,
        checkpoint={"every": case.checkpoint},
    )  # fmt: skip


def services(case, the_job, **more):
    chance = random.Random(case.seed)

    def fail(op, about):
        if op in ("sample", "score") and chance.random() < case.failures:
            raise RolloutError("broken") if op == "sample" else DropRollout("bad reward")

    return FakeEndpoints(the_job, rows=case.rows, jitter=case.seed, fail=fail, **more)


def groups_of(run):
    """Group ids that a run trained on, in order."""
    return [group for step in run.trained for group in step["groups"]]


def check(case, the_job, endpoints, outcome, events):
    trained = groups_of(endpoints)
    assert len(trained) == len(set(trained)), "a group was trained on twice"
    assert all(step["samples"] for step in endpoints.trained)
    ages = [age for step in endpoints.trained for age in step["ages"]]
    assert max(ages, default=0) <= the_job.schedule.age_bound
    for each in the_job.nodes:
        assert endpoints.peak[each.name] <= each.slots or each.at_step
    assert [m["step"] for m in metrics(events)] == list(range(1, outcome.step + 1))
    dropped = [e["group"] for e in events if e["kind"] == "group.dropped"]
    drawn = [e["group"] for e in events if e["kind"] == "group.drawn"]
    assert set(trained).isdisjoint(dropped)
    assert set(trained) | set(dropped) <= set(drawn)
    return set(drawn) - set(trained) - set(dropped)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
@given(cases)
def test_random_graphs_run_to_their_end(case):
    the_job = job_of(case)
    endpoints = services(case, the_job)
    outcome, events = drive(the_job, endpoints)
    left = check(case, the_job, endpoints, outcome, events)
    assert outcome.ended == ("steps" if case.steps else "data")
    assert endpoints.saved[-1]["step"] == outcome.step
    if case.steps is None and len([n for n in the_job.nodes if n.op == "draw"]) < 2:
        assert not left, "every group is trained on or dropped"


def interrupted(case, the_job, at):
    """A run that is interrupted after `at` seconds, and its continuation."""
    first = services(case, the_job)

    def plan_interrupt(controller):
        asyncio.get_running_loop().call_later(at, controller.interrupt)

    before, seen = drive(the_job, first, prepare=plan_interrupt, **PATIENT)
    second = first.restarted(first.saved[-1], jitter=case.seed + 1)
    after, more = drive(the_job, second, state=first.saved[-1])
    return before, first, after, second, [*seen, *more]


def rows_by_group(events):
    """Where in its dataset each drawn group begins; drawn twice it must be the same row."""
    found = {}
    for event in events:
        if event["kind"] == "group.drawn" and event["row"] is not None:
            place = (event["source"], event["row"])
            assert found.setdefault(event["group"], place) == place
    return found


@settings(max_examples=EXAMPLES // 2, deadline=None, derandomize=True)
@given(cases, st.floats(0.1, 200.0))
def test_resumed_runs_train_on_every_group_exactly_once(case, at):
    the_job = job_of(case)
    before, first, after, second, events = interrupted(case, the_job, at)
    trained = groups_of(first) + groups_of(second)
    assert len(trained) == len(set(trained))
    rows = rows_by_group(events)
    assert len(set(rows.values())) == len(rows), "no row is in two groups"
    assert after.step >= before.step
    if case.steps is not None:
        assert len(first.trained) + len(second.trained) == case.steps
    elif case.failures == 0 and (case.shape.filters == 0 or case.shape.rewards == 0):
        sources = len([n for n in the_job.nodes if n.op in ("draw", "batches", "pairs")])
        assert len(trained) == case.rows * sources


@pytest.mark.parametrize("at", [0.0, 3.0, 11.0, 47.0, 160.0])
def test_a_resumed_synchronous_run_trains_on_the_same_batches(at):
    shape = Shape(
        source="draw", samplers=2, n=3, frozen=False, judge=True, reference=True, proximal=True,
        rewards=2, filters=1, batch_level=True, second_source=True, slots=2, every=1, overlap=True,
    )  # fmt: skip
    case = Case(
        shape=shape, mode="sync", prompts=3, lag=1, fraction=0.0, steps=6, rows=None, evals=True,
        checkpoint=None, seed=5, failures=0.0,
    )  # fmt: skip
    the_job = job_of(case)
    whole = services(case, the_job)
    drive(the_job, whole)
    _, first, _, second, _ = interrupted(case, the_job, at)
    assert first.trained + second.trained == whole.trained
