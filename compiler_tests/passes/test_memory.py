"""Memory of a plan: parameter counts, items, stores, what fits, P205 and P211."""

import re
import shlex
from pathlib import Path

import pytest
from forge_texts import GRPO, SFT, changed, loaded, plan_of

from forgedsl.diagnostics import Severity
from forgedsl.families.registry import family
from forgedsl.graph.dataflow import build
from forgedsl.plan.capacity import TIGHT
from forgedsl.plan.host import described_host
from forgedsl.plan.plan import advice, plan
from forgedsl.sizes.hosts import Host
from forgedsl.sizes.memory import GIB, MAX_RUNNING
from forgedsl.sizes.params import kv_bytes, num_params

COLOCATED = changed(
    GRPO,
    ("schedule async { steps = 500, max_policy_age = 1 }",
     "colocate = [trainer, generator]\nschedule sync { steps = 5 }"),
    ("procs = 4, optimizer", "optimizer"),
    ("replicas = 2, parallel.tp = 2, ", ""),
)  # fmt: skip
WIDE = changed(GRPO, ("procs = 4, optimizer", "procs = 16, optimizer"))
FULL = "trainer.memory.activation_checkpoint=full"
MODES = ("none", "selective", "full")
ROOT = Path(__file__).parents[2]
ONE = Host(gpus=1)
STATE = {"weights", "AdamW", "gradients"}


def only(diagnostics, code):
    found = [d for d in diagnostics if d.code == code]
    assert len(found) == 1, diagnostics
    return found[0]


def items(made, service, phase):
    rank = made.memory.rank(service)
    return {i.name: i.bytes for p in rank.phases if p.name == phase for i in p.items}


@pytest.mark.parametrize(
    ("name", "size", "billions"),
    [
        ("qwen3", "0.6B", 0.596), ("qwen3", "1.7B", 1.721), ("qwen3", "4B", 4.022),
        ("qwen3", "8B", 8.191), ("qwen3", "14B", 14.768), ("qwen3", "32B", 32.762),
        ("llama3", "1B", 1.236), ("llama3", "8B", 8.030), ("llama3", "70B", 70.554),
    ],
)  # fmt: skip
def test_parameters_of_published_models(name, size, billions):
    assert num_params(family(name).sizes[size]) / 1e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize(("size", "kib"), [("0.6B", 112), ("1.7B", 112), ("4B", 144)])
def test_kv_cache_of_a_token(size, kib):
    assert kv_bytes(family("qwen3").sizes[size], tp=1, pp=1, itemsize=2) == kib * 1024


def test_train_state_is_sixteen_bytes_a_parameter_over_the_shards():
    made, _ = plan_of(GRPO)
    found = items(made, "trainer", "train")
    n = num_params(family("qwen3").sizes["1.7B"]) / 4
    state = found["weights f32"] + found["AdamW moments f32"] + found["gradients f32"]
    assert state == pytest.approx(16 * n)


def test_gradients_are_not_there_while_rolling_out():
    made, _ = plan_of(GRPO)
    assert "gradients f32" not in items(made, "trainer", "rollout")


def test_more_rows_take_more_activations():
    edits = [], ["trainer.batch.rows=8"]
    before, after = (items(plan_of(GRPO, *o)[0], "trainer", "train")["activations"] for o in edits)
    assert after > before


def test_checkpointing_keeps_less():
    sizes = [
        sum(size for name, size in items(plan_of(GRPO, mode)[0], "trainer", "train").items()
            if name.startswith("activations"))
        for mode in (f"trainer.memory.activation_checkpoint={m}" for m in MODES)
    ]  # fmt: skip
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 3


def test_an_engine_alone_takes_nine_tenths_and_the_rest_is_its_pool():
    made, _ = plan_of(GRPO)
    rank = made.memory.rank("generator")
    assert rank.fraction == 0.9
    assert rank.bytes("rollout") == pytest.approx(0.9 * 141 * GIB, rel=1e-6)


@pytest.mark.parametrize("running", [64, 1024])
def test_an_engine_has_logits_of_all_completions_that_it_decodes_at_once(running):
    usual, given = (
        plan_of(GRPO, *extra)[0].memory.rank("generator")
        for extra in ((), (f"generator.engine.max_running={running}",))
    )
    logits = 8 * family("qwen3").sizes["1.7B"].vocab // 2
    assert usual.pool.bytes - given.pool.bytes == pytest.approx(
        (running - MAX_RUNNING) * logits, abs=2
    )


