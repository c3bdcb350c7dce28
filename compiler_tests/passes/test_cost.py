"""Cost of a step, the bottleneck, dead groups, and the liveness of credit cycles."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from big_flow import big_flow
from forge_texts import GRPO, SFT, changed, graph_of, loaded, plan_of

from forgedsl.families.registry import family
from forgedsl.graph.dataflow import build
from forgedsl.plan.advised import SHORTER
from forgedsl.plan.cost import (
    Cost,
    DeadGroups,
    pipeline_slowdown,
    split_seconds,
    time_text,
)
from forgedsl.plan.liveness import Net, Transition, check_liveness, credit_loops, exits, net_of
from forgedsl.plan.plan import advice, plan
from forgedsl.plan.sampling import in_turns
from forgedsl.plan.sizes import filled_tokens
from forgedsl.plan.stage import Stage
from forgedsl.plan.text import render_plan
from forgedsl.plan.timeline import timeline
from forgedsl.sizes.devices import LINK, REDUCE, gpu_rates
from forgedsl.sizes.params import forward_flops, stage_layers

FILTERED = changed(
    GRPO,
    ("  batch   = replay(rollout", "  kept = rollout.keep(mixed(score))\n  batch = replay(kept"),
    ("max_policy_age = 1 }", "max_policy_age = 1, starve_timeout = 10min }"),
)

SHARED = ("reference.device=gpu", "reference.procs=4", "colocate=[trainer, reference]")
"""the reference on the trainer's GPUs"""


def stage(made, node):
    return next(s for s in made.cost.stages if s.node == node)


def test_tokens_and_flops_of_a_step():
    made, _ = plan_of(GRPO)
    tokens = 16 * 8 * (512 + 1024)
    assert stage(made, "step").tokens == stage(made, "ref_lp").tokens == tokens
    flops = 3 * tokens * forward_flops(family("qwen3").sizes["1.7B"], 512 + 1024)
    assert stage(made, "step").flops == pytest.approx(flops)


@pytest.mark.parametrize("running", [64, 256, 512])
def test_an_engine_decodes_as_many_completions_at_once_as_it_is_given(running):
    text = changed(GRPO, ("draw(16)", "draw(128)"))
    made, _ = plan_of(text, f"generator.engine.max_running={running}")
    assert f", {running} at once" in stage(made, "rollout").detail


@pytest.mark.parametrize(
    ("count", "width", "seconds"),
    [(64, 64, 74), (64, 32, 2 * 42), (64, 31, 2 * 41 + 12), (64, 128, 138 / 2)],
)
def test_the_last_completions_are_fewer_and_take_less_time(count, width, seconds):
    """A step of n completions takes 10 + n; one with those of other batches is divided."""
    assert in_turns(lambda n: 10.0 + n, count, width) == seconds


def test_a_plan_takes_turns_of_completions_into_account():
    """64 completions on each replica, in one turn, two and three."""
    one, two, three = (
        stage(plan_of(GRPO, f"generator.engine.max_running={n}")[0], "rollout").seconds
        for n in (64, 32, 31)
    )
    assert three - two == pytest.approx(two - one, rel=0.05)  # the GPU waits for the host


def test_ranks_that_share_rows_exchange_tokens_for_heads():
    shared, _ = plan_of(changed(GRPO, ("procs = 4,", "procs = 4, parallel.cp = 4,")))
    dims = family("qwen3").sizes["1.7B"]
    width = dims.head_dim * (2 * dims.heads + 2 * dims.kv_heads)
    found = split_seconds(shared.request.mesh("trainer"), dims, 4096, 2)
    sent = 3 / 4 * 4096 / 4 * width * 2
    assert found == pytest.approx(dims.layers * (2 * REDUCE + sent / LINK))


