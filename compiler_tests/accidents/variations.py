"""Variations of shipped pipelines that change no meaning, or exchange a formula for one as good.

seed -> another text of which nothing above information may be found
"""

import itertools
import random
import re
from functools import cache

from .corpus import PIPELINES, pipeline

SHIPPED = tuple(sorted(path.stem for path in PIPELINES.glob("*.forge")))
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


NAMES = (
    "rollout", "kept", "generator", "trainer", "policy", "reference", "gsm8k", "ratio", "gain",
    "correct", "thinking", "brevity", "overlong", "ref_lp", "student", "expert", "pair", "eps",
    "math_score", "grade", "dapo_score", "held_out", "moved", "clipped", "solved", "early",
)  # fmt: skip
NUMBERS = {
    r"lr = 1e-6": ("lr = 5e-7", "lr = 2e-6", "lr = 3e-6"),
    r"lr = 1e-5": ("lr = 5e-6", "lr = 2e-5"),
    r"steps = (250|500|150)\b": ("steps = 200", "steps = 400", "steps = 1000"),
    r"\bn = (4|8)\b": ("n = 4", "n = 8", "n = 16"),
    r"draw\((32|64)\)": ("draw(32)", "draw(64)", "draw(128)"),
    r"max_policy_age = 1\b": ("max_policy_age = 1", "max_policy_age = 2", "max_policy_age = 4"),
    r"seed\(17\)": ("seed(1)", "seed(99)"),
    r"weight_decay = 0.1": ("weight_decay = 0.0", "weight_decay = 0.01"),
    r"tolerance = 1e-6": ("tolerance = 1e-4", "tolerance = 1e-3"),
    r"every = 50\b": ("every = 25", "every = 100"),
    r"beta = 0.1\b": ("beta = 0.05", "beta = 0.3"),
    r"max_weight = 5.0": ("max_weight = 3.0", "max_weight = 10.0"),
    r"clip_high = 0.28": ("clip_high = 0.2", "clip_high = 0.3"),
}


@cache
def variations(count):
    """So many texts, each unlike the others and what they were made of."""
    found = dict.fromkeys(map(pipeline, SHIPPED))
    wanted, seeds = len(found) + count, itertools.count()
    while len(found) < wanted:
        found.setdefault(variation(next(seeds))[1])
    return list(found)[-count:]


def variation(seed):
    """(what it was made of, text)"""
    if seed % 3 == 0:
        return "grpo_math", of_formulas(seed)
    if seed % 3 == 1:
        return "library", of_library(seed)
    pick = random.Random(seed)
    name = pick.choice(SHIPPED)
    return name, reordered(renamed(renumbered(pipeline(name), pick), pick), pick)


def renumbered(text, pick):
    """Other numbers of the ranges in use."""
    for old, new in NUMBERS.items():
        if pick.random() < 0.5:
            text = re.sub(old, pick.choice(new), text)
    return text


def renamed(text, pick):
    """Other names."""
    for name in NAMES:
        if pick.random() < 0.5:
            other = pick.choice((f"{name}_{pick.randrange(100)}", f"my_{name}", f"{name}s1"))
            text = re.sub(rf"(?<![\w.\"/]){name}(?![\w\"/-])", other, text)
    return text


def reordered(text, pick):
    """Comments left out, but not what they allow; declarations in another order."""
    text = re.sub(r"^##?(?! forge: allow)[^#].*\n", "", text, flags=re.M)
    first, *others = re.split(r"\n\n+", text.strip())
    while others and others[0].startswith("import"):
        first += "\n" + others.pop(0)
    pick.shuffle(others)
    return "\n\n".join((first, *others)) + "\n"


def of_library(seed):
    """A pipeline with a loss and an advantage of the library exchanged for others."""
    pick = random.Random(seed)
    text = pipeline(f"{pick.choice(LIBRARY)}_math")
    text = re.sub(r"loss = rl\.\w+(\([^()]*\))?", f"loss = {pick.choice(LOSSES)}", text)
    text = text.replace("rl.group_norm(score)", pick.choice(BASELINES))
    return text.replace("rollout", pick.choice(["rollout", "sampled", "answers"]))


def of_formulas(seed):
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
    text = pipeline("grpo_math")
    for old, new in swaps:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text.replace("ratio", pick.choice(["ratio", "w", "importance"]))
