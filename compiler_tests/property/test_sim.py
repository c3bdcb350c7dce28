"""The simulator against what the plan proved: age bounds, liveness, and nothing that hangs."""

import os
import random
from collections import Counter

import pytest
from fake_endpoints import evaluation, job, math_nodes
from forge_texts import loaded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_executor import build, cases
from test_graph_flows import flows

from forgedsl.graph.dataflow import build as build_graph
from forgedsl.lower import job as spec
from forgedsl.lower.build import lower
from forgedsl.plan.credits import Credits
from forgedsl.plan.liveness import net_of
from forgedsl.plan.staleness import bound
from forgedsl.sim.inject import parse
from forgedsl.sim.latency import Control, Data, Engine, Filter, Latencies, Reward, Titan
from forgedsl.sim.values import Dist, constant
from forgedsl_runtime.controller.flow import analyse
from forgedsl_runtime.sim.simulation import simulate

DEEP = os.environ.get("FORGE_DEEP") == "1"
NUM_SCHEDULES = 10_000 if DEEP else 200
NUM_GRAPHS = 1_000 if DEEP else 40


REWARDS = {
    "rewards": {"right": spec.Reward(kind="python", function="right", procs=2)},
    "rubrics": {"rubric": spec.Rubric(function="f", rewards=("right",), on_truncated=None)},
}


def latencies(the_job, rng, *, keep=1.0):
    """Long-tailed completions, a trainer that is sometimes fast and sometimes slow."""
    engine = Engine(
        tokens=Dist(median=20.0, sigma=rng.uniform(0.2, 2.5), most=4000.0), prompt=constant(8.0),
        decode=0.01, decode_sequence=rng.choice([0.0, 1e-3]), prefill=1e-4,
        max_running=rng.choice([4, 64]), load=rng.uniform(0.0, 0.2), start=30.0,
        like=rng.choice([0.0, 0.7]),
    )  # fmt: skip
    titan = Titan(
        step=rng.choice([0.001, 0.1, 1.0]), token=1e-6, logprobs=0.01, logprobs_token=1e-6,
        publish=rng.uniform(0.0, 0.1), save=0.1,
    )  # fmt: skip
    engines = {node.target for node in the_job.nodes if node.op == "sample"}
    engines |= {spec.service for spec in the_job.evals.values()}
    titans = {node.target for node in the_job.nodes if node.op in ("step", "logprobs")}
    masks = {node.target for node in the_job.nodes if node.op == "mask"}
    slow = Dist(median=0.01, sigma=1.0)
    return Latencies(
        engines=dict.fromkeys(engines, engine),
        titans=dict.fromkeys(titans, titan),
        rewards={name: Reward(seconds=slow) for name in the_job.rewards},
        filters={name: Filter(keep=keep) for name in masks},
        data={"data": Data(rows=50)},
        control=Control(rollout=rng.choice([0.0, 1e-4])),
    )


def planned(rng):
    """A random schedule, and a job that runs by it."""
    plan = bound(
        prompts=rng.randint(1, 4),
        lag=rng.randint(0, 3),
        fraction=rng.choice([0.0, 0.3, 0.7, 1.0]),
        every=rng.choice([1, 1, 1, 2]),
    )
    nodes = [
        each.model_copy(update={"every": plan.every, "overlap": rng.random() < 0.7})
        if each.op == "sync"
        else each
        for each in math_nodes(plan.prompts, rng.randint(1, 2), reference=False)
    ]
    the_job = job(
        nodes, mode="async" if plan.lag else "sync", prompts=plan.prompts, credits=plan.credits,
        window=plan.window, age_bound=plan.age_bound, steps=30, **REWARDS,
    )  # fmt: skip
    return plan, the_job


@pytest.mark.full
def test_the_worst_age_keeps_the_bound_and_mostly_reaches_it():
    rng = random.Random(23)
    reached = 0
    for seed in range(NUM_SCHEDULES):
        plan, the_job = planned(rng)
        result = simulate(the_job, latencies(the_job, rng), steps=None, seed=seed)
        assert result.ended == "steps"
        assert result.worst_age <= plan.age_bound, (plan, seed)
        reached += result.worst_age == plan.age_bound
    assert reached > NUM_SCHEDULES / 2


