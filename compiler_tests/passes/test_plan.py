"""Meshes, placement, divisibility, context and the schedule of a plan."""

import pytest
from forge_texts import GRPO, SFT, changed, plan_of, text_at

from forgedsl.plan.meshes import pools_host
from forgedsl.sizes.hosts import Host

BARE = Host(gpus=0, gpu=None, gpu_memory=0, cpus=2)


def only(diagnostics, code):
    found = [d for d in diagnostics if d.code == code]
    assert len(found) == 1, diagnostics
    return found[0]


def test_meshes_are_placed_first_fit():
    plan, _ = plan_of(GRPO)
    places = {m.service: [(p.host, p.gpus) for p in m.places] for m in plan.meshes}
    assert places["trainer"] == [(0, (0, 1, 2, 3))]
    assert places["generator"] == [(0, (4, 5)), (0, (6, 7))]
    assert places["reference"] == [(0, ())]


def test_processes_without_gpus_are_spread_over_hosts_and_rewards_stay_away_from_the_trainer():
    over = ("launcher=process", "cluster.hosts=3", "trainer.hosts=2", "generator.replicas=2")
    text = changed(GRPO, ("procs = 4,", ""))
    plan, _ = plan_of(text, *over, "generator.procs=1", "generator.parallel.tp=1", host=BARE)
    places = {m.service: [p.host for p in m.places] for m in plan.meshes}
    assert places == {"trainer": [0, 1], "generator": [2, 0], "reference": [1]}
    assert pools_host(plan.meshes, "trainer", 3) == 2


def test_autos_are_resolved():
    plan, _ = plan_of(GRPO)
    assert plan.mesh("trainer").degrees["dp_shard"] == 4
    assert plan.mesh("generator").procs == 2
    assert plan.mesh("reference").device == "cpu"
    assert (plan.rows["trainer"].seq_len, plan.rows["trainer"].rows) == (4096, 4)


def test_rows_follow_from_tokens():
    plan, _ = plan_of(SFT)
    assert plan.rows["trainer"].rows == 64_000 // 4096


def test_host_without_gpus_runs_on_cpu():
    plan, _ = plan_of(changed(GRPO, ("procs = 4,", "")), host=BARE)
    assert {m.device for m in plan.meshes} == {"cpu"}
    assert {m.total_gpus for m in plan.meshes} == {0}


def test_gpus_exceed_host():
    plan, diagnostics = plan_of(GRPO, "generator.replicas=4")
    assert plan is None
    found = only(diagnostics, "P203")
    assert found.message == "the host has 8 GPUs, but the plan needs 12"
    assert found.help.startswith("replicas = 2 fits")
    rows = [getattr(row, "text", row) for row in found.table]
    assert [" ".join(row.split()) for row in rows] == [
        "trainer procs 4 x gpus 1 = 4",
        "generator procs 2 x gpus 1 x replicas 4 = 8 --set generator.replicas=4",
    ]


def test_many_replicas():
    found = only(plan_of(GRPO, "generator.replicas=999")[1], "P203")
    assert found.message == "the host has 8 GPUs, but the plan needs 2002"


def test_gpus_on_a_bare_host():
    found = only(plan_of(GRPO, "trainer.gpus=1", host=BARE)[1], "P203")
    assert found.message == "the host has no GPU, but the plan needs 4"


def test_more_hosts_than_there_are():
    found = only(plan_of(GRPO, "trainer.hosts=2")[1], "P203")
    assert found.message == "service `trainer` needs 2 hosts, but there is 1"


def test_colocated_services_share_gpus():
    text = changed(GRPO, ("schedule async { steps = 500, max_policy_age = 1 }", "colocate = "
                          "[trainer, generator]\nschedule sync { steps = 5 }"))  # fmt: skip
    plan, _ = plan_of(text, host=Host(gpus=4))
    used = {m.service: {g for p in m.places for g in p.gpus} for m in plan.meshes}
    assert used["trainer"] == used["generator"] == {0, 1, 2, 3}


