"""Agreement with TRL's trainer and Liger's fused linear loss, called from the installed packages.

Both are run as they are: TRL's `_compute_loss` on its own fused lm_head, through a trainer object
that has only the attributes the method reads, and Liger's `LigerFusedLinearGRPOLoss` in torch.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from tolerance import close, near
from torch import nn

import forgedsl

PROMPT, B, T, H, V = 2, 4, 6, 16, 43
HORIZON, TEMPERATURE = 8, 0.9
ADDITIONS = H + V + B * T
LOW, HIGH = 0.2, 0.28

BNPO = """
loss bnpo(logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, mask: [B, T] bool) {
  ratio = exp(logprob - behavior)
  minimize token_mean(-min(ratio * adv, clip(ratio, 0.8, 1.28) * adv), mask)
}
"""
GSPO_KL = """
loss gspo_kl(
  logprob: diff [B, T] f32, behavior: [B, T] f32, ref: [B, T] f32, adv: [B] f32, mask: [B, T] bool,
) {
  ratio = exp(mean(logprob - behavior, T, mask))
  gain  = min(ratio * adv, clip(ratio, 0.8, 1.28) * adv)
  d     = ref - logprob
  minimize seq_mean(-gain + 0.1 * mean(expm1(d) - d, T, mask))
}
"""
TWO_SIDED = """
loss two_sided(
  logprob: diff [B, T] f32, entropy: diff [B, T] f32, behavior: [B, T] f32, ref: [B, T] f32,
  adv: [B] f32, mask: [B, T] bool,
) {
  ratio = exp(logprob - behavior)
  gain  = min(min(ratio, 1.4) * adv, clip(ratio, 0.8, 1.28) * adv)
  d     = ref - logprob
  minimize token_mean(-gain + 0.1 * ratio * (expm1(d) - d) - 0.02 * entropy, mask)
}
"""
CLIPS = {"clip_low": LOW, "clip_high": HIGH}
SEQUENCE = {"importance_sampling_level": "sequence"}

LOSSES = {
    "grpo": ("grpo", {**CLIPS, "beta": 0.04}, {"loss_type": "grpo", "beta": 0.04}),
    "dr_grpo": ("dr_grpo", {**CLIPS, "horizon": float(HORIZON)}, {"loss_type": "dr_grpo"}),
    "dapo": ("dapo", CLIPS, {"loss_type": "dapo"}),
    "bnpo": (BNPO, {}, {"loss_type": "bnpo"}),
    "cispo": ("cispo", {"max_weight": 1.2}, {"loss_type": "cispo", "epsilon_high": 1.2}),
    "sapo": ("sapo", {}, {"loss_type": "sapo"}),
    "gspo": ("gspo", CLIPS, {"loss_type": "grpo", **SEQUENCE}),
    "gspo_kl": (GSPO_KL, {}, {"loss_type": "grpo", "beta": 0.1, **SEQUENCE}),
    "luspo": ("luspo", CLIPS, {"loss_type": "luspo", **SEQUENCE}),
    "two_sided": (
        TWO_SIDED,
        {},
        {"loss_type": "bnpo", "beta": 0.1, "delta": 1.4, "use_bias_correction_kl": True},
    ),
}


def draw() -> SimpleNamespace:
    """A padded float32 batch with ratios on both sides of the clip."""
    rng = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng)

    mask = torch.tensor(
        [[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]]
    )
    batch = SimpleNamespace(
        hidden=noise(B, PROMPT + T, H),
        weight=noise(V, H) / 2,
        labels=torch.randint(V, (B, T), generator=rng),
        mask=mask,
        adv=noise(B),
    )
    logits = batch.hidden[:, PROMPT - 1 : -1] @ batch.weight.t() / TEMPERATURE
    current = torch.log_softmax(logits, 2).gather(2, batch.labels.unsqueeze(2)).squeeze(2)
    batch.behavior = current + 0.3 * noise(B, T)
    batch.ref = current + 0.3 * noise(B, T)
    return batch


def trl_loss(batch, options):
    """TRL's loss and its gradients by hidden and weight."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it asks for an older vLLM, which it does not need here
        from trl.trainer.grpo_trainer import GRPOTrainer
        from trl.trainer.utils import add_fused_lm_head

    hidden = batch.hidden.clone().requires_grad_()
    model = nn.Module()
    model.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(model_type="test"))
    model.base_model = lambda **_: SimpleNamespace(last_hidden_state=hidden)
    head = nn.Linear(H, V, bias=False)
    head.weight.data.copy_(batch.weight)
    model.get_output_embeddings = lambda: head
    add_fused_lm_head(model, temperature=TEMPERATURE, outputs=("log_probs", "entropy"))
    settings = {
        "delta": None, "use_bias_correction_kl": False, "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.05, "steps_per_generation": 1,
    }  # fmt: skip
    args = SimpleNamespace(**{name: options.get(name, value) for name, value in settings.items()})
    trainer = GRPOTrainer.__new__(GRPOTrainer)
    trainer.__dict__ |= {
        "aux_loss_enabled": False, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None,
        "importance_sampling_level": options.get("importance_sampling_level", "token"),
        "beta": options.get("beta", 0.0), "loss_type": options["loss_type"],
        "epsilon_low": LOW, "epsilon_high": options.get("epsilon_high", HIGH), "args": args,
        "use_vllm": False, "max_completion_length": HORIZON, "model": model.train(),
        "current_gradient_accumulation_steps": 1, "_metrics": {"train": defaultdict(list)},
        "_entropy_bonus_enabled": "delta" in options, "use_adaptive_entropy": False,
        "entropy_coef": 0.02,
        "accelerator": SimpleNamespace(
            autocast=nullcontext, num_processes=1, sync_gradients=True, is_main_process=False,
            gather=lambda x: x, reduce=lambda x, reduction: x,
        ),
    }  # fmt: skip
    prompt = torch.ones(B, PROMPT, dtype=torch.long)
    inputs = {
        "prompt_ids": prompt, "prompt_mask": prompt, "completion_ids": batch.labels,
        "completion_mask": batch.mask, "advantages": batch.adv, "old_per_token_logps":
        batch.behavior, "ref_per_token_logps": batch.ref, "num_items_in_batch": batch.mask.sum(),
    }  # fmt: skip
    value = trainer._compute_loss(model, inputs)
    d_hidden, d_weight = torch.autograd.grad(value, (hidden, head.weight))
    return value, d_hidden[:, PROMPT - 1 : -1], d_weight, trainer._metrics["train"]


