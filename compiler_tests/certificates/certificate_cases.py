"""The table of certificates: losses of other projects, and ours that must give the same numbers.

Case.options --theirs.py, with their code--> goldens/PROJECT.json
Case.source, Case.params --test_certificates.py--> value and gradient, against the goldens
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LOW, HIGH, HORIZON = 0.2, 0.28, 12
CLIPS = {"clip_low": LOW, "clip_high": HIGH}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """A loss of another project with its options, and a loss of ours.

    `source` is a name of the library, or the body of a loss; "" if none can be written, and `why`
    says why not. `library` is the name in the library that comes nearest, and `differs` the term in
    which it differs: the test demands that it does differ. `note` is for the table.
    """

    project: str
    theirs: str
    options: Mapping[str, Any]
    source: str
    params: Mapping[str, Any] = field(default_factory=dict)
    library: str = ""
    library_params: Mapping[str, Any] = field(default_factory=dict)
    differs: str = ""
    why: str = ""
    note: str = ""
    gives: str = "logprob"
    """`logprob`, `pairs` (log-probs of pairs), `value` or `scores` (of pairs)"""


FIELDS = {
    "logprob": "logprob: diff [B, T] f32, entropy: diff [B, T] f32, behavior: [B, T] f32, "
    "proximal: [B, T] f32, ref: [B, T] f32, adv: [B] f32, mask: [B, T] bool",
    "pairs": "logprob: diff [P, T] f32, ref: [P, T] f32, mask: [P, T] bool",
}
PAIR = """
  chosen   = sum(logprob.chosen - ref.chosen, T, mask.chosen)
  rejected = sum(logprob.rejected - ref.rejected, T, mask.rejected)
"""


def text_of(case: Case) -> str:
    """The .forge text of a loss of its own; the name of one of the library."""
    if "minimize" not in case.source:
        return case.source
    head = f'import "std/rl" as rl\nloss own({FIELDS[case.gives]}) {{'
    return f"{head}\n{case.source}\n}}\n"


def trl(loss_type: str, source: str, **given: Any) -> Case:
    """A case of TRL's GRPOTrainer."""
    options = given.pop("options", {})
    words = [f'`loss_type="{loss_type}"`', *(f"`{k}={v!r}`" for k, v in options.items())]
    return Case(
        project="trl", theirs="GRPOTrainer, " + ", ".join(words),
        options={"trainer": "grpo", "loss_type": loss_type, **options}, source=source, **given,
    )  # fmt: skip


def dpo(loss_type: str, source: str, **given: Any) -> Case:
    """A case of TRL's DPOTrainer."""
    options = given.pop("options", {})
    words = [f'`loss_type="{loss_type}"`', *(f"`{k}={v!r}`" for k, v in options.items())]
    return Case(
        project="trl", theirs="DPOTrainer, " + ", ".join(words), gives="pairs",
        options={"trainer": "dpo", "loss_type": loss_type, **options}, source=source, **given,
    )  # fmt: skip


def verl(mode: str, source: str, **given: Any) -> Case:
    """A case of verl's policy losses."""
    options = given.pop("options", {})
    words = [f'`loss_mode="{mode}"`', *(f"`{k}={v!r}`" for k, v in options.items())]
    return Case(
        project="verl", theirs=", ".join(words), options={"mode": mode, **options},
        source=source, **given,
    )  # fmt: skip


SEQUENCE = {"importance_sampling_level": "sequence"}
TOKEN_RATIO = "  ratio = rl.importance(logprob, behavior)\n"
GAIN = "  gain  = rl.surrogate(ratio, adv, 0.2, 0.28, none)\n"

