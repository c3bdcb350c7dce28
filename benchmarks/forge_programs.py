"""Programs of any length for benchmarks/lint.py, all of them valid.

losses(n)   grpo_math.forge, then losses, each of another structure: the dearest kind of line
mixed(n)    grpo_math.forge, then declarations of all kinds in the proportion of a pipeline
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


def losses(num_lines: int) -> str:
    """A program of about that many lines."""
    return _grown(LOSS, num_lines)


def mixed(num_lines: int) -> str:
    """A program of about that many lines."""
    return _grown(OTHERS + LOSS, num_lines)


def _grown(part: str, num_lines: int) -> str:
    number = (num_lines - BASE.count("\n")) // part.count("\n")
    return BASE + "".join(part.format(i=i, high=round(0.2 + 0.01 * i, 6)) for i in range(number))