def test_colocated_and_asynchronous():
    text = changed(GRPO, ("schedule async", "colocate = [trainer, generator]\nschedule async"))
    found = only(plan_of(text)[1], "P208")
    assert "take turns" in found.message
    assert text_at(text, found) == "[trainer, generator]"


def test_a_frozen_model_shares_gpus_in_an_asynchronous_schedule_too():
    shared = ("reference.device=gpu", "reference.procs=4")
    for names in ("trainer, reference", "generator, reference"):
        assert plan_of(GRPO, *shared, f"colocate=[{names}]")[1] == []
    three = plan_of(GRPO, *shared, "colocate=[trainer, reference, generator]")[1]
    assert only(three, "P208").message.startswith("`trainer` and `generator` share GPUs")


def test_the_remedy_for_too_few_gpus_keeps_the_overlap_where_it_can():
    made, found = plan_of(GRPO, "reference.device=gpu", "reference.procs=4", "generator.replicas=1")
    assert made is None
    assert "`colocate = [trainer, reference]` fits at " in only(found, "P203").help
    assert "schedule" not in only(found, "P203").help


def test_colocated_and_asynchronous_by_an_override():
    found = only(plan_of(GRPO, "colocate=[trainer, generator]")[1], "P208")
    assert found.span.file == "<command line: colocate>"
    assert text_at(GRPO, found.related[0]).startswith("schedule async {")


def test_parallel_product():
    text = changed(GRPO, ("procs = 4,", "procs = 4, parallel { dp_shard = 3, tp = 1 },"))
    found = only(plan_of(text)[1], "P201")
    assert found.message == (
        "service `trainer` has 4 processes, but the product of its parallel degrees is 3"
    )
    assert found.help == "`parallel.dp_shard = 4` (or `auto`) fits 4 processes"
    assert text_at(text, found) == "3"


def test_cpu_device_with_gpus():
    text = changed(GRPO, ("device = cpu, procs = 2", "device = cpu, gpus = 1, procs = 2"))
    found = only(plan_of(text)[1], "P202")
    assert found.message == "service `reference` has `device = cpu`, but gpus = 1"


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("trainer.optimizer.precision=bf16",
         "`trainer` stores weights in bf16, so it cannot compute in f32"),
        ("trainer.memory.offload=true", ("`memory.offload` has no effect on a CPU: the weights of "
                                         "`trainer` are already in host memory")),
        ("reference.optimizer.lr=1e-4", "`optimizer.lr` has no effect: the flow has no "
         "`reference.step`, so `reference` is frozen"),
        ("reference.lora.rank=8", "`lora.rank` has no effect: the flow has no `reference.step`, so "
         "`reference` is frozen"),
    ],
)  # fmt: skip
def test_what_would_have_no_effect(setting, text):
    cpu = ("trainer.device=cpu", "trainer.gpus=0", "policy.dtype=f32")
    assert text in [d.message for d in plan_of(GRPO, *cpu, setting)[1] if d.code == "F113"]


def test_heads_not_divisible():
    text = changed(
        GRPO, ("procs = 4,", "procs = 3, parallel.tp = 3,"), ("4096, rows", "4095, rows")
    )
    found = only(plan_of(text)[1], "P204")
    heads = "16 heads and 8 kv heads and 151936 vocabulary entries"
    assert found.message == f"tp = 3 does not divide {heads} of model `policy`"
    assert found.help == "set tp to one of 1, 2, 4, 8"


def test_a_stage_of_a_pipeline_has_a_layer():
    text = changed(GRPO, ("procs = 4,", "procs = 32, parallel.pp = 32,"))
    found = only(plan_of(text)[1], "P204")
    assert found.message == "pp = 32 is more than the 28 layers of model `policy`"
    assert found.help == "`parallel.pp = 28` at most: each stage needs a layer"