def test_stages_of_a_pipeline_wait_for_each_other():
    text = changed(GRPO, ("procs = 4,", "procs = 4, parallel.pp = 4,"))
    made, _ = plan_of(text)
    layers = stage_layers(family("qwen3").sizes["1.7B"], 4)
    assert (sum(layers), layers) == (28, (8, 9, 9, 2))
    filled = filled_tokens(made.request, graph_of(text)[0], "trainer")
    micros = -(-stage(made, "step").tokens // filled)
    wait = pipeline_slowdown(made.request.mesh("trainer"), family("qwen3").sizes["1.7B"], micros)
    assert wait > (micros + 3) / micros
    assert stage(made, "step").detail.startswith(f"idle {1 - 1 / wait:.0%}, ")


@pytest.mark.parametrize(
    ("rows", "packs", "held"), [(1, "true", 2), (3, "true", 8), (3, "false", 3)]
)
def test_a_microbatch_holds_whole_samples(rows, packs, held):
    made, _ = plan_of(GRPO, f"trainer.batch.rows={rows}", f"trainer.batch.pack={packs}")
    length, of = 1536, stage(made, "step")
    assert filled_tokens(made.request, graph_of(GRPO)[0], "trainer") == held * length
    ranks = made.mesh("trainer").degrees["dp_shard"]
    micros = -(-of.tokens // (held * length * ranks))
    assert of.detail.startswith(f"{micros} x {rows} rows of 4096")


def test_small_microbatches_take_what_the_host_needs():
    small, large = (
        stage(plan_of(GRPO, "trainer.batch.seq_len=1536", f"trainer.batch.rows={rows}")[0], "step")
        for rows in (1, 4)
    )
    layers = family("qwen3").sizes["1.7B"].layers
    of_pass = gpu_rates("H200", graphs=True).pass_on_host(layers)
    assert small.seconds > 3 * int(small.detail.split(" x ")[0]) * of_pass
    assert large.seconds < 0.5 * small.seconds


def test_a_step_of_several_updates_costs_its_passes():
    several = changed(GRPO, ("loss = grpo)", "loss = grpo, epochs = 2, minibatches = 4)"))
    once, often = (plan_of(text)[0] for text in (GRPO, several))
    assert stage(often, "step").flops == pytest.approx(2 * stage(once, "step").flops)
    assert stage(often, "step").tokens == stage(once, "step").tokens


def test_a_sync_is_busy_nowhere_however_many_there_are():
    (graph, _), (made, _) = graph_of(big_flow()), plan_of(big_flow())
    text = render_plan(made.request.program, graph, made, summary=("",), identity="")
    rows = [line for line in text.splitlines() if "MiB by" in line]
    assert [row.split()[0] for row in rows] == ["sync_generator", "sync_second"]
    assert not any("%" in row for row in rows)


def test_bytes_of_a_sync_are_those_of_the_generator_s_weights():
    made, _ = plan_of(GRPO)
    assert stage(made, "sync").bytes == pytest.approx(2 * 1.7208e9, rel=1e-3)


def test_stages_overlap_in_an_asynchronous_schedule_only():
    made, _ = plan_of(GRPO)
    serial, _ = plan_of(changed(GRPO, ("async { steps = 500, max_policy_age = 1 }",
                                       "sync { steps = 5 }")))  # fmt: skip
    assert made.cost.step_seconds == stage(made, "ref_lp").seconds
    assert serial.cost.step_seconds == pytest.approx(sum(s.seconds for s in serial.cost.stages))


def test_a_slow_reference_is_the_bottleneck():
    found = loaded(GRPO)
    graph = build(found.program, reporter=found.reporter)
    made = plan(found.program, graph, reporter=found.reporter)
    warnings = [d for d in advice(found.program, graph, made) if d.code == "A307"]
    assert [d.message for d in warnings] == ["service `reference`, on CPU, limits the step time"]
    assert (
        warnings[0]
        .notes[0]
        .startswith(
            "128 rollouts x ~1.5k tokens x 3.6 GFLOP/token = 7.1e14 FLOP per step; 2 CPU procs ~ "
        )
    )


def test_a_fast_reference_is_not():
    found = loaded(GRPO, "reference.device=gpu", "generator.replicas=1")
    graph = build(found.program, reporter=found.reporter)
    made = plan(found.program, graph, reporter=found.reporter)
    assert [*found.reporter, *advice(found.program, graph, made)] == []


def test_what_shares_gpus_adds_up():
    made, found = plan_of(GRPO, *SHARED)
    places = [made.mesh(name).places for name in ("trainer", "reference")]
    assert not found
    assert places[0] == places[1]
    mine = (stage(made, "ref_lp"), stage(made, "step"))
    both = replace(made.cost, stages=mine)
    assert both.overlapped
    assert both.step_seconds == sum(s.seconds for s in mine)


def test_what_shares_gpus_waits_for_each_other():
    made, _ = plan_of(GRPO, *SHARED)
    bars = [b for b in timeline(graph_of(GRPO)[0], made) if b.lane in ("trainer", "reference")]
    assert all(a.end <= b.start for a, b in pairwise(sorted(bars, key=lambda bar: bar.start)))


def test_supervised_cost():
    made, _ = plan_of(SFT)
    assert [s.node for s in made.cost.stages] == ["step"]
    assert stage(made, "step").tokens == 15 * 4096 * 8


@pytest.mark.parametrize(
    ("p", "size", "dead", "more"), [(0.05, 8, 0.663, 2.97), (0.05, 16, 0.440, 1.79)]
)
def test_dead_groups(p, size, dead, more):
    found = DeadGroups(node="rollout", size=size, filtered=True)
    assert found.probability(p) == pytest.approx(dead, abs=1e-3)
    assert found.oversampling(p) == pytest.approx(more, abs=5e-3)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0042, "4.2 ms"),
        (3.44, "3.44 s"),
        (89.0, "89 s"),
        (320, "5.33 min"),
        (7200, "2 h"),
        (99 * 3600, "99 h"),
        (120 * 3600, "5 days"),
        (8e6, "92.6 days"),
        (1e9, "32 years"),
    ],
)
def test_time_text(seconds, text):
    assert time_text(seconds) == text