def test_a_colocated_engine_takes_what_the_trainer_leaves():
    made, diagnostics = plan_of(COLOCATED, host=ONE)
    assert diagnostics == []
    store = made.memory.stores[0]
    assert store.services == ("trainer", "generator")
    assert 0.83 < store.share < 0.86


def test_largest_microbatch_fits_and_one_more_row_does_not():
    made, _ = plan_of(GRPO)
    rows = made.memory.fitting_rows("trainer")
    fits, quiet = plan_of(GRPO, f"trainer.batch.rows={rows}")
    assert fits is not None
    assert quiet == []
    loud = plan_of(GRPO, f"trainer.batch.rows={rows + 1}")[1]
    assert only(loud, "P205").severity is Severity.WARNING


def keeps(made):
    return made.request.program.services["trainer"].settings["memory.keep_weights"].value is True


def test_gathered_weights_are_kept_where_they_fit():
    made, quiet = plan_of(GRPO)
    assert keeps(made)
    assert quiet == []
    params = num_params(family("qwen3").sizes["1.7B"])
    gathered = items(made, "trainer", "train")["gathered by FSDP"]
    assert gathered > 2 * params
    off = plan_of(GRPO, "trainer.memory.keep_weights=false")[0]
    assert items(off, "trainer", "train")["gathered by FSDP"] < 2 * params


def test_gathered_weights_give_way_to_larger_microbatches():
    rows = plan_of(GRPO)[0].memory.fitting_rows("trainer") + 1
    made, found = plan_of(GRPO, f"trainer.batch.rows={rows}")
    assert only(found, "P205").severity is Severity.WARNING
    assert not keeps(made)
    kept, told = plan_of(GRPO, f"trainer.batch.rows={rows}", "trainer.memory.keep_weights=true")
    assert keeps(kept)
    needs = [float(only(each, "P205").message.split(" GiB")[0].split()[-1])
             for each in (found, told)]  # fmt: skip
    assert needs[1] > needs[0] + 2


def test_gathered_weights_are_kept_with_offload():
    """Measured on one H200, 0.6 B parameters: 2.08 s of training, 8.14 s without kept weights."""
    one = "trainer.procs=1", "trainer.memory.offload=true"
    kept, dropped = (plan_of(GRPO, *one, *edits)[0]
                     for edits in ([], ["trainer.memory.keep_weights=false"]))  # fmt: skip
    assert keeps(kept)
    times = [next(s.seconds for s in made.cost.stages if s.node == "step")
             for made in (kept, dropped)]  # fmt: skip
    assert times[0] < times[1] / 2


def test_a_full_gpu_of_another_service_does_not_matter():
    assert keeps(plan_of(GRPO, "generator.engine.gpu_memory=0.99")[0])


def test_a_pipeline_keeps_its_weights_by_itself():
    assert not keeps(plan_of(GRPO, "trainer.parallel.pp=2")[0])


@pytest.mark.parametrize(
    ("replicas", "precision", "size"), [(2, "f32", 4), (1, "f32", 0), (1, "bf16", 2)]
)
def test_sums_of_gradients_take_memory_beside_what_they_become(replicas, precision, size):
    made, _ = plan_of(
        GRPO, f"trainer.procs={replicas}", f"trainer.parallel.dp_replicate={replicas}",
        "trainer.batch.rows=1", f"trainer.optimizer.precision={precision}",
    )  # fmt: skip
    params = num_params(family("qwen3").sizes["1.7B"])
    assert keeps(made)
    assert items(made, "trainer", "train").get("added gradients f32", 0) == size * params


def test_sums_of_gradients_of_sharded_weights_are_reduced_each_time():
    made = plan_of(GRPO)[0]
    assert keeps(made)
    assert "added gradients f32" not in items(made, "trainer", "train")


def test_too_large_a_microbatch_names_the_one_that_fits():
    made, diagnostics = plan_of(GRPO, "trainer.batch.rows=64")
    assert made is None
    found = only(diagnostics, "P205")
    assert found.severity is Severity.ERROR
    assert found.message.endswith("on a GPU that has 141.0 GiB")
    assert found.label == "host 0, GPUs 0-3"
    rows = plan_of(GRPO)[0].memory.fitting_rows("trainer")
    assert found.help == f"`trainer.batch.rows = {rows}` fits"


