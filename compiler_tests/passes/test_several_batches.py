"""Several batches in one step: merged under one loss, or each with a loss of its own."""

from pathlib import Path

import pytest
from forge_texts import GRPO, changed, job_of, plan_of

from forgedsl.api import load_text
from forgedsl.diagnostics import Severity
from forgedsl.graph.dataflow import build
from forgedsl.lint.engine import lint_file

MERGED = changed(
    GRPO,
    ("dataset gsm8k {", 'dataset hard { source = hf("a/hard"), prompt = row.q, target = row.a }\n'
     'dataset demos { source = hf("a/demos"), chat = row.messages }\ndataset gsm8k {'),
    ("  batch   = replay(rollout, ref = ref_lp, adv = rl.mean_baseline(score))\n", """\
  a       = replay(rollout, ref = ref_lp, adv = rl.mean_baseline(score))
  more    = hard.draw(8)
  other   = generator.sample(more, n = 4)
  b       = replay(other, ref = reference.logprobs(other), adv = rl.rloo(total(other, more.target)))
  shown   = demos.batches()
"""),
    ("trainer.step(batch, loss = grpo)", "trainer.step(merge(a, b), loss = grpo)"),
    ("flow train", "loss nll(logprob: diff [B, T] f32, mask: [B, T] bool) {\n"
     "  minimize 0.1 * token_mean(-logprob, mask)\n}\nflow train"),
    ("  shown   = demos.batches()\n", ""),
)  # fmt: skip
BOTH = changed(
    MERGED,
    ("  trainer.step(merge(a, b), loss = grpo)",
     "  shown = demos.batches()\n  trainer.step(merge(a, b), loss = grpo, shown, loss = nll)"),
)  # fmt: skip


def lowered(folder: Path, text: str):
    job, found = job_of(text, folder=folder)
    return job, [(d.code, d.message) for d in found if d.severity == "error"]


def test_merged_batches_share_a_loss(tmp_path: Path) -> None:
    job, _ = lowered(tmp_path, MERGED)
    step = next(node for node in job.nodes if node.op == "step")
    assert step.terms == (("grpo", ("a", "b")),)
    assert job.schedule.prompts == 24


def test_every_loss_has_its_batches(tmp_path: Path) -> None:
    job, _ = lowered(tmp_path, BOTH)
    step = next(node for node in job.nodes if node.op == "step")
    assert step.terms == (("grpo", ("a", "b")), ("nll", ("shown",)))
    assert sorted(job.losses) == ["grpo", "nll"]


def test_a_merge_may_have_a_name_and_be_merged(tmp_path: Path) -> None:
    text = changed(
        MERGED, ("  trainer.step(merge(a, b)", "  both = merge(a, b)\n  trainer.step(both")
    )
    step = next(node for node in lowered(tmp_path, text)[0].nodes if node.op == "step")
    assert step.terms == (("grpo", ("a", "b")),)


def test_the_plan_counts_each_sampler_by_its_own_draw() -> None:
    plan, _ = plan_of(BOTH)
    details = {stage.node: stage.detail for stage in plan.cost.stages}
    assert details["rollout"].startswith("128 x 1024")
    assert details["other"].startswith("32 x 1024")


def test_a_field_that_one_loss_folds_away_is_removed_from_its_batches_alone() -> None:
    text = changed(BOTH, ("param beta : float = 0.02", "param beta : float = 0.0"))
    found = load_text(text, "test.forge")
    graph = build(found.program, reporter=found.reporter)
    assert "reference" not in graph.services
    assert [part.fields for part in graph.removed] == [("ref",)]


WRONG = [
    ("merge(a, b)", "merge(a)", "F114", "`merge` needs at least two batches"),
    ("  trainer.step(", "  both = merge(a, b)\n  trainer.step(", "F119", "no step reads `both`"),
    ("merge(a, b)", "merge(a, 3)", "F114", "`merge` needs at least two batches"),
    ("merge(a, b)", "merge(a, a)", "F114", "the step reads `a` twice"),
    ("merge(a, b)", "merge(a, rollout)", "T703", "`trainer.step` reads a batch"),
    ("merge(a, b), loss = grpo, shown", "a, b, loss = grpo, shown", "F114",
     "this batch has no loss"),
    ("merge(a, b), loss = grpo, shown, loss = nll", "merge(a, shown), loss = grpo", "F112",
     ("merged batches must all be rollouts, or all pairs: `a` has rollouts, `shown` has "
      "conversations")),
    ("ref = reference.logprobs(other), ", "", "F111", "loss `grpo` needs `ref`"),
    ("shown, loss = nll", "shown, loss = nll, minibatches = 8", "F130",
     "a step of several losses can make only one update"),
    ("shown, loss = nll", "shown, loss = grpo", "F111", "loss `grpo` needs"),
    ("  trainer.step(merge(a, b)", "  both = merge(a, b)\n  x = trainer.logprobs(both)\n"
     "  trainer.step(both", "F109", "`both` is merged for a step; `logprobs` cannot read it"),
    ("  trainer.step(", "  merge(a, b)\n  trainer.step(", "F119",
     "the result of `merge` is not used"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "code", "message"), WRONG)
def test_a_wrong_step_is_told(tmp_path: Path, old: str, new: str, code: str, message: str) -> None:
    found = lowered(tmp_path, changed(BOTH, (old, new)))[1]
    assert code in [c for c, m in found if message in m], found


def test_a_loss_with_values_is_not_that_of_another_batch_too(tmp_path: Path) -> None:
    edits = [("nll(logprob: diff [B, T] f32, ", "nll(logprob: diff [B, T] f32, w: float = 1.0, "),
             ("merge(a, b), loss = grpo, shown, loss = nll",
              "a, loss = nll(w = 2.0), shown, loss = nll")]  # fmt: skip
    found = lowered(tmp_path, changed(BOTH, *edits))[1]
    assert ("F114", "`nll` is given parameters, but is also used for another batch") in found


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "merge(a, b), loss = grpo, shown",
            "a + b, loss = grpo, shown",
            "to train on both batches in one step",
        ),
        (
            "merge(a, b)",
            "merge([a, b])",
            ("to train on both batches in one step, write `merge(a, b)`"),
        ),
        ("loss = nll)", "loss = 0.1 * nll)", "write a weight inside the loss: `minimize 0.05"),
        ("loss = nll)", "loss = [nll])", "give each loss after its batch: `trainer.step(a, loss"),
        (", shown, loss", ")\n  trainer.step(shown, loss", "one step takes both: `trainer.step(a,"),
    ],
)
def test_one_message_says_what_to_write(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "t.forge"
    path.write_text(changed(BOTH, (old, new)))
    (found,) = (d for d in lint_file(path).diagnostics if d.severity is Severity.ERROR)
    assert found.help.startswith(said)