# ---- liveness


def test_planned_graphs_are_live():
    made, _ = plan_of(FILTERED)
    graph, _ = graph_of(FILTERED)
    net = net_of(graph, made.schedule, made.capacities)
    assert net.stuck() == ()
    assert net.cycle() == ()


@pytest.mark.parametrize("every", [1, 2, 3])
def test_syncs_further_apart_than_the_credits_reach_are_live(every):
    text = changed(
        GRPO, ("every = 1", f"every = {every}"), ("max_policy_age = 1", "max_policy_age = 3")
    )
    made, _ = plan_of(text)
    assert net_of(graph_of(text)[0], made.schedule, made.capacities).stuck() == ()


def test_a_cycle_without_enough_tokens_is_refused():
    made, _ = plan_of(GRPO)
    graph, _ = graph_of(GRPO)
    staleness = replace(made.schedule.staleness, credits=15)
    found = check_liveness(graph, replace(made.schedule, staleness=staleness), made.capacities)
    assert [d.code for d in found] == ["A308"]
    standstill = "the flow can deadlock: "
    credit = "`prompt` waits for a credit, but all 15 are in use"
    assert found[0].message == standstill + credit
    assert credit in found[0].notes
    assert "the next batch waits for 16 of `rollout`, but there are only 15" in found[0].notes
    assert "the weight sync waits for 1 of `credits held`, but there are only 0" in found[0].notes


def test_an_edge_too_small_for_a_batch_is_refused():
    made, _ = plan_of(GRPO)
    graph, _ = graph_of(GRPO)
    found = check_liveness(graph, made.schedule, {**made.capacities, "ref_lp": 7})
    assert [d.code for d in found] == ["A308"]
    assert (
        "the next batch takes 16 of `ref_lp` at once, but its queue holds only 7"
        in found[0].message
    )


def test_net_names_the_cycle():
    net = Net(
        transitions=(
            Transition(name="a", consumes={"y": 1}, produces={"x": 1}),
            Transition(name="b", consumes={"x": 1}, produces={"y": 1}),
        ),
        tokens={},
    )
    assert [t.name for t in net.stuck()] == ["a", "b"]
    assert set(net.cycle()) == {("a", "y"), ("b", "x")}


def test_failure_edges():
    made, _ = plan_of(FILTERED)
    graph, _ = graph_of(FILTERED)
    found = {e.failure: e.effect for e in exits(graph, made.schedule)}
    assert found["a filter drops a group"].endswith("the run ends after 10 min without a group")
    assert found["a pull of generator fails"].endswith("after 5 min at most")
    assert credit_loops(graph, made.schedule)[0][0] == "prompt"
    assert credit_loops(graph, made.schedule)[0][-2:] == ("step", "pull")


