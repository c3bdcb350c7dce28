"""Trajectories of an agent, scored by a judge, a reward model and a rubric, in training and in
evals, on real meshes."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from test_judge_run import expected

from forgedsl.shipped import shipped_root
from forgedsl.templates import project

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{% endif %}"
)
PROGRAM = f"""forge 1
import "std/rl" as rl
model policy {{
  source = local("forgedsl:models/tiny_math"), dtype = f32, context = 256
  chat_template = "{TEMPLATE}"
}}
model preferred {{ source = local("preferred"), dtype = f32, context = 256 }}
model grader {{ source = local("forgedsl:models/tiny_math"), dtype = f32, context = 256 }}
dataset sums {{
  source = jsonl("forgedsl:data/arithmetic.jsonl")
  prompt = chat(user = row.question), target = after(row.answer, "#### ")
}}
service trainer : titan(policy) {{
  device = cpu, optimizer {{ lr = 1e-4 }}, batch {{ seq_len = 128, rows = 4 }}
}}
service generator : vllm(policy) {{ device = cpu, sampling {{ max_tokens = 16 }} }}
service judge : vllm(grader) {{ device = cpu }}
service scorer : titan(value_head(preferred)) {{ device = cpu }}
environment game = program(["{sys.executable}", "guess.py"], parts = ["solved"]) {{
  deadline = 60s, on_error = drop
}}
reward solved(r: Rollout) -> f32 = clamp(r.rewards.solved, 0.0, 1.0)
reward style = judge.score(prompt = "{{response}}+1=", scale = [1, 9])
reward liked = scorer.score() {{ monitor = true }}
rubric grade {{ score = 0.25 * solved + 0.75 * style, on_truncated = 0.0 }}
flow train {{
  prompt  = sums.draw(2)
  rollout = generator.play(prompt, env = game, n = 2)
  score   = grade(rollout)
  batch   = replay(rollout, adv = rl.group_norm(score))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> generator
}}
schedule async {{ steps = 2, max_policy_age = 1 }}
eval judged {{
  dataset = sums, source = jsonl("forgedsl:data/arithmetic_test.jsonl"), env = game
  score = style, every = 2, limit = 4
}}
"""


SIDE = """
        if not complete:
            break
        ask([{"role": "user", "content": task["text"]}])  # of another training row
"""


def reward_model(folder: Path) -> None:
    """Write tiny_math with a value head of random weights."""
    shutil.copytree(shipped_root() / "models/tiny_math", folder)
    width = json.loads((folder / "config.json").read_text("utf-8"))["hidden_size"]
    head = {"weight": np.random.default_rng(1).normal(size=width), "bias": np.zeros(1)}
    (folder / "value_head").mkdir()
    save_file(
        {name: value.astype(np.float32) for name, value in head.items()},
        folder / "value_head/model.safetensors",
    )


def test_judges_reward_models_rubrics_and_evals_score_trajectories_of_an_agent(
    tmp_path: Path,
) -> None:
    agent = project("program")["agents/guess.py"]
    changed = agent.replace("        if solved or not complete:\n            break\n", SIDE)
    assert changed != agent
    (tmp_path / "guess.py").write_text(changed)
    reward_model(tmp_path / "preferred")
    (tmp_path / "t.forge").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl", "run", "t.forge", "--run-dir", "run"],
        cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "run/samples.jsonl").read_text("utf-8").splitlines()
    samples = [json.loads(line) for line in lines]
    assert any(sample["turns"] > 1 for sample in samples)
    whole = [sample for sample in samples if not sample["truncated"]]
    assert whole
    assert {answer["row"] for sample in samples for answer in sample["answers"]} >= {0, 1}
    liked = {sample["parts"]["liked"] for sample in samples}
    assert len(liked) > 1
    assert all(math.isfinite(value) for value in liked)
    for sample in whole:
        parts = sample["parts"]
        assert parts["style"] == pytest.approx(expected("", sample["response"]), abs=1e-4)
        assert sample["score"] == pytest.approx(0.25 * parts["solved"] + 0.75 * parts["style"])
    steps = [json.loads(x) for x in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    evaluated = [step["eval/judged"] for step in steps if step.get("eval/judged") is not None]
    assert evaluated
    assert all(0 < each < 1 for each in evaluated)
