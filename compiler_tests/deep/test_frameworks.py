"""Agents of other projects, unmodified and in environments of their own, train for three steps.

A random model of two layers writes what it writes; each framework asks it at the endpoint in its
own way, and what was asked and answered is trained. FORGE_DEEP=1 runs them, one to three minutes
each on two cores; frameworks/install.py installs them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).parent / "frameworks"))
from install import FRAMEWORKS, LINE, NO_AGENTS, folder, is_installed, packages

pytestmark = [
    pytest.mark.skipif(os.environ.get("FORGE_DEEP") != "1", reason="minutes; FORGE_DEEP=1"),
    pytest.mark.timeout(900),
]
ROOT = Path(__file__).parents[2]
TEMPLATE = (
    "{% if tools %}<|im_start|>system\\n{{ tools | tojson }}<|im_end|>\\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\\n{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\\n{% endif %}"
)
PIPELINE = """forge 1
import "std/rl" as rl
import python "vowels.py" as vowels

model policy {
  source = random(1), dtype = f32, context = 8192, tokenizer = local("tokenizer")
  arch = qwen3(layers = 2, hidden = 64, heads = 2, kv_heads = 2, head_dim = 32, ffn = 128,
    vocab = 4096)
  chat_template = "TEMPLATE"
}
dataset sums {
  source = jsonl("forgedsl:data/arithmetic.jsonl"), prompt = chat(user = row.question)
  target = after(row.answer, "#### ")
}
service trainer : titan(policy) {
  device = cpu, optimizer.lr = 1e-3, batch { seq_len = 8192, rows = 2 }
}
service generator : vllm(policy) { device = cpu, sampling.max_tokens = 32 }
environment agent = program(COMMAND) { deadline = 240s, on_error = drop }
reward right(r: Rollout) -> f32 = clamp(r.rewards.reward, 0.0, 1.0)
reward open = vowels.share
rubric grade { score = 0.5 * right + 0.5 * open, on_truncated = 0.0 }
loss pg(logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, mask: [B, T] bool) {
  ratio = exp(clamp(logprob - behavior, -10.0, 10.0))
  minimize token_mean(-ratio * adv, mask)
  report ratio = token_mean(ratio, mask)
}
flow train {
  prompt  = sums.draw(2)
  rollout = generator.play(prompt, env = agent, n = 2)
  batch   = replay(rollout, adv = rl.mean_baseline(grade(rollout)))
  trainer.step(batch, loss = pg)
  sync trainer -> generator
}
schedule sync { steps = 3 }
"""
VOWELS = "def share(prompt, response):\n    return sum(c in 'aeiou' for c in response) / 99\n"
MINI = (
    '"mini", "-y", "--exit-immediately", "--agent-class", "default", "-m", "openai/policy", '
    '"-t", "{task}", "-o", "trajectory.json", "-c", "mini.yaml", "-c", "agent.step_limit=2", '
    '"-c", "model.cost_tracking=ignore_errors", "-c", "model.model_kwargs.max_tokens=16"'
)
OPTIONS = {
    "mini-swe-agent": (
        'variables = ["MSWEA_CONFIGURED=true", "MSWEA_GLOBAL_CONFIG_DIR=.", '
        '"MSWEA_SILENT_STARTUP=1", "LITELLM_LOCAL_MODEL_COST_MAP=True"], reward = none'
    )
}


def tokenizer(where: Path) -> None:
    """Write a byte-level BPE of 4,000 tokens, trained on the guide."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=4000, special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    made.train([str(path) for path in sorted((ROOT / "docs/guide").glob("*.md"))], trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    ).save_pretrained(where)


def trained(folder: Path, *words: str) -> tuple[str, list[dict[str, Any]]]:
    """Run t.forge of a folder; return what it printed, and its metrics."""
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", "run", "t.forge", "--run-dir", "run", *words],
        cwd=folder, capture_output=True, text=True, timeout=880, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    lines = (folder / "run/metrics.jsonl").read_text().splitlines()
    return said, [json.loads(line) for line in lines]


def needs(name: str) -> None:
    if not is_installed(name):
        pytest.skip(f"no framework {name}: {LINE} {name}")