@pytest.mark.parametrize(
    ("cp", "tp", "message"),
    [
        (3, 1, "cp = 3 ranks cannot evenly share the 16 heads and 8 kv heads of model `policy`"),
        (16, 2, "cp = 16 ranks cannot evenly share the 8 heads and 4 kv heads on each rank of tp "
         "of model `policy`"),
        (16, 1, None),
    ],
)  # fmt: skip
def test_ranks_that_share_rows_must_divide_the_heads(cp, tp, message):
    degrees = f"procs = {cp * tp}, parallel {{ tp = {tp}, cp = {cp} }},"
    host = Host(gpus=64, gpu="H200", gpu_memory=141 << 30, cpus=64, memory=512 << 30)
    _, problems = plan_of(changed(GRPO, ("procs = 4,", degrees)), host=host)
    assert [d.message for d in problems if d.code == "P204"] == ([message] if message else [])


@pytest.mark.parametrize("degree", ["tp", "cp"])
def test_sequence_shard(degree):
    text = changed(
        GRPO, ("procs = 4,", f"parallel.{degree} = 4, procs = 4,"), ("4096, rows", "4095, rows")
    )
    assert only(plan_of(text)[1], "P206").help == "`batch.seq_len = 4096`"


def test_mesh_name():
    text = changed(GRPO, ("procs = 4,", 'mesh_name = "my mesh", procs = 4,'))
    assert only(plan_of(text)[1], "P207").message == "mesh name `my mesh` is not an identifier"


def test_hosts_of_one_machine_share_it():
    host = Host(gpus=0, gpu=None, gpu_memory=0, cpus=8, memory=512 << 30)
    words = ("launcher=process", "cluster.hosts=2", "trainer.hosts=2")
    plan, _ = plan_of(changed(GRPO, ("procs = 4,", "")), *words, host=host)
    assert (plan.request.host.cpus, plan.request.host.memory) == (4, 256 << 30)


def test_hosts_of_one_machine_divide_its_gpus():
    _, diagnostics = plan_of(GRPO, "launcher=process", "cluster.hosts=2", "trainer.hosts=2")
    assert "the 2 hosts have 8 GPUs" in only(diagnostics, "P203").message


def test_several_hosts_need_a_launcher():
    text = changed(GRPO, ("schedule async", "cluster { hosts = 2 }\nschedule async"))
    found = only(plan_of(text, "trainer.hosts=2")[1], "P209")
    assert "slurm" in found.help


def test_pods_may_be_several_hosts():
    text = changed(GRPO, ("schedule async", "cluster { hosts = 2 }\nschedule async"))
    launcher = 'launcher=kubernetes("rl", image="forge:1")'
    made, diagnostics = plan_of(text, "trainer.hosts=2", launcher)
    assert made is not None
    assert [d.code for d in diagnostics] == []


def test_prompt_and_completion_over_context():
    found = only(plan_of(GRPO, "generator.sampling.max_tokens=8192")[1], "D605")
    assert found.message == (
        "512 prompt + 8192 completion = 8704 tokens exceed the context 4096 of model `policy`"
    )


def test_prompt_and_completion_over_a_row():
    found = only(plan_of(GRPO, "trainer.batch.seq_len=1024")[1], "D605")
    assert found.message == (
        "512 prompt + 1024 completion = 1536 tokens exceed the 1024 tokens of a row of `trainer`"
    )


@pytest.mark.parametrize("service", ["trainer", "reference"])
def test_a_row_over_the_context(service):
    _, diagnostics = plan_of(GRPO, f"{service}.batch.seq_len=4608")
    found = only(diagnostics, "D605")
    assert found.message == (
        f"a row of `{service}` has 4608 tokens, more than the context 4096 of model `policy`"
    )
    assert found.help == "`batch.seq_len = 4096`, or a larger `context`"
    assert plan_of(GRPO, f"{service}.batch.seq_len=4096")[1] == []


