"""Compute the goldens of certificates with the loss code of TRL, verl and torchtitan.

    python compiler_tests/certificates/theirs.py trl|verl|torchtitan   ->   goldens/PROJECT.json

The interpreter must have the project. TRL and torchtitan come with this project; verl needs a
folder of its own:

    pip install --no-deps --target DIR verl ray tensordict omegaconf hydra-core msgpack ...
    PYTHONPATH=DIR python compiler_tests/certificates/theirs.py verl

The methods of their trainers run as they are, on trainer objects that have only the attributes
that the methods read. Log-probs are given, in float64, in place of a model.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Mapping
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from certificate_cases import CASES, HIGH, HORIZON, LOW, Case
from torch import Tensor

GOLDENS = Path(__file__).parent / "goldens"
BATCH = GOLDENS / "batch.json"
LENGTHS = (9, 4, 7, 1, 8, 5)
WIDTH = max(LENGTHS)


def draw() -> dict[str, list[Any]]:
    """Six sequences, or three pairs, with ratios far on both sides of every clip."""
    rng = torch.Generator().manual_seed(20)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    shape = (len(LENGTHS), WIDTH)
    logprob = -noise(*shape).exp()
    moved = 0.3 * noise(*shape) + 1.5 * noise(*shape) * (noise(*shape) > 1.0)
    old = noise(*shape)
    found = {
        "logprob": logprob, "entropy": noise(*shape).exp(),
        "behavior": (logprob - moved).clamp(max=-1e-3),
        "proximal": (logprob - 0.2 * noise(*shape)).clamp(max=-1e-3),
        "ref": (logprob + 0.4 * noise(*shape)).clamp(max=-1e-3), "adv": noise(len(LENGTHS)),
        "old": old, "value": old + 0.3 * noise(*shape), "ret": noise(*shape),
        "mask": torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None],
    }  # fmt: skip
    return {name: values.tolist() for name, values in found.items()}


def tensors() -> SimpleNamespace:
    """The recorded batch, in float64."""
    found = json.loads(BATCH.read_text("utf-8"))
    given = {n: torch.tensor(v, dtype=torch.float64) for n, v in found.items() if n != "mask"}
    return SimpleNamespace(**given, mask=torch.tensor(found["mask"]))


def trl(case: Case, x: SimpleNamespace) -> tuple[Tensor, dict[str, Tensor]]:
    """TRL's loss, and the tensors that it is differentiated by."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it asks for another vLLM, which a loss does not need
        return TRL[case.options["trainer"]](case.options, x)


ACCELERATOR = SimpleNamespace(
    autocast=nullcontext, num_processes=1, sync_gradients=True, is_main_process=False,
    device="cpu", parallelism_config=None, gather=lambda x: x, gather_for_metrics=lambda x: x,
    reduce=lambda x, reduction: x,
)  # fmt: skip


def of_samples(options: Mapping[str, Any], x: SimpleNamespace) -> Any:
    """GRPOTrainer, RLOOTrainer and GMPOTrainer."""
    from trl.experimental.gmpo import GMPOTrainer
    from trl.trainer.grpo_trainer import GRPOTrainer
    from trl.trainer.rloo_trainer import RLOOTrainer

    kinds = {"grpo": GRPOTrainer, "rloo": RLOOTrainer, "gmpo": GMPOTrainer}
    kind = kinds[options["trainer"]]
    by = {"logprob": x.logprob.requires_grad_(), "entropy": x.entropy.requires_grad_()}
    mode = options.get("vllm_importance_sampling_mode")
    ratio = (x.proximal - x.behavior).exp()
    if mode == "token_truncate":
        ratio = ratio.clamp(max=2.0)
    elif mode == "token_mask":
        ratio = ratio.masked_fill((ratio < 0.5) | (ratio > 2.0), 0.0)
    trainer = kind.__new__(kind)
    coefficient = options.get("entropy_coef", 0.0)
    args = SimpleNamespace(
        delta=options.get("delta"), sapo_temperature_pos=1.0, sapo_temperature_neg=1.05,
        use_bias_correction_kl=options.get("use_bias_correction_kl", False), vespo_k_pos=2.0,
        vespo_lambda_pos=3.0, vespo_k_neg=3.0, vespo_lambda_neg=2.0, steps_per_generation=1,
    )  # fmt: skip
    trainer.__dict__ |= {
        "args": args, "accelerator": ACCELERATOR, "model": torch.nn.Module().train(),
        "aux_loss_enabled": False, "loss_type": options.get("loss_type"),
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": options.get("off_policy_mask_threshold"),
        "importance_sampling_level": options.get("importance_sampling_level", "token"),
        "beta": options.get("beta", 0.0), "epsilon_low": LOW, "epsilon_high": HIGH,
        "use_vllm": mode is not None, "vllm_importance_sampling_correction": mode is not None,
        "max_completion_length": HORIZON, "current_gradient_accumulation_steps": 1,
        "_metrics": {"train": defaultdict(list)}, "_entropy_bonus_enabled": bool(coefficient),
        "use_adaptive_entropy": False, "entropy_coef": coefficient,
        "_get_per_token_logps_and_entropies": lambda *a, **k: (x.logprob, x.entropy, None),
    }  # fmt: skip
    if options.get("loss_type") == "cispo":
        trainer.epsilon_high = 1 + HIGH
    prompt = torch.ones(len(LENGTHS), 1, dtype=torch.long)
    mask = x.mask.long()
    inputs = {
        "prompt_ids": prompt, "prompt_mask": prompt, "completion_ids": mask,
        "completion_mask": mask, "advantages": x.adv,
        "old_per_token_logps": x.behavior if mode is None else x.proximal,
        "old_logps": (x.behavior * mask).sum(1), "ref_per_token_logps": x.ref,
        "num_items_in_batch": mask.sum(), "importance_sampling_ratio": ratio,
    }  # fmt: skip
    if options.get("loss_type") == "vespo":
        del inputs["importance_sampling_ratio"]
    return trainer._compute_loss(trainer.model, inputs), by