CASES = (
    trl("grpo", "grpo", params={**CLIPS, "beta": 0.04}, options={"beta": 0.04}),
    trl("grpo", "grpo", params={**CLIPS, "beta": 0.0}),
    trl("dapo", "dapo", params=CLIPS),
    trl("dapo", "dapo", params={**CLIPS, "dual_clip": 1.4}, options={"delta": 1.4}),
    trl("dapo", "dapo", params={**CLIPS, "entropy_coef": 0.02}, options={"entropy_coef": 0.02}),
    trl(
        "bnpo", "dapo", params=CLIPS,
        note="if the batch is one microbatch: bnpo divides by the tokens of each microbatch",
    ),
    trl("dr_grpo", "dr_grpo", params={**CLIPS, "horizon": float(HORIZON)}),
    trl("cispo", "cispo", params={"max_weight": 1.28}),
    trl("sapo", "sapo"),
    trl("luspo", "luspo", params=CLIPS, options=SEQUENCE),
    trl("grpo", "gspo", params=CLIPS, options=SEQUENCE),
    trl(
        "vespo",
        "  moved  = clamp(logprob - behavior, -20.0, 20.0)\n"
        "  log_w  = clamp(sum(stop(moved), T, mask), -18.420680743952367, 20.0)\n"
        "  k      = 2.0 if adv >= 0 else 3.0\n"
        "  lambda = 3.0 if adv >= 0 else 2.0\n"
        "  weight = exp(clamp(lambda + k * log_w - lambda * exp(log_w), -60.0, 60.0))\n"
        "  minimize token_mean(-weight * adv * logprob, mask)",
    ),
    trl(
        "grpo",
        TOKEN_RATIO + GAIN +
        "  kl = rl.k3_unbiased(logprob, ref, ratio)\n"
        "  minimize seq_mean(-gain + 0.04 * kl, mask)",
        options={"beta": 0.04, "use_bias_correction_kl": True},
        library="grpo", library_params={**CLIPS, "beta": 0.04},
        differs="the KL term: TRL multiplies it by the ratio, `rl.grpo` does not",
    ),
    trl(
        "grpo",
        TOKEN_RATIO + GAIN +
        "  minimize seq_mean(-gain, mask) - 0.02 * token_mean(entropy, mask)",
        options={"entropy_coef": 0.02},
        library="grpo", library_params={**CLIPS, "beta": 0.0, "entropy_coef": 0.02},
        differs="the entropy: TRL takes its mean over tokens, `rl.grpo` over sequences",
    ),
    trl(
        "grpo",
        TOKEN_RATIO + GAIN +
        "  far  = mean(behavior - stop(logprob), T, mask)\n"
        "  kept = adv >= 0 or far <= 0.05\n"
        "  minimize seq_mean(-gain if kept else 0.0, mask)",
        options={"off_policy_mask_threshold": 0.05},
        library="grpo", library_params={**CLIPS, "beta": 0.0},
        differs="the gain of sequences with a negative advantage whose mean log-ratio is above the "
        "threshold: it is 0 in TRL",
    ),
    trl(
        "dapo", "tis_ppo", params={**CLIPS, "max_weight": 2.0},
        options={"vllm_importance_sampling_mode": "token_truncate"},
        note="`proximal` is TRL's old log-prob, `behavior` that of vLLM",
    ),
    trl(
        "dapo", "icepop", params={**CLIPS, "min_weight": 0.5, "max_weight": 2.0},
        options={"vllm_importance_sampling_mode": "token_mask"},
        note="`proximal` is TRL's old log-prob, `behavior` that of vLLM",
    ),
    trl(
        "dapo", "", options={"top_entropy_quantile": 0.2},
        why="a quantile of the entropies of the batch has no expression in the language",
    ),
    Case(
        project="trl", theirs="RLOOTrainer", options={"trainer": "rloo"},
        source="  ratio = exp(clamp(sum(logprob - behavior, T, mask), -20.0, 20.0))\n"
        "  minimize seq_mean(-min(ratio * adv, clip(ratio, 0.8, 1.28) * adv))",
        library="rloo_loss",
        differs="the gain: TRL's is the clipped ratio of the sequence, that of `rl.rloo_loss` the "
        "log-prob of the sequence, as in the paper",
    ),
    Case(
        project="trl", theirs="GMPOTrainer (experimental)", options={"trainer": "gmpo"},
        source="gmpo", params={"clip_low": LOW, "clip_high": HIGH},
    ),
    dpo("sigmoid", "dpo", params={"beta": 0.1}),
    dpo(
        "robust",
        PAIR +
        "  margin = 0.1 * (chosen - rejected)\n"
        "  minimize pair_mean((-0.9 * log_sigmoid(margin) + 0.1 * log_sigmoid(-margin)) / 0.8)",
        options={"label_smoothing": 0.1},
        library="dpo", library_params={"beta": 0.1, "label_smoothing": 0.1},
        differs="label smoothing: robust DPO subtracts the flipped term and divides by 1 - 2 * "
        "label_smoothing, `rl.dpo` is conservative DPO, which adds it",
    ),
    dpo(
        "ipo",
        "  chosen   = sum(logprob.chosen - ref.chosen, T, mask.chosen)\n"
        "  rejected = sum(logprob.rejected - ref.rejected, T, mask.rejected)\n"
        "  long     = count(logprob.chosen, T, mask.chosen)\n"
        "  short    = count(logprob.rejected, T, mask.rejected)\n"
        "  minimize pair_mean((chosen / long - rejected / short - 5.0) ** 2)",
        library="ipo", library_params={"beta": 0.1},
        differs="the margin: TRL divides each log-ratio by the length of its answer, `rl.ipo` does "
        "not, as in the paper",
    ),
    dpo("hinge", PAIR + "  minimize pair_mean(max(1.0 - 0.1 * (chosen - rejected), 0.0))"),
    dpo(
        "exo_pair",
        PAIR +
        "  margin = 0.1 * (chosen - rejected)\n"
        "  won    = sigmoid(margin) * (log_sigmoid(margin) - log(0.9))\n"
        "  lost   = sigmoid(-margin) * (log_sigmoid(-margin) - log(0.1))\n"
        "  minimize pair_mean(won + lost)",
        options={"label_smoothing": 0.1},
    ),
    dpo(
        "nca_pair",
        PAIR +
        "  won  = log_sigmoid(0.1 * chosen)\n"
        "  lost = log_sigmoid(-0.1 * chosen) + log_sigmoid(-0.1 * rejected)\n"
        "  minimize pair_mean(-won - 0.5 * lost)",
    ),
    dpo(
        "bco_pair",
        PAIR +
        "  minimize pair_mean(-log_sigmoid(0.1 * chosen) - log_sigmoid(-0.1 * rejected))",
    ),
    dpo("sppo_hard", PAIR + "  minimize pair_mean((chosen - 5.0) ** 2 + (rejected + 5.0) ** 2)"),
    dpo(
        "apo_zero",
        PAIR + "  minimize pair_mean(1.0 - sigmoid(0.1 * chosen) + sigmoid(0.1 * rejected))",
    ),
    dpo(
        "apo_down",
        PAIR +
        "  minimize pair_mean(sigmoid(0.1 * chosen) + 1.0 - sigmoid(0.1 * (chosen - rejected)))",
    ),
    dpo(
        "discopop",
        PAIR +
        "  margin = 0.1 * (chosen - rejected)\n"
        "  mixed  = sigmoid(margin / 0.05)\n"
        "  minimize pair_mean(-log_sigmoid(margin) * (1.0 - mixed) + exp(clamp(-margin, -20.0, "
        "20.0)) * mixed)",
    ),
    dpo(
        "sigmoid_norm",
        PAIR +
        "  long  = count(logprob.chosen, T, mask.chosen)\n"
        "  short = count(logprob.rejected, T, mask.rejected)\n"
        "  minimize pair_mean(-log_sigmoid(0.1 * (chosen / long - rejected / short)))",
    ),
    dpo(
        "sft",
        "  minimize token_mean(-logprob.chosen, mask.chosen)",
    ),
    dpo("aot", "", why="it sorts the margins of the batch, which has no expression"),
    dpo("aot_unpaired", "", why="it sorts the log-ratios of the batch, which has no expression"),
    Case(project="trl", theirs='SFTTrainer, `loss_type="nll"`',
         options={"trainer": "sft", "loss_type": "nll"}, source="sft"),
    Case(project="trl", theirs='SFTTrainer, `loss_type="dft"`',
         options={"trainer": "sft", "loss_type": "dft"}, source="dft"),
    Case(project="trl", theirs="RewardTrainer", options={"trainer": "reward"},
         source="bradley_terry", gives="scores"),
    verl("vanilla", "ppo", params={**CLIPS, "dual_clip": 3.0}),
    verl("vanilla", "grpo", params={**CLIPS, "dual_clip": 3.0, "beta": 0.0},
         options={"loss_agg_mode": "seq-mean-token-mean"}),
    verl("vanilla", "dr_grpo", params={**CLIPS, "horizon": float(HORIZON)},
         options={"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": HORIZON,
                  "clip_ratio_c": 1e6}),
    verl("vanilla", "tis_ppo", params={**CLIPS, "max_weight": 2.0},
         options={"rollout_is": "token", "clip_ratio_c": 1e6}),
    verl(
        "dppo_tv",
        TOKEN_RATIO +
        "  moved   = exp(logprob) - exp(behavior)\n"
        "  dropped = moved > 0.28 if adv > 0 else moved < -0.2\n"
        "  weight  = 0.0 if dropped else min(ratio, 20.0)\n"
        "  minimize token_mean(-stop(weight) * adv * logprob, mask)",
        library="dppo", library_params={**CLIPS, "beta": 0.0},
        differs="the value: verl multiplies the log-prob by the ratio without gradient, `rl.dppo` "
        "takes the ratio itself; for ratios below 20 the gradients are equal",
    ),
    verl(
        "dppo_kl",
        TOKEN_RATIO +
        "  old     = exp(behavior)\n"
        "  now     = exp(stop(logprob))\n"
        "  kl      = old * (behavior - stop(logprob)) + (1 - old) * log((1 - old + 1e-8) / "
        "(1 - now + 1e-8))\n"
        "  dropped = kl > 0.28 and now > old if adv > 0 else kl > 0.2 and now < old\n"
        "  weight  = 0.0 if dropped else min(ratio, 20.0)\n"
        "  minimize token_mean(-stop(weight) * adv * logprob, mask)",
    ),
    verl("gspo", "gspo_token", params=CLIPS, options={"loss_agg_mode": "seq-mean-token-mean"}),
    verl("gspo", "gspo", params=CLIPS,
         options={"loss_agg_mode": "seq-mean-token-mean", "clip_ratio_high": HIGH}),
    verl("sapo", "sapo"),
    verl(
        "gpg", "  minimize token_mean(-adv * logprob, mask)", library="reinforce",
        differs="the denominator: verl divides by the tokens of the batch, `rl.reinforce` by its "
        "sequences",
    ),
    verl("gpg", "reinforce", options={"loss_agg_mode": "seq-mean-token-sum"}),
    verl(
        "clip_cov", "",
        why="it leaves out random tokens of large covariance. A loss of the language cannot draw "
        "random numbers, and its means over the batch cannot read the trained model's outputs",
    ),
    verl("kl_cov", "", why="the tokens with the largest covariance of the batch have no "
         "expression"),
    verl("geo_mean", "gmpo", params=CLIPS),
    verl(
        "dro",
        "  minimize token_mean(-adv * logprob + 0.05 * (logprob - behavior) ** 2, mask)",
        options={"dro_beta": 0.1},
    ),
    verl(
        "cispo",
        TOKEN_RATIO + "  minimize token_mean(-stop(clip(ratio, 0.8, 1.28)) * adv * logprob, mask)",
        library="cispo", library_params={"max_weight": 1.28},
        differs="the weight: verl also bounds it below, by 1 - clip_ratio_low, `rl.cispo` does not",
    ),
    verl("cispo", "cispo", params={"max_weight": 1.28}, options={"clip_ratio_low": 1.0}),
    verl("bypass_mode", "ppo", params={**CLIPS, "dual_clip": 3.0},
         options={"loss_type": "ppo_clip"}),
    verl("bypass_mode", "cispo", params={"max_weight": 2.0},
         options={"loss_type": "reinforce", "rollout_is": "token"}),
    Case(project="verl", theirs="`compute_value_loss`", options={"mode": "value"},
         source="value_loss", params={"clip": 0.2}, gives="value"),
    Case(project="torchtitan", theirs="`DAPOLoss`, `ratio_clip_high=0.28`",
         options={"loss": "dapo"}, source="dapo", params=CLIPS),
    Case(project="torchtitan", theirs="`GRPOLoss`", options={"loss": "grpo"},
         source="dapo", params={"clip_low": LOW, "clip_high": LOW}),
)  # fmt: skip