def test_a_row_over_the_context_is_mended_where_it_is_written():
    seq_len = GRPO.partition("seq_len = ")[2].partition(",")[0]
    text = changed(GRPO, (f"seq_len = {seq_len}", "seq_len = 5000"))
    found = only(plan_of(text)[1], "D605")
    (edit,) = found.fix.edits
    span = edit.span
    assert (text[span.start : span.end], edit.text) == ("5000", "4096")


def test_a_row_has_room_for_a_prompt():
    text = changed(GRPO, ("max_prompt_tokens = 512", "max_prompt_tokens = none"))
    full = ("trainer.batch.seq_len=1024", "generator.sampling.max_tokens=1024")
    found = only(plan_of(text, *full)[1], "D605")
    assert found.message.startswith(
        "1024 tokens of completion and a prompt exceed the 1024 tokens of a row"
    )
    assert found.help == (
        "set `batch.seq_len` to 1024 plus the tokens of the longest prompt, or lower "
        "`sampling.max_tokens`"
    )


def test_eval_without_a_generator():
    reward = 'import "std/rl" as rl\nreward exact = rl.exact\n'
    text = SFT.replace("forge 1\n", "forge 1\n" + reward) + (
        "eval held_out { dataset = tulu, score = exact, every = 5 }\n"
    )
    help = only(plan_of(text)[1], "F131").help
    assert help.startswith("add a vllm service and `sync trainer -> NAME`, or measure a `loss`")


# ---- schedule


def test_credits_of_an_asynchronous_schedule():
    plan, _ = plan_of(GRPO)
    staleness = plan.schedule.staleness
    assert (staleness.lag, staleness.credits, staleness.window, staleness.age_bound) == (
        1,
        32,
        1,
        1,
    )
    assert plan.slots["rollout"] == 32
    assert plan.capacities["rollout"] == 32
    assert plan.capacities["batch"] == 1


def test_synchronous_schedule_holds_one_batch():
    text = changed(GRPO, ("schedule async { steps = 500, max_policy_age = 1 }",
                          "schedule sync { steps = 5 }"))  # fmt: skip
    staleness = plan_of(text)[0].schedule.staleness
    assert (staleness.credits, staleness.age_bound) == (16, 0)


def test_supervised_schedule_has_no_age():
    schedule = plan_of(SFT)[0].schedule
    assert (schedule.epochs, schedule.every, schedule.staleness.age_bound) == (1, None, 0)


def test_age_zero_with_an_asynchronous_schedule():
    found = only(plan_of(GRPO, "schedule.max_policy_age=0")[1], "A302")
    assert found.message == (
        "any overlap exceeds the allowed policy age 0: the lowest possible worst age is 1"
    )
    assert found.notes[1] == "worst age = (B + W - 2) // P = (32 + 1 - 2) // 16 = 1"
    assert found.help == "allow `max_policy_age = 1`, or write `schedule sync`"


def test_sync_interval_counts():
    text = changed(GRPO, ("every = 1", "every = 3"))
    assert "+ 2 = 3" in only(plan_of(text)[1], "A302").notes[1]


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("steps = 500, max_policy_age = 1", "steps = 500", "A301"),
        ("steps = 500, max_policy_age = 1", "max_policy_age = 1", "F110"),
    ],
)
def test_incomplete_schedule(old, new, code):
    plan, diagnostics = plan_of(changed(GRPO, (old, new)))
    assert plan is None
    assert only(diagnostics, code)


def test_too_few_gpus_for_models_of_unknown_size():
    text = changed(GRPO, ('arch = qwen3("1.7B"), ', ""), ("Qwen/Qwen3-1.7B", "nobody/unknown"))
    found = only(plan_of(text, host=Host(gpus=4))[1], "P203")
    assert found.help == "use fewer processes, or declare a larger `cluster`"