@settings(max_examples=NUM_GRAPHS * 2, deadline=None, derandomize=True)
@given(cases, st.sampled_from([0.0, 0.05, 0.3]))
def test_no_graph_hangs_whatever_fails(case, chance):
    nodes, prompts = build(case.shape, case.prompts)
    synced = [each.every for each in nodes if each.op == "sync"]
    lag = 0 if case.mode == "sync" and synced else case.lag
    plan = bound(prompts=prompts, lag=lag, fraction=case.fraction, every=max(synced, default=1))
    evals = {"held_out": evaluation(2, "generator0")} if case.evals else {}
    the_job = job(
        nodes, mode=case.mode, prompts=prompts, credits=plan.credits, window=plan.window,
        age_bound=plan.age_bound, steps=case.steps, epochs=None if case.steps else 1.0,
        evals=evals, checkpoint={"every": case.checkpoint}, starve_timeout=1e5,
        **REWARDS,
    )  # fmt: skip
    rng = random.Random(case.seed)
    model = latencies(the_job, rng, keep=0.6)
    faults = [parse(f"fail:{name}={chance}") for name in model.engines]
    faults += [parse(f"kill:{name}@step=2") for name in model.engines]
    result = simulate(the_job, model, steps=None, seed=case.seed, faults=faults)
    assert result.ended == ("steps" if case.steps else "data")
    assert result.worst_age <= the_job.schedule.age_bound


class Line:
    """The groups of a source, which pass its nodes in order and at once, where there is room."""

    def __init__(self, flow, source, rooms, schedule):
        self.nodes = (source.node, *source.nodes)
        places = {each.name: i for i, each in enumerate(self.nodes)}
        mine = [edge for edge in flow.edges.values() if edge.root == source.node.name]
        ends = {i.edge for streams in flow.replays.values() for s in streams
                for i in (s.input, *s.fields)}  # fmt: skip
        ends |= {i.edge for edge in mine if edge.in_batch for i in edge.node.inputs}
        self.inputs = [{places[given.edge] for given in each.inputs} for each in self.nodes]
        self.readers = [
            [j for j, read in enumerate(self.inputs) if i in read] for i in places.values()
        ]
        self.to_take = [n.name in ends or not self.readers[places[n.name]] for n in self.nodes]
        self.rooms = [rooms[each.name] for each in self.nodes]
        self.begun, self.taken, self.finished = [0] * len(self.nodes), 0, 0
        self.every = max((sync.every for sync in source.syncs), default=None)
        share = source.quota
        self.credits = Credits(
            share, max(share, schedule.credits * share // schedule.prompts),
            max(1, schedule.window * share // schedule.prompts), self.every,
        )  # fmt: skip

    def has_room(self, i):
        gone = [self.begun[j] for j in self.readers[i]] + [self.taken] * self.to_take[i]
        return all(self.begun[i] - count < self.rooms[i] for count in gone)

    def moves(self):
        before = sum(self.begun) + self.finished
        for i, read in enumerate(self.inputs):
            there = all(self.begun[j] > self.begun[i] for j in read)
            if there and self.has_room(i) and (i or self.credits.admit() is not None):
                self.begun[i] += 1
        while self.finished < min(self.begun):
            self.credits.finalize(self.finished)
            self.finished += 1
        return sum(self.begun) + self.finished > before

    def step(self, version):
        groups = self.credits.take()
        self.taken += len(groups)
        self.credits.stepped(groups, version)
        if self.every is not None and version % self.every == 0:
            self.credits.pulled(version)


def goes_on(the_job, rooms, steps=6):
    """Whether this many steps are done where edges hold no more groups than `rooms`."""
    flow, version = analyse(the_job), 0
    lines = [Line(flow, source, rooms, the_job.schedule) for source in flow.sources]
    while version < steps:
        moved = sum(line.moves() for line in lines) > 0  # all of them, not up to the first
        if all(line.credits.ready() for line in lines):
            version, moved = version + 1, True
            for line in lines:
                line.step(version)
        if not moved:
            return False
    return True


@pytest.mark.full
def test_what_the_liveness_pass_refuses_hangs_and_nothing_else():
    verdicts = Counter()

    @settings(
        max_examples=NUM_GRAPHS, deadline=None, derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    @given(flows(), st.integers(0, 10_000))
    def compare(text, seed):
        found = loaded(text)
        graph = build_graph(found.program, reporter=found.reporter)
        made = lower(found.program, reporter=found.reporter, sources=found.sources, base_dir=None)
        schedule, rng = made.plan.schedule, random.Random(seed)
        credits, prompts = schedule.staleness.credits, schedule.staleness.prompts
        sizes = [credits, prompts, max(1, prompts - 1), rng.randint(1, credits)]
        for _ in range(4):
            rooms = {name: rng.choice(sizes) for name in made.plan.capacities}
            live = not net_of(graph, schedule, rooms).stuck()
            verdicts[live] += 1
            assert goes_on(made.job, rooms) == live, rooms
        assert simulate(made.job, latencies(made.job, rng), steps=6).ended == "steps"

    compare()
    assert min(verdicts[True], verdicts[False]) > NUM_GRAPHS / 2
