"""Programs for rule tests: a small one that is clean, and edits of it."""

from pathlib import Path

import pytest

from forgedsl.lint.engine import lint_source
from forgedsl.source import SourceFile

BASE = """\
forge 1
import "std/rl" as rl

param group : int = 4

model policy { source = random(1), arch = qwen3(layers = 2, hidden = 64, heads = 2, kv_heads = 2,
  head_dim = 32, ffn = 128, vocab = 64), tokenizer = local("t"), dtype = f32, context = 64 }

dataset sums {
  source = jsonl("sums.jsonl")
  prompt = row.question
  target = row.answer
}

service trainer : titan(policy) { optimizer { lr = 1e-4 }, batch { seq_len = 64, rows = 4 } }
service generator : vllm(policy) {
  sampling { temperature = 1.0, max_tokens = 16 }
}

reward correct = rl.exact
rubric points { score = correct, on_truncated = 0.0 }
advantage norm(r: [G] f32) -> [G] f32 = (r - mean(r, G)) / (std(r, G) + 1e-6)
filter mixed(score: [G] f32) -> bool = std(score, G) > 0.0

loss pg(logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, mask: [B, T] bool) {
  ratio = exp(clamp(logprob - behavior, -10.0, 10.0))
  minimize token_mean(-ratio * adv, mask)
}

flow train {
  prompt  = sums.draw(8)
  rollout = generator.sample(prompt, n = group)
  score   = points(rollout, prompt.target)
  kept    = rollout.keep(mixed(score))
  batch   = replay(kept, adv = norm(score))
  trainer.step(batch, loss = pg)
  sync trainer -> generator { every = 1 }
}

schedule async { steps = 10, max_policy_age = 1, starve_timeout = 1min }
eval held_out { dataset = sums, source = jsonl("test.jsonl"), score = correct, every = 5 }
"""


def lint(text, profile=None):
    return lint_source(SourceFile("t.forge", text), Path(__file__).parent, profile=profile)


@pytest.fixture
def base():
    return BASE


@pytest.fixture
def findings():
    """(code, text at its place) of each finding in BASE after replacing old by new."""

    def find(*edits, profile=None):
        text = BASE
        for old, new in edits:
            assert old in text, old
            text = text.replace(old, new)
        result = lint(text, profile)
        return [(d.code, text[d.span.start : d.span.end]) for d in result.diagnostics]

    return find
