"""Small pipelines for the tests of graph, plan and lowering."""

from pathlib import Path

from forgedsl.api import Loaded, load_text
from forgedsl.graph.dataflow import build
from forgedsl.lower.build import lower
from forgedsl.plan.plan import plan
from forgedsl.sizes.hosts import Host

GRPO = """forge 1
import "std/rl" as rl
param beta : float = 0.02
model policy { source = hf("Qwen/Qwen3-1.7B"), arch = qwen3("1.7B"), context = 4096 }
dataset gsm8k {
  source = hf("openai/gsm8k", split = "train")
  prompt = row.question
  target = row.answer
  max_prompt_tokens = 512
}
service trainer : titan(policy) {
  procs = 4, optimizer.lr = 1e-6, batch { seq_len = 4096, rows = 4 }
}
service generator : vllm(policy) { replicas = 2, parallel.tp = 2, sampling.max_tokens = 1024 }
service reference : titan(policy) { device = cpu, procs = 2 }
reward correct = rl.math_equal(tolerance = 1e-6)
rubric total { score = correct, on_truncated = 0.0 }
filter mixed(score: [G] f32) -> bool = std(score, G) > 0.0
loss grpo(
  logprob: diff [B, T] f32, behavior: [B, T] f32, ref: [B, T] f32, adv: [B] f32,
  mask: [B, T] bool,
) {
  ratio = exp(clamp(logprob - behavior, -10.0, 10.0))
  minimize token_mean(-ratio * adv + beta * rl.k3(logprob, ref), mask)
}
flow train {
  prompt  = gsm8k.draw(16)
  rollout = generator.sample(prompt, n = 8)
  ref_lp  = reference.logprobs(rollout)
  score   = total(rollout, prompt.target)
  batch   = replay(rollout, ref = ref_lp, adv = rl.mean_baseline(score))
  trainer.step(batch, loss = grpo)
  sync trainer -> generator { every = 1 }
}
schedule async { steps = 500, max_policy_age = 1 }
"""

SFT = """forge 1
model base { source = hf("Qwen/Qwen3-8B"), arch = qwen3("8B") }
dataset tulu { source = hf("allenai/tulu", split = "train"), chat = row.messages }
service trainer : titan(base) {
  procs = 8, optimizer.lr = 1e-5, batch { seq_len = 4096, tokens = 64k }
  memory.activation_checkpoint = full
}
loss nll(logprob: diff [B, T] f32, mask: [B, T] bool) { minimize token_mean(-logprob, mask) }
flow train {
  batch = tulu.batches()
  trainer.step(batch, loss = nll)
}
schedule sync { epochs = 1 }
"""


def changed(text: str, *edits: tuple[str, str]) -> str:
    """`text` with each (old, new) replaced; old must occur."""
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


def loaded(text: str, *overrides: str, folder: Path | None = None, host: Host | None = None):
    found = load_text(text, "test.forge", folder=folder, overrides=overrides, host=host)
    assert not found.reporter.has_errors, list(found.reporter)
    return found


def graph_of(text: str, *overrides: str):
    """(graph or None, diagnostics)."""
    found = loaded(text, *overrides)
    return build(found.program, reporter=found.reporter), list(found.reporter)


def plan_of(text: str, *overrides: str, host: Host | None = None, base_dir: Path | None = None):
    """(plan or None, diagnostics)."""
    found = loaded(text, *overrides, folder=base_dir, host=host)
    graph = build(found.program, reporter=found.reporter)
    assert graph is not None, list(found.reporter)
    made = plan(found.program, graph, reporter=found.reporter, host=host, base_dir=base_dir)
    return made, list(found.reporter)


def lower_of(text: str, *overrides: str, folder: Path):
    """(lowered or None, diagnostics)."""
    found: Loaded = loaded(text, *overrides, folder=folder)
    result = lower(found.program, reporter=found.reporter, sources=found.sources, base_dir=folder)
    return result, list(found.reporter)


def edited(text: str, *edits: tuple[str, str], folder: Path, **options):
    """(lowered or None, code and message of each error) of a text that may have errors."""
    found = load_text(changed(text, *edits), "edited.forge", folder=folder, **options)
    made = None
    if found.program is not None and not found.reporter.has_errors:
        made = lower(found.program, reporter=found.reporter, sources=found.sources, base_dir=folder)
    return made, [(d.code, d.message) for d in found.reporter if d.severity == "error"]


def job_of(text: str, *edits: tuple[str, str], folder: Path):
    """(job or None, diagnostics) of a text that may have errors."""
    found = load_text(changed(text, *edits), "test.forge", folder=folder)
    made = None
    if not found.reporter.has_errors:
        made = lower(found.program, reporter=found.reporter, sources=found.sources, base_dir=folder)
    return made and made.job, list(found.reporter)


def text_at(text: str, diagnostic) -> str:
    """The source text a diagnostic points at."""
    return text[diagnostic.span.start : diagnostic.span.end]