def of_pairs(options: Mapping[str, Any], x: SimpleNamespace) -> Any:
    """DPOTrainer, whose batches are all chosen answers, then all rejected ones."""
    from trl.trainer.dpo_trainer import DPOTrainer

    order = torch.tensor([0, 2, 4, 1, 3, 5])
    by = {"logprob": x.logprob.requires_grad_()}
    mask = x.mask[order]
    zeros = torch.zeros_like(mask, dtype=torch.float64)

    def model(values: Tensor) -> Any:
        given = values[order].where(mask, 0.0)  # zero at ignored positions, as their model has it
        return lambda **_: SimpleNamespace(
            log_probs=given, entropy=zeros, mean_logits=zeros, is_top1=mask
        )

    trainer = DPOTrainer.__new__(DPOTrainer)
    policy = torch.nn.Module().train()
    policy.forward, policy.is_gradient_checkpointing = model(x.logprob), False
    trainer.__dict__ |= {
        "args": SimpleNamespace(discopop_tau=0.05, gradient_checkpointing_kwargs=None),
        "accelerator": ACCELERATOR, "model": policy, "ref_model": model(x.ref),
        "aux_loss_enabled": False, "ld_alpha": None, "precompute_ref_logps": False,
        "f_divergence_type": "reverse_kl", "loss_types": [options["loss_type"]],
        "loss_weights": [1.0], "beta": 0.1, "use_weighting": False,
        "label_smoothing": options.get("label_smoothing", 0.0), "_tp_size": 1,
        "_metrics": {"train": defaultdict(list)}, "_total_train_tokens": 0,
    }  # fmt: skip
    before = torch.zeros(len(LENGTHS), 1, dtype=torch.bool)
    completion = torch.cat((before, mask), 1).long()
    inputs = {"completion_mask": completion, "input_ids": completion, "attention_mask": completion}
    return trainer._compute_loss(policy, inputs, return_outputs=False), by


def of_demonstrations(options: Mapping[str, Any], x: SimpleNamespace) -> Any:
    """SFTTrainer."""
    from trl.trainer.sft_trainer import SFTTrainer

    by = {"logprob": x.logprob.requires_grad_()}
    zeros = torch.zeros_like(x.logprob)
    policy = torch.nn.Module().train()
    policy.forward = lambda **_: SimpleNamespace(
        log_probs=x.logprob.where(x.mask, 0.0), entropy=zeros, label_mask=x.mask,
        is_top1=x.mask, loss=None,
    )  # fmt: skip
    trainer = SFTTrainer.__new__(SFTTrainer)
    trainer.__dict__ |= {
        "args": SimpleNamespace(
            loss_type=options["loss_type"], average_tokens_across_devices=False, max_length=None
        ),
        "accelerator": ACCELERATOR, "model": policy, "aux_loss_enabled": False,
        "compute_loss_func": None, "label_smoother": None, "_tp_size": 1,
        "_metrics": {"train": defaultdict(list)}, "_total_train_tokens": 0,
    }  # fmt: skip
    inputs = {"input_ids": x.mask.long(), "labels": x.mask.long(), "attention_mask": x.mask.long()}
    return trainer.compute_loss(policy, inputs), by


def of_scores(options: Mapping[str, Any], x: SimpleNamespace) -> Any:
    """RewardTrainer: the score of an answer is the value of its last token."""
    from trl.trainer.reward_trainer import RewardTrainer

    by = {"value": x.value.requires_grad_()}
    last = torch.tensor(LENGTHS) - 1
    scores = x.value[torch.arange(len(LENGTHS)), last][torch.tensor([0, 2, 4, 1, 3, 5])]
    policy = torch.nn.Module().train()
    policy.forward = lambda **_: SimpleNamespace(logits=scores[:, None])
    trainer = RewardTrainer.__new__(RewardTrainer)
    trainer.__dict__ |= {
        "args": SimpleNamespace(center_rewards_coefficient=None), "accelerator": ACCELERATOR,
        "model": policy, "_metrics": {"train": defaultdict(list)}, "_total_train_tokens": 0,
        "_tp_size": 1,
    }  # fmt: skip
    return trainer.compute_loss(policy, {"attention_mask": x.mask.long()}), by


