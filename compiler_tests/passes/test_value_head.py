"""`titan(value_head(policy))`: what the flow may ask of it, what the job says, what is refused."""

from pathlib import Path

import pytest

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
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    loaded = load_text(text, "p.forge", folder=FOLDER, profile=profile, host=host,
                       overrides=overrides)  # fmt: skip
    made = None
    if loaded.program is not None and not loaded.reporter.has_errors:
        made = lower(loaded.program, reporter=loaded.reporter, sources=loaded.sources,
                     base_dir=FOLDER)  # fmt: skip
    return made, [(d.code, d.message) for d in loaded.reporter if d.severity == "error"]


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
            "F111", "loss `ppo_critic` reads `value`, and `trainer` has no value head",
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


def test_tensor_parallel_beside_a_head_is_refused():
    overrides = ("trainer.parallel.tp=2", "trainer.procs=2")
    _, problems = lowered(profile="none", host=BIG, overrides=overrides)
    assert [code for code, _ in problems] == ["P216"]
