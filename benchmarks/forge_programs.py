"""Programs of any length for benchmarks/lint.py, all of them valid.

losses(n)   grpo_math.forge, then losses, each of another structure: the dearest kind of line
mixed(n)    grpo_math.forge, then declarations of all kinds in the proportion of a pipeline
folder(n)   a folder with n Python files of rewards, and pipelines that import ten of them each
"""

from __future__ import annotations

from pathlib import Path

BASE = (Path(__file__).parents[1] / "pipelines/grpo_math.forge").read_text("utf-8")
LOSS = """
loss pg_{i}(logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, mask: [B, T] bool) {{
  ratio = exp(clamp(logprob - behavior, -10.0, 10.0))
  gain  = min(ratio * adv, clip(ratio, 1 - eps, 1 + {high}) * adv)
  minimize token_mean(-gain, mask)
  report gain = token_mean(gain, mask)
}}
"""
OTHERS = """
## Weight of term {i}.
param weight_{i} : float = {high}

model base_{i} {{ source = hf("Qwen/Qwen3-1.7B"), arch = qwen3("1.7B"), context = 4096 }}

dataset rows_{i} {{
  source = hf("openai/gsm8k", config = "main", split = "train[{i}:]")
  prompt = chat("Put the number inside <answer> tags.", row.question)
  target = after(row.answer, "#### ")
}}

reward short_{i}(r: Rollout) -> f32 = clamp(1.0 - weight_{i} * r.num_tokens / 64, 0.0, 1.0)
reward exact_{i} = rl.math_equal(tolerance = 1e-6)

rubric score_{i} {{
  score        = 0.9 * exact_{i} + 0.1 * short_{i}
  on_truncated = 0.0
  on_error     = drop
}}

advantage norm_{i}(r: [G] f32) -> [G] f32 = (r - mean(r, G)) / (std(r, G) + {high})
filter mixed_{i}(score: [G] f32) -> bool = std(score, G) > {high}
fn bounded_{i}(x: [B, T] f32) -> [B, T] f32 = clamp(x, -weight_{i}, weight_{i})

eval split_{i} {{
  dataset = gsm8k, split = "test[{i}:]"
  score   = short_{i}
  every   = 50
  sample  {{ temperature = 0.0, n = 1 }}
}}
"""
PYTHON = '''\
"""Rewards of task {i}."""

import re

NUMBER = re.compile(r"-?[0-9]+(?:[.][0-9]+)?")


def _numbers(text: str) -> list[float]:
    """The numbers of a text."""
    return [float(found) for found in NUMBER.findall(text)]


def last_number(prompt: str, response: str, target: str) -> float:
    """1 if the last number of the answer is the target."""
    found = _numbers(response)
    return 1.0 if found and abs(found[-1] - float(target)) < {tolerance} else 0.0


def tagged(response: str) -> float:
    """1 if the answer is in tags."""
    inside = response.partition("<answer>")[2].partition("</answer>")[0].strip()
    return 1.0 if inside else 0.0
'''
IMPORTED = """
import python "rewards_{i}.py" as task_{i}
reward last_{i} = task_{i}.last_number
reward tagged_{i} = task_{i}.tagged
rubric of_task_{i} {{
  score        = 0.9 * last_{i} + 0.1 * tagged_{i}
  on_truncated = 0.0
  on_error     = drop
}}
"""
OF_A_PIPELINE = 10
"""Python files that a pipeline imports"""


def losses(num_lines: int) -> str:
    """A program of about that many lines."""
    return _grown(LOSS, num_lines)


def mixed(num_lines: int) -> str:
    """A program of about that many lines."""
    return _grown(OTHERS + LOSS, num_lines)


def _grown(part: str, num_lines: int) -> str:
    number = (num_lines - BASE.count("\n")) // part.count("\n")
    return BASE + "".join(part.format(i=i, high=round(0.2 + 0.01 * i, 6)) for i in range(number))


def folder(path: Path, num_files: int) -> None:
    """Write the files of Python, and pipelines that import them."""
    for first in range(0, num_files, OF_A_PIPELINE):
        numbers = range(first, min(first + OF_A_PIPELINE, num_files))
        for i in numbers:
            text = PYTHON.format(i=i, tolerance=0.001 + i / 1e4)
            (path / f"rewards_{i}.py").write_text(text, "utf-8")
        parts = [IMPORTED.format(i=i) for i in numbers]
        (path / f"pipeline_{first}.forge").write_text(BASE + "".join(parts), "utf-8")