@pytest.mark.parametrize("gib", [16, 24])
def test_rows_that_are_much_too_long_are_the_cause(gib):
    small = Host(gpus=16, gpu="H100", gpu_memory=gib * GIB)
    edits = ("policy.context=40960", "generator.engine.gpu_memory=0.85")
    told = plan_of(GRPO, "trainer.batch.seq_len=40960", *edits, host=small)[1]
    found = only(told, "P205")
    fitting = re.fullmatch(
        r"`trainer.batch.seq_len = (\d+)` fits, with `batch.rows = 1`", found.help
    )
    assert fitting, found.help
    assert found.span.file.startswith("<command line: trainer.batch.seq_len")
    fits = (f"trainer.batch.seq_len={fitting[1]}", "trainer.batch.rows=1")
    assert "P205" not in [d.code for d in plan_of(GRPO, *fits, *edits, host=small)[1]]


@pytest.mark.parametrize(("memory", "offered"), [(1024, True), (64, False)])
def test_what_does_not_fit_on_a_gpu_may_fit_on_the_host(memory, offered):
    large = [FULL, 'policy.arch=qwen3("32B")', "generator.parallel.tp=8", "trainer.batch.rows=1"]
    told = plan_of(GRPO, *large, host=Host(gpus=20, memory=memory * GIB))[1]
    (found,) = [d for d in told if d.message.startswith("`trainer` needs")]
    assert ("`trainer.memory.offload = true`" in found.help) == offered


def test_two_services_on_one_gpu():
    made, diagnostics = plan_of(COLOCATED, "generator.engine.gpu_memory=0.9", host=ONE)
    assert made is None
    found = only(diagnostics, "P205")
    assert found.message.startswith("`trainer` and `generator` together need 2")
    assert "`generator.engine.gpu_memory = " in found.help
    remedy = found.help.split("gpu_memory = ")[1].split("`")[0]
    fixed = plan_of(COLOCATED, f"generator.engine.gpu_memory={remedy}", host=ONE)
    assert fixed[0] is not None
    assert fixed[1] == []


def test_of_what_is_published_one_tensor_is_whole_on_a_rank():
    made, _ = plan_of(WIDE, FULL, 'policy.arch=qwen3("32B")', "trainer.batch.rows=1",
                      host=Host(gpus=20))  # fmt: skip
    assert items(made, "trainer", "sync")["gathered tensor"] == 2 * 151_936 * 5120


@pytest.mark.parametrize(("device", "masked"), [("gpu", False), ("cpu", True)])
def test_only_cpus_attend_under_a_mask(device, masked):
    edits = ["trainer.device=cpu", "trainer.gpus=0"] * (device == "cpu")
    made, _ = plan_of(GRPO, "trainer.procs=1", *edits)
    assert ("attention mask" in items(made, "trainer", "train")) == masked


def test_what_is_published_lies_in_shares_on_the_gpus_of_the_trainer():
    made, _ = plan_of(GRPO, host=described_host("8xH200"))
    two = 2 * 2 * num_params(family("qwen3").sizes["1.7B"])
    assert items(made, "trainer", "train")["published weights"] == pytest.approx(two / 4)


@pytest.mark.parametrize(("precision", "each"), [("f32", 16), ("bf16_moments", 12), ("bf16", 8)])
def test_bytes_of_a_parameter_that_is_trained(precision, each):
    made, _ = plan_of(GRPO, f"trainer.optimizer.precision={precision}")
    found = items(made, "trainer", "train")
    kept = [size for name, size in found.items() if name.split()[0] in STATE]
    assert sum(kept) == pytest.approx(each * num_params(family("qwen3").sizes["1.7B"]) / 4)


def test_what_is_offloaded_is_in_the_memory_of_the_host():
    before, after = (plan_of(GRPO, *edits)[0] for edits in ([], ["trainer.memory.offload=true"]))
    state = 16 * num_params(family("qwen3").sizes["1.7B"])
    moved = after.memory.stores[-1].bytes - before.memory.stores[-1].bytes
    assert moved == pytest.approx(state)
    assert not {name.split()[0] for name in items(after, "trainer", "train")} & STATE


