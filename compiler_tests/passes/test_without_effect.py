"""Settings that nothing reads are refused, unless a stronger layer decides so."""

from pathlib import Path

import pytest
from forge_texts import edited

HERE = Path(__file__).parent
CPU = """forge 1
import "std/rl" as rl
model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 256 }
dataset sums {
  source = jsonl("forgedsl:data/arithmetic.jsonl")
  prompt = row.question, target = after(row.answer, "#### ")
}
service trainer : titan(policy) { device = cpu, batch { seq_len = 64, rows = 64 } }
service generator : vllm(policy) { device = cpu, sampling.max_tokens = 16 }
reward correct = rl.math_equal
flow train {
  prompt  = sums.draw(8)
  rollout = generator.sample(prompt, n = 4)
  score   = correct(rollout, prompt.target)
  batch   = replay(rollout, adv = rl.group_norm(score))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> generator
}
schedule sync { steps = 2 }
"""
SYSTEM = ("prompt = row.question", 'system = "Be brief.", prompt = row.question')
LEVEL = ("prompt = row.question", "level = row.answer, prompt = row.question")
ENGINE = ("sampling.max_tokens = 16", "sampling.max_tokens = 16, {}")
END = "schedule sync"
BAD = [
    (SYSTEM, "`system` of `sums` has no effect: its prompt does not read it"),
    (LEVEL, "`level` of `sums` has no effect: no draw from it has a weight"),
    (
        (END, f"logging {{ wandb.mode = offline }}\n{END}"),
        "`wandb.mode` has no effect without `wandb.project`",
    ),
    (
        (END, f'logging {{ wandb.entity = "me" }}\n{END}'),
        "`wandb.entity` has no effect without `wandb.project`",
    ),
    (
        (END, f'logging {{ mlflow.uri = "http://x" }}\n{END}'),
        "`mlflow.uri` has no effect without `mlflow.experiment`",
    ),
    (
        (END, f'logging {{ trackio.space = "me/s" }}\n{END}'),
        "`trackio.space` has no effect without `trackio.project`",
    ),
    (
        (ENGINE[0], ENGINE[1].format("engine.gpu_memory = 0.3")),
        "`engine.gpu_memory` of `generator` has no effect on a CPU",
    ),
    (
        (ENGINE[0], ENGINE[1].format("engine.cuda_graphs = false")),
        "`engine.cuda_graphs` of `generator` has no effect on a CPU",
    ),
    (
        (ENGINE[0], ENGINE[1].format("route = sticky")),
        "`route` of `generator` has no effect with one replica",
    ),
    (
        (END, f"colocate = [trainer]\n{END}"),
        "`trainer` in `colocate` has no effect: it runs on a CPU, and services share GPUs",
    ),
]
PROFILE = (END, f"profile cpu {{ generator.device = cpu }}\n{END}")
GOOD = [
    [(SYSTEM[0], SYSTEM[1].replace("= row.q", "= chat(system, row.q").replace("tion", "tion)"))],
    [LEVEL, ("draw(8)", "draw(8, weight = rl.frontier)"),
     ("  batch ", "  sums.observe(prompt, score)\n  batch ")],
    [(END, f'logging {{ wandb {{ project = "p", entity = "me", mode = offline }} }}\n{END}')],
    [(ENGINE[0], ENGINE[1].format("replicas = 2, route = sticky"))],
    [(ENGINE[0], ENGINE[1].format("replicas = auto, route = sticky"))],
]  # fmt: skip
"""what reads the setting is there, or may be"""


@pytest.mark.parametrize(("edit", "message"), BAD)
def test_a_setting_that_nothing_reads_is_refused(edit: tuple[str, str], message: str) -> None:
    assert edited(CPU, edit, folder=HERE) == (None, [("F113", message)])


@pytest.mark.parametrize("edits", GOOD)
def test_a_setting_that_is_read_is_accepted(edits: list[tuple[str, str]]) -> None:
    assert edited(CPU, *edits, folder=HERE)[1] == []


def test_a_file_for_gpus_may_have_a_profile_for_cpus() -> None:
    edits = [
        ("vllm(policy) { device = cpu, ", "vllm(policy) { engine.gpu_memory = 0.3, "),
        PROFILE,
    ]
    assert edited(CPU, *edits, folder=HERE, profile="cpu")[1] == []
