"""A judge on real meshes: its engine grades as the model's own log-probs say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PIPELINES = Path(__file__).parents[2] / "pipelines"
PROGRAM = """forge 1
import "std/rl" as rl
model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 64 }
model grader { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 64 }
dataset sums {
  source = jsonl("forgedsl:data/arithmetic.jsonl")
  prompt = row.question, target = after(row.answer, "#### ")
}
service trainer : titan(policy) {
  device = cpu, optimizer { lr = 1e-4 }, batch { seq_len = 64, rows = 4 }
}
service generator : vllm(policy) { device = cpu, sampling { max_tokens = 8 } }
service judge : vllm(grader) { device = cpu }
reward style = judge.score(prompt = "{prompt}{response}+1=", scale = [1, 9]) { cache = true }
flow train {
  prompt  = sums.draw(4)
  rollout = generator.sample(prompt, n = 4)
  score   = style(rollout)
  batch   = replay(rollout, adv = rl.group_norm(score))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> generator
}
schedule async { steps = 2, max_policy_age = 1 }
"""


def expected(prompt: str, response: str) -> float:
    """The grade as the weights themselves give it, on 0 to 1."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = str(PIPELINES / "models/tiny_math")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(f"{prompt}{response}+1=", add_special_tokens=False, return_tensors="pt")
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(folder)(tokens["input_ids"]).logits[0, -1]
    ids = [tokenizer.convert_tokens_to_ids(str(grade)) for grade in range(1, 10)]
    grades = torch.arange(1.0, 10.0)
    return float(((grades * torch.softmax(logits[ids], 0)).sum() - 1) / 8)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_judge_of_the_run_gives_the_expected_grade(tmp_path: Path) -> None:
    (tmp_path / "judged.forge").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl", "run", "judged.forge", "--run-dir", "run"],
        cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "run/samples.jsonl").read_text("utf-8").splitlines()
    samples: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert samples
    for sample in samples:
        wanted = expected(sample["prompt"], sample["response"])
        assert sample["score"] == pytest.approx(wanted, abs=1e-4)
    proofs = (tmp_path / "run/proofs.jsonl").read_text("utf-8").splitlines()
    (frozen,) = [line for line in map(json.loads, proofs) if line["proof"] == "frozen"]
    assert (frozen["service"], frozen["proved"], frozen["tensors"]) == ("judge", 35, 35)