FULL = changed(
    GRPO,
    ("{ device = cpu, procs = 2 }", "{ procs = 2 }"),
    ("replicas = 2, parallel.tp = 2", "replicas = 1, parallel.tp = 2"),
)


def page(*edits, age):
    text = changed(FULL, ("max_policy_age = 1", f"max_policy_age = {age}"), *edits)
    made, _ = plan_of(text)
    graph, _ = graph_of(text)
    return made, render_plan(made.request.program, graph, made, summary=("",), identity="")


@pytest.mark.parametrize(
    ("prompts", "every", "age"), [(2, 1, 1), (2, 2, 2), (4, 1, 1), (4, 2, 2), (8, 2, 2)]
)
def test_one_more_batch_under_way_takes_what_the_plan_says(prompts, every, age):
    edits = ("draw(16)", f"draw({prompts})"), ("every = 1", f"every = {every}")
    made, text = page(*edits, age=age)
    found = re.search(r"with (\d+).* \(`max_policy_age = (\d+)`\) .*a step takes (.+)", text)
    then, _ = page(*edits, age=int(found[2]))
    assert int(found[1]) == made.cost.lag + 2 == then.cost.lag + 1
    assert found[3] == time_text(then.cost.step_seconds)


def test_one_more_batch_that_saves_next_to_nothing_is_not_proposed():
    edits = (("every = 1", "every = 2"),)
    made, text = page(*edits, age=2)
    then, _ = page(*edits, age=3)
    assert then.cost.lag == made.cost.lag + 1
    assert SHORTER * made.cost.step_seconds <= then.cost.step_seconds <= made.cost.step_seconds
    assert "a step takes" not in text


def stage_at(alone, latency, seconds=0.0, batches=1.0):
    return Stage(
        node="rollout", service="generator", device="gpu", tokens=1, flops=0.0, bytes=0.0,
        seconds=seconds, latency=latency, alone=alone, batches=batches, detail="",
    )  # fmt: skip


@pytest.mark.parametrize("batches", [2.0, 2.5, 4.0])
@pytest.mark.parametrize("step", [0.5, 2.0, 3.0, 4.5, 6.0, 10.0])
def test_as_many_batches_are_sampled_as_fit_the_time_of_one_into_a_step(step, batches):
    alone, latency = 5.0, 8.0
    took = stage_at(alone, latency, batches=batches).at(step)
    count = min(max(took / step, 1), batches)
    assert took == pytest.approx(alone + (latency - alone) / (batches - 1) * (count - 1))


def test_a_pool_for_two_of_four_batches():
    took = stage_at(5.0, 8.0, seconds=4.0, batches=2.0)
    assert took.at(4.5) == pytest.approx(6.0)
    assert took.at(took.seconds) == pytest.approx(8.0)


def test_a_trainer_that_takes_longest_is_what_a_step_takes():
    trainer = replace(stage_at(0.0, 0.0, 7.8), node="step", service="trainer")
    stages = (stage_at(6.9, 12.1, 6.04, batches=2.0), trainer)
    cost = Cost(stages=stages, overlapped=True, lag=1, sharing=(), dead=(), unknown=())
    assert cost.step_seconds == pytest.approx(7.8)
    assert cost.busy("generator") == pytest.approx(6.04 / 7.8)
    assert cost.busy("trainer") == 1
    assert not cost.waits


@pytest.mark.parametrize("sharing", [("generator", "reference"), ("trainer", "reference")])
def test_services_that_share_gpus_are_busy_for_a_whole_step_at_most(sharing):
    times = {"trainer": 4.0, "reference": 1.3}
    others = (replace(stage_at(0, 0, t), node=n, service=n) for n, t in times.items())
    stages = (stage_at(5.3, 9.0, 4.25, batches=2.0), *others)
    cost = Cost(stages=stages, overlapped=True, lag=1, sharing=sharing, dead=(), unknown=())
    assert sum(map(cost.busy, sharing)) <= 1 + 1e-9
    assert cost.busy("generator") < 1


def test_replicas_are_proposed_only_where_they_make_sampling_shorter():
    (_, few), (_, many) = (
        page(("draw(16)", "draw(1)"), age=1),
        page(("draw(16)", "draw(512)"), age=1),
    )
    assert "bottleneck: rollout on generator\n" in few
    assert re.search(r"rollout on generator; about \d+ replicas would keep up", many)
