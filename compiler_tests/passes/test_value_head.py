"""`titan(value_head(policy))`: what the flow may ask of it, what the job says, what is refused."""

from pathlib import Path

import pytest
from forge_texts import edited

import forgedsl.pipelines
from forgedsl.api import Host, load_text
from forgedsl.lint.engine import lint_source
from forgedsl.lower.build import lower
from forgedsl.source import SourceFile

FOLDER = Path(forgedsl.pipelines.__file__).parent
TEXT = (FOLDER / "ppo_critic.forge").read_text()
HEADLESS = ("titan(value_head(policy))", "titan(policy)")
BIG = Host(gpus=8, gpu="H200", gpu_memory=141 << 30, cpus=64, memory=512 << 30)


def lowered(*changes, profile="cpu", host=None, overrides=()):
    return edited(TEXT, *changes, folder=FOLDER, profile=profile, host=host, overrides=overrides)


def test_the_job_has_the_head_and_asks_it_before_the_step():
    made, problems = lowered()
    assert problems == []
    assert made.job.services["trainer"].value_head
    asked = {n.name: (n.op, n.values, n.at_step) for n in made.job.nodes if n.op == "logprobs"}
    assert asked == {"values": ("logprobs", True, True), "proximal": ("logprobs", False, True)}


def test_a_function_of_tokens_is_one_of_the_whole_step():
    made, _ = lowered()
    assert {n.level for n in made.job.nodes if n.op == "call"} == {"batch"}


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ([HEADLESS], "F119", "`trainer` has no value head"),
        (
            [HEADLESS, ("trainer.values(rollout) ", "trainer.logprobs(rollout) ")],
            "F111", "loss `ppo_critic` reads `value`, but `trainer` has no value head",
        ),
        ([("vllm(policy)", "vllm(value_head(policy))")], "F119", None),
        ([("value_head(policy)", "value_head(policy, 2)")], "F119", None),
        (
            [("rl.whitened_gae(score, values, rollout.mask, lam = lam)", "rl.reinforce_pp(score, "
              "rollout.num_tokens)")],
            "T701", None,
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_once(changes, code, message):
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    linted = lint_source(SourceFile("p.forge", text), FOLDER, profile="cpu")
    found = [d for d in linted.diagnostics if d.severity == "error"]
    assert [d.code for d in found] == [code]
    assert message is None or found[0].message == message


SCORED = """forge 1
import "std/rl" as rl
model policy    { source = local("models/tiny_math"), dtype = f32, context = 256 }
model preferred { source = local("models/tiny_math"), dtype = f32, context = 256 }
dataset sums { source = jsonl("data/arithmetic.jsonl"), prompt = row.question }
service trainer   : titan(policy) { device = cpu, batch { seq_len = 64, rows = 256 } }
service generator : vllm(policy) { device = cpu, sampling { max_tokens = 16 } }
service scorer    : titan(value_head(preferred)) { device = cpu }
reward liked = scorer.score()
flow train {
  prompt  = sums.draw(16)
  rollout = generator.sample(prompt, n = 8)
  score   = liked(rollout)
  trainer.step(replay(rollout, adv = rl.group_norm(score)), loss = rl.ppo)
  sync trainer -> generator
}
schedule sync { steps = 3 }
"""


def lint(*changes):
    text = SCORED
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return [d.code for d in lint_source(SourceFile("p.forge", text), FOLDER).diagnostics]


def test_a_reward_model_is_a_service_and_a_reward_of_the_job():
    loaded = load_text(SCORED, "p.forge", folder=FOLDER)
    made = lower(loaded.checked, reporter=loaded.reporter, sources=loaded.sources, base_dir=FOLDER)
    assert made.job.services["scorer"].value_head
    assert (made.job.rewards["liked"].kind, made.job.rewards["liked"].service) == (
        "scorer", "scorer",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ([], []),
        ([("titan(value_head(preferred))", "titan(preferred)")], ["F119"]),
        ([("scorer.score()", "scorer.score(prompt = \"?\")")], ["F114"]),
        ([("titan(value_head(preferred))", "titan(value_head(policy))")], ["F104", "R531"]),
        ([("titan(policy)", "titan(value_head(policy))"), ("scorer.score()", "trainer.score()")],
         ["R531", "F108"]),
        ([("dtype = f32, context = 256 }\nmodel preferred { source = local(\"models/tiny_math\")",
           "dtype = f32, context = 256, arch = qwen3(\"0.6B\") }\nmodel preferred { source = "
           "local(\"models/tiny_math\"), arch = llama3(\"8B\")")], ["D610", "P213", "P213"]),
    ],
)  # fmt: skip
def test_what_a_reward_model_cannot_be(changes, codes):
    assert sorted(lint(*changes)) == sorted(codes)


def test_tensor_parallel_beside_a_head_is_refused():
    overrides = ("trainer.parallel.tp=2", "trainer.procs=2")
    _, problems = lowered(profile="none", host=BIG, overrides=overrides)
    assert [code for code, _ in problems] == ["P216"]


PAIRS = (FOLDER / "reward_math.forge").read_text()
MEASURED = """
eval held_out {
  dataset = preferences, source = jsonl("data/curriculum_pairs.jsonl")
  loss = LOSS, every = 10
}
"""


@pytest.mark.parametrize(
    ("loss", "head", "codes"),
    [
        ("rl.bradley_terry", True, []),
        ("rl.ipo", True, ["F111"]),
        ("flat", False, ["F111"]),
    ],
)
def test_an_eval_measures_a_value_head_that_is_there(loss, head, codes):
    text = PAIRS + MEASURED.replace("LOSS", loss)
    if not head:
        text = text.replace("titan(value_head(scorer))", "titan(scorer)")
        text = text.replace("loss = rl.bradley_terry)", "loss = prefer)")
        text += "loss prefer(logprob: diff [P, T] f32, mask: [P, T] bool) {\n"
        text += "  chosen = sum(logprob.chosen, T, mask.chosen)\n"
        text += "  rejected = sum(logprob.rejected, T, mask.rejected)\n"
        text += "  minimize pair_mean(-log_sigmoid(chosen - rejected))\n}\n"
        text += "loss flat(value: diff [P, T] f32, mask: [P, T] bool) {\n"
        text += "  minimize pair_mean(sum(value.chosen, T, mask.chosen) ** 2)\n}\n"
    found = lint_source(SourceFile("p.forge", text), FOLDER, profile="cpu").diagnostics
    assert [d.code for d in found if d.severity == "error"] == codes