@pytest.mark.parametrize("name", [name for name in FRAMEWORKS if name not in NO_AGENTS])
def test_an_agent_of_another_project_trains_three_steps(name: str, tmp_path: Path) -> None:
    needs(name)
    tokenizer(tmp_path / "tokenizer")
    (tmp_path / "vowels.py").write_text(VOWELS, "utf-8")
    script = f"use_{name.replace('-', '_')}.py"
    command = f'["{folder(name)}/bin/python", "{script}"]'
    if name == "mini-swe-agent":  # its own command, as it is installed
        command = "[" + MINI.replace('"mini"', f'"{folder(name)}/bin/mini"') + "]"
    else:
        source = Path(__file__).parent / "frameworks" / script
        (tmp_path / script).write_text(source.read_text("utf-8"), "utf-8")
    text = PIPELINE.replace("COMMAND", ", ".join(filter(None, (command, OPTIONS.get(name)))))
    if "reward = none" in text:
        text = text.replace(
            "reward right(r: Rollout) -> f32 = clamp(r.rewards.reward, 0.0, 1.0)", ""
        )
        text = text.replace("0.5 * right + 0.5 * open", "open")
    (tmp_path / "t.forge").write_text(text.replace("TEMPLATE", TEMPLATE), "utf-8")
    said, steps = trained(tmp_path)
    assert " failed:" not in said
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert steps[0]["loss/ratio"] == pytest.approx(1.0, abs=1e-4)
    assert all(step["grad_norm"] > 0 for step in steps)


PLAIN = (
    "{% for m in messages %}{{ m.content.replace(' ', '') }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{% endif %}"
)
LEARNS = """forge 1
import "std/rl" as rl
import python "chain_sum.py" as chain

model policy {
  source = local("forgedsl:models/tiny_math"), dtype = f32, context = 256
  chat_template = "PLAIN"
}
dataset sums {
  source = jsonl("train.jsonl"), prompt = chat(user = after(row.question, "problem: "))
  target = row.answer
}
service trainer : titan(policy) {
  device = cpu, optimizer.lr = 3e-4, batch { seq_len = 64, rows = 128 }
}
service generator : vllm(policy) { device = cpu, sampling.max_tokens = 16 }
environment gym = chain.Chain(packages = [PACKAGES]) { deadline = 60s, on_error = 0.0 }
reward right(r: Rollout) -> f32 = clamp(r.rewards.reward, 0.0, 1.0)
rubric grade { score = right, on_truncated = 0.0, on_error = drop }
flow train {
  prompt  = sums.draw(24)
  rollout = generator.play(prompt, env = gym, n = 8)
  batch   = replay(rollout, adv = rl.group_norm(grade(rollout)))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> generator
}
schedule async { steps = 80, max_policy_age = 1 }
eval held_out {
  dataset = sums, source = jsonl("test.jsonl"), env = gym, score = right, every = 20, limit = 300
}
"""
ROWS = """
import json, sys, reasoning_gym
given = dict(min_terms=2, max_terms=2, min_digits=1, max_digits=2)
for name, seed, size in (("train", 1000, 5000), ("test", 1, 300)):  # row i has seed + i
    with open(f"{name}.jsonl", "w") as file:
        for row in reasoning_gym.create_dataset("chain_sum", seed=seed, size=size, **given):
            print(json.dumps({k: row[k] for k in ("question", "answer")}), file=file)
"""
GAIN = 0.1
"""of 300 held-out sums. One in six is right at first; the standard error of a share is 0.026"""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_agent_of_another_project_learns_in_an_environment_of_another(
    seed: int, tmp_path: Path
) -> None:
    needs("openai-agents")
    needs("reasoning-gym")
    python = folder("reasoning-gym") / "bin/python"
    subprocess.run([python, "-c", ROWS], cwd=tmp_path, check=True)
    source = Path(__file__).parent / "frameworks/chain_sum.py"
    (tmp_path / "chain_sum.py").write_text(source.read_text("utf-8"), "utf-8")
    listed = ", ".join(f'"{packages(name)}"' for name in ("openai-agents", "reasoning-gym"))
    (tmp_path / "t.forge").write_text(
        LEARNS.replace("PACKAGES", listed).replace("PLAIN", PLAIN), "utf-8"
    )
    _, steps = trained(tmp_path, "--seed", str(seed))
    curve = [step["eval/held_out"] for step in steps if step.get("eval/held_out") is not None]
    print(seed, [round(each, 3) for each in curve], f"{steps[-1]['wall_s']:.0f} s")
    assert curve[-1] > curve[0] + GAIN