def liger_loss(batch, options):
    """Liger's loss and its gradients by hidden and weight."""
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    hidden = batch.hidden[:, PROMPT - 1 : -1].clone().requires_grad_()
    weight = batch.weight.clone().requires_grad_()
    beta = options.get("beta", 0.0)
    loss = LigerFusedLinearGRPOLoss(
        **{"epsilon_low": LOW, "epsilon_high": HIGH, **options, "beta": beta},
        compiled=False, use_ref_model=beta != 0.0, temperature=TEMPERATURE,
        max_completion_length=HORIZON,
    )  # fmt: skip
    value, _ = loss(
        hidden, weight, batch.labels, batch.mask, batch.adv,
        ref_per_token_logps=batch.ref if beta else None, old_per_token_logps=batch.behavior,
    )  # fmt: skip
    return value, *torch.autograd.grad(value, (hidden, weight))


def our_loss(batch, source, params, backend):
    """Ours, by `loss.linear`."""
    loss = forgedsl.compile_loss(source, params=params, backend=backend)
    hidden = batch.hidden[:, PROMPT - 1 : -1].clone().requires_grad_()
    weight = batch.weight.clone().requires_grad_()
    out = loss.linear(
        hidden=hidden,
        weight=weight,
        labels=batch.labels,
        mask=batch.mask.bool(),
        temperature=TEMPERATURE,
        **{name: getattr(batch, name) for name in loss.input_names},
    )
    return out.loss, *torch.autograd.grad(out.loss, (hidden, weight)), out.metrics


def agree(ours, theirs):
    """Of the largest entry, in float32."""
    for mine, yours in zip(ours, theirs, strict=True):
        scale = max(1.0, float(yours.detach().abs().max()))
        torch.testing.assert_close(mine, yours, **close(torch.float32, ADDITIONS, size=scale))


@pytest.mark.full
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("name", LOSSES)
def test_trl(name, backend, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    source, params, options = LOSSES[name]
    batch = draw()
    *ours, metrics = our_loss(batch, source, params, backend)
    *theirs, theirs_metrics = trl_loss(batch, options)
    agree(ours, theirs)
    assert float(metrics["entropy"]) == pytest.approx(
        theirs_metrics["entropy"][0], **near(torch.float32, ADDITIONS)
    )


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "two_sided"])
def test_liger_fused_linear(name):
    source, params, options = LOSSES[name]
    batch = draw()
    *ours, _ = our_loss(batch, source, params, "torch")
    agree(ours, liger_loss(batch, options))


def test_the_ratios_reach_both_sides_of_the_clip():
    batch = draw()
    logits = batch.hidden[:, PROMPT - 1 : -1] @ batch.weight.t() / TEMPERATURE
    current = torch.log_softmax(logits, 2).gather(2, batch.labels.unsqueeze(2)).squeeze(2)
    ratio = (current - batch.behavior).exp()[batch.mask.bool()]
    assert (ratio < 1 - LOW).any()
    assert (ratio > 1 + HIGH).any()
    assert ((ratio > 1 - LOW) & (ratio < 1 + HIGH)).any()
