"""Valid variants of the pipelines are silent: a rule that fires on a sound program is wrong."""

import os
import random
import re
from pathlib import Path

import pytest

from forgedsl.lint.engine import lint_source
from forgedsl.source import SourceFile

FOLDER = Path(__file__).parents[2] / "pipelines"
TEXT = (FOLDER / "grpo_math.forge").read_text("utf-8")
DEEP = bool(os.environ.get("FORGE_DEEP"))
COUNT = 300 if DEEP else 24
OBJECTIVES = (
    "seq_mean(pg + beta * kl, mask)",
    "token_mean(pg + beta * kl, mask)",
    "fixed_horizon(pg + beta * kl, mask, 1024.0)",
    "seq_sum(pg + beta * kl, mask)",
    "seq_mean(mean(pg + beta * kl, T, mask))",
    "token_mean(pg, mask) + beta * token_mean(kl, mask)",
)
GAINS = (
    "-min(ratio * adv, clip(ratio, 1 - eps, 1 + eps) * adv)",
    "max(-ratio * adv, -clip(ratio, 1 - eps, 1 + 1.5 * eps) * adv)",
    "-ratio * adv",
    "-stop(min(ratio, 5.0)) * adv * logprob",
    "-(min(ratio, 1 + eps) if adv > 0 else max(ratio, 1 - eps)) * adv",
    "-sigmoid(2.0 * (ratio - 1)) * 2.0 * adv",
)
RATIOS = (
    "exp(clamp(logprob - behavior, -10.0, 10.0))",
    "exp(min(max(logprob - behavior, -20.0), 20.0))",
    "exp(clamp(mean(logprob - behavior, T, mask), -5.0, 5.0) + 0.0 * logprob)",
    "stop(exp(clamp(logprob - behavior, -9.0, 9.0))) * exp(logprob - stop(logprob))",
)
KLS = (
    "ratio * rl.k3(logprob, ref)",
    "rl.k2(logprob, ref)",
    "rl.k3_unbiased(logprob, ref, ratio)",
    "0.5 * clamp(logprob - ref, -10.0, 10.0) ** 2",
    "ratio * stop(logprob - ref)",
)
ADVANTAGES = (
    "(r - mean(r, G)) / (std(r, G) + 1e-6)",
    "r - mean(r, G)",
    "r - (sum(r, G) - r) / (count(r, G) - 1)",
    "(r - mean(r, G)) / max(std(r, G), 1e-4)",
    "(r - mean(r, G)) / std(r, G) if std(r, G) > 0 else 0.0",
)
SCORES = (
    "0.85 * correct + 0.1 * thinking + 0.05 * brevity",
    "correct + 0.2 * thinking - 0.1 * brevity",
    "(2.0 * correct + thinking + brevity) / 4",
)


LOSSES = (
    "rl.cispo(max_weight = 5.0)", "rl.gspo", "rl.gspo_token", "rl.sapo", "rl.ppo", "rl.gmpo",
    "rl.luspo", "rl.dppo", "rl.dapo(clip_low = 0.2, clip_high = 0.28)",
)  # fmt: skip
BASELINES = (
    "rl.group_norm(score)", "rl.mean_baseline(score)", "rl.rloo(score)", "rl.maxrl(score)",
    "rl.opo(score, rollout.num_tokens)",
)  # fmt: skip
LIBRARY = ("cispo", "dapo", "gspo", "sapo")


def of_library(seed):
    """A pipeline with a loss and an advantage of the library exchanged for others."""
    pick = random.Random(seed)
    text = (FOLDER / f"{pick.choice(LIBRARY)}_math.forge").read_text("utf-8")
    text = re.sub(r"loss = rl\.\w+(\([^()]*\))?", f"loss = {pick.choice(LOSSES)}", text)
    text = text.replace("rl.group_norm(score)", pick.choice(BASELINES))
    return text.replace("rollout", pick.choice(["rollout", "sampled", "answers"]))


def variant(seed):
    """The pipeline with its numbers and formulas exchanged for others that are as good."""
    pick = random.Random(seed)
    temperature = pick.choice(["1.0", "0.7", "1.2"])
    ratio = pick.choice(RATIOS)
    eps = 3e-4 if "mean" in ratio else pick.choice([0.1, 0.28])
    swaps = [
        ("exp(clamp(logprob - behavior, -10.0, 10.0))", ratio),
        ("-min(ratio * adv, clip(ratio, 1 - eps, 1 + eps) * adv)", pick.choice(GAINS)),
        ("ratio * rl.k3(logprob, ref)", pick.choice(KLS)),
        ("seq_mean(pg + beta * kl, mask)", pick.choice(OBJECTIVES)),
        ("(r - mean(r, G)) / (std(r, G) + 1e-6)", pick.choice(ADVANTAGES)),
        ("0.85 * correct + 0.1 * thinking + 0.05 * brevity", pick.choice(SCORES)),
        ("temperature = 1.0, top_p", f"temperature = {temperature}, top_p"),
        ("  procs     = 4 ", f"  temperature = {temperature}\n  procs     = 4 "),
        ("procs = trainer.procs }", f"procs = trainer.procs, temperature = {temperature} }}"),
        ("group      : int   = 8", f"group      : int   = {pick.choice([2, 4, 16])}"),
        ("eps        : float = 0.2", f"eps        : float = {eps}"),
    ]  # fmt: skip
    text = TEXT
    for old, new in swaps:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text.replace("ratio", pick.choice(["ratio", "w", "importance"]))


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_valid_variant_is_silent(seed):
    text = of_library(seed) if seed % 3 == 2 else variant(seed)
    source = SourceFile("variant.forge", text)
    result = lint_source(source, FOLDER, profile=None if DEEP else "none")
    assert [(d.code, d.message, text[d.span.start : d.span.end]) for d in result.diagnostics] == []