TRL = {
    "grpo": of_samples, "rloo": of_samples, "gmpo": of_samples, "dpo": of_pairs,
    "sft": of_demonstrations, "reward": of_scores,
}  # fmt: skip


def verl(case: Case, x: SimpleNamespace) -> tuple[Tensor, dict[str, Tensor]]:
    """verl's loss, and the tensors that it is differentiated by."""
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
    from verl.workers.config import ActorConfig

    options = dict(case.options)
    mode = options.pop("mode")
    mask = x.mask.to(torch.float64)
    if mode == "value":
        found, _ = core_algos.compute_value_loss(
            x.value.requires_grad_(), x.ret, x.old, mask, cliprange_value=0.2
        )
        return found, {"value": x.value}
    advantages = x.adv[:, None].expand_as(x.logprob)
    weights, old = None, x.behavior
    if (level := options.get("rollout_is")) and mode != "bypass_mode":
        weights, _ = compute_rollout_correction_weights(
            log_ratio=x.proximal - x.behavior, response_mask=mask, rollout_is=level,
            rollout_is_threshold=2.0,
        )  # fmt: skip
        old = x.proximal
    scale = options.get("loss_scale_factor")
    config = ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=options.get("clip_ratio_low", LOW),
        clip_ratio_high=options.get("clip_ratio_high", HIGH),
        clip_ratio_c=options.get("clip_ratio_c", 20.0 if mode.startswith("dppo") else 3.0),
        global_batch_info={"loss_scale_factor": scale} if scale else {},
    )  # fmt: skip
    object.__setattr__(config, "policy_loss", _Config(
        dro_beta=options.get("dro_beta"),
        rollout_correction={"loss_type": options.get("loss_type", "ppo_clip"),
                            "rollout_is": options.get("rollout_is")},
    ))  # fmt: skip
    value, _ = core_algos.get_policy_loss_fn(mode)(
        old_log_prob=old, log_prob=x.logprob.requires_grad_(), advantages=advantages,
        response_mask=mask, loss_agg_mode=options.get("loss_agg_mode", "token-mean"),
        config=config, rollout_is_weights=weights,
    )  # fmt: skip
    return value, {"logprob": x.logprob}


class _Config(dict[str, Any]):
    """A config that is read by key and by attribute, as OmegaConf's are."""

    __getattr__ = dict.__getitem__


def torchtitan(case: Case, x: SimpleNamespace) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of torchtitan's RL example, and the tensors that it is differentiated by."""
    from torchtitan.experiments.rl.losses import dapo
    from torchtitan.experiments.rl.losses.grpo import GRPOLoss

    dapo.compute_logprobs = lambda *_, return_entropy: (x.logprob.requires_grad_(), x.entropy)
    if case.options["loss"] == "grpo":
        loss = GRPOLoss(GRPOLoss.Config(clip_eps=LOW))
    else:
        loss = dapo.DAPOLoss(dapo.DAPOLoss.Config(ratio_clip_low=LOW, ratio_clip_high=HIGH))
    value, _ = loss(
        x.logprob, x.mask, float(x.mask.sum()), generator_logprobs=x.behavior,
        advantages=x.adv[:, None].expand_as(x.logprob), loss_mask=x.mask,
    )  # fmt: skip
    return value, {"logprob": x.logprob}


PROJECTS = {"trl": trl, "verl": verl, "torchtitan": torchtitan}


def main(project: str) -> None:
    if not BATCH.exists():
        BATCH.write_text(json.dumps(draw(), indent=1) + "\n", encoding="utf-8")
    found = []
    for case in CASES:
        if case.project != project or not case.source:
            continue
        value, by = PROJECTS[project](case, tensors())
        given = torch.autograd.grad(value, list(by.values()), allow_unused=True)
        gradients = {n: g for n, g in zip(by, given, strict=True) if g is not None}
        gradients = {n: g for n, g in gradients.items() if bool(g.any())}
        found.append({
            "theirs": case.theirs, "options": dict(case.options), "value": value.item(),
            "gradients": {name: each.tolist() for name, each in gradients.items()},
        })  # fmt: skip
    made = {"project": project, "version": version(project), "losses": found}
    path = GOLDENS / f"{project}.json"
    path.write_text(json.dumps(made) + "\n", encoding="utf-8")
    print(f"wrote {len(found)} losses of {project} {made['version']}")


if __name__ == "__main__":
    main(sys.argv[1])