def test_an_offload_takes_time():
    before, after = (plan_of(GRPO, *edits)[0] for edits in ([], ["trainer.memory.offload=true"]))
    times = [next(s.seconds for s in made.cost.stages if s.node == "step")
             for made in (before, after)]  # fmt: skip
    assert times[1] > times[0]


def test_the_8b_recipe_of_torchforge_plans_on_eight_gpus_of_80_gib():
    guide = (ROOT / "docs/guide/from-torchforge.md").read_text()
    text = guide.split("```forge alone\n")[1].split("```")[0]
    command = guide.split("forgec plan grpo.forge ")[1].split("```")[0]
    words = shlex.split(command.replace("\\\n", " "))
    host = described_host(words[words.index("--host") + 1])
    made, diagnostics = plan_of(text, *(word for word in words if "=" in word), host=host)
    assert diagnostics == []
    assert made.request.dims["trainer"] == family("qwen3").sizes["8B"]
    assert max(store.share for store in made.memory.stores) < TIGHT


def test_an_engine_without_room_for_one_sequence():
    found = only(plan_of(GRPO, "generator.engine.gpu_memory=0.02", "policy.context=40960")[1],
                 "P205")  # fmt: skip
    assert found.message.startswith("`generator` has ")
    assert "one sequence of 40960 tokens needs 2.2 GiB" in found.message


def test_a_host_too_small_for_its_processes():
    found = only(plan_of(GRPO, host=Host(memory=16 * GIB))[1], "P205")
    assert "the memory of the host is 16.0 GiB" in found.message


ON_CPU = """forge 1
import "std/rl" as rl
model policy {
  source = random(1), dtype = f32, context = 256, tokenizer = local("tokenizer")
  arch = qwen3(
    layers = 2, hidden = 64, heads = 2, kv_heads = 2, head_dim = 32, ffn = 128, vocab = 64
  )
}
dataset sums {
  source = jsonl("forgedsl:data/arithmetic.jsonl"), prompt = row.question, target = row.answer
}
service trainer : titan(policy) { device = cpu, batch { seq_len = 64, rows = 64000000 } }
service generator : vllm(policy) { device = cpu, sampling { max_tokens = 16 } }
reward correct = rl.math_equal
flow train {
  prompt  = sums.draw(8)
  rollout = generator.sample(prompt, n = 4)
  batch   = replay(rollout, adv = rl.group_norm(correct(rollout, prompt.target)))
  trainer.step(batch, loss = rl.dapo())
  sync trainer -> generator
}
schedule sync { steps = 2 }
"""


def test_advice_on_rows_is_the_largest_number_that_fits_also_where_many_do():
    found = only(plan_of(ON_CPU)[1], "P205")
    rows = int(re.search(r"`trainer.batch.rows = (\d+)` fits", found.help)[1])
    assert rows > 8192
    assert plan_of(ON_CPU, f"trainer.batch.rows={rows}")[1] == []
    assert only(plan_of(ON_CPU, f"trainer.batch.rows={rows + 1}")[1], "P205")


def test_a_host_that_nobody_described_is_said_to_be_assumed():
    words = "nobody described the host"
    assert any(words in note for note in only(plan_of(ON_CPU)[1], "P205").notes)
    described = only(plan_of(ON_CPU, host=described_host("8xH200"))[1], "P205")
    assert not any(words in note for note in described.notes)


def test_unknown_dimensions_are_said_not_guessed():
    text = changed(SFT, (', arch = qwen3("8B")', ""), ("Qwen/Qwen3-8B", "me/mine"))
    made, diagnostics = plan_of(text)
    assert diagnostics == []
    assert made.memory.unknown == ("trainer",)
    assert made.memory.ranks == ()


def test_starved_pool_is_advice_only():
    found = loaded(GRPO, "generator.engine.gpu_memory=0.04")
    graph = build(found.program, reporter=found.reporter)
    made = plan(found.program, graph, reporter=found.reporter)
    assert list(found.reporter) == []
    warning = only(advice(found.program, graph, made), "P211")
    assert warning.severity is Severity.WARNING
    assert warning.message.startswith(
        "the KV cache of `generator` holds 50 full-length sequences, but 64"
    )


def test_published_models_are_known_by_their_name():
    made, diagnostics = plan_of(changed(SFT, (', arch = qwen3("8B")', "")))
    assert diagnostics == []
    assert made.memory.ranks == plan_of(SFT)[0].memory.ranks
