"""Judges that compare siblings: what the job says, what is refused."""

from pathlib import Path

import pytest
from forge_texts import edited

import forgedsl.pipelines

FOLDER = Path(forgedsl.pipelines.__file__).parent
TEXT = """forge 1
import "std/rl" as rl

model policy { source = local("models/tiny_math"), dtype = f32, context = 256 }
model grader { source = local("models/tiny_math"), dtype = f32, context = 256 }
dataset sums { source = jsonl("data/arithmetic.jsonl"), prompt = row.question }

service trainer   : titan(policy) { device = cpu, batch { seq_len = 64, rows = 16 } }
service generator : vllm(policy)  { device = cpu, sampling.max_tokens = 16 }
service judge     : vllm(grader)  { device = cpu }

reward better = judge.score(prompt = "A: {response} B: {other} 1 to 5:", scale = [1, 5])

flow train {
  prompt  = sums.draw(4)
  rollout = generator.sample(prompt, n = 4)
  score   = better(rollout)
  batch   = replay(rollout, adv = rl.group_norm(score))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> generator
}
schedule sync { steps = 3 }
"""
OTHERS = ("{other}", "{others}")
EVAL = ("schedule sync", "eval held { dataset = sums, score = better, every = 1 }\nschedule sync")


def lowered(*changes):
    return edited(TEXT, *changes, folder=FOLDER)


@pytest.mark.parametrize(
    ("changes", "read"), [((), 12 * (2 * 16 + 8)), ((OTHERS,), 4 * (4 * 16 + 8))]
)
def test_the_score_waits_for_the_group_and_the_plan_counts_what_the_judge_reads(changes, read):
    made, problems = lowered(*changes)
    assert problems == []
    assert [node.name for node in made.job.nodes if node.compares] == ["score"]
    (stage,) = [stage for stage in made.plan.cost.stages if stage.node == "better"]
    assert stage.tokens == pytest.approx(4 * read, rel=0.1)


def test_other_judges_wait_for_nobody():
    made, _ = lowered(("B: {other} ", ""))
    assert not any(node.compares for node in made.job.nodes)


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (
            (", n = 4", ""),
            "F112",
            "`better` compares the completions of a prompt, but `rollout` samples only one",
        ),
        (EVAL, "F112", "`held` scores by `better`, which compares the completions of a prompt"),
        (("{other}", "{other} {others}"), "F113", "use either `{other}`"),
        (("{other}", "{othr}"), "F101", "the judge's prompt cannot have the placeholder `othr`"),
    ],
)
def test_mistakes_have_their_message(change, code, message):
    _, problems = lowered(change)
    assert [(c, m[: len(message)]) for c, m in problems] == [(code, message)]
