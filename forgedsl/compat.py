"""Losses of torchforge, with their names and call signatures, computed by generated code.

    from forgedsl.compat import DAPOLoss

    out = DAPOLoss(clip_high=0.28)(logits, target_ids, advantages, generator_logprobs, loss_mask)
    out.backward()

Classes that take logits return `LossOutput`. `SimpleGRPOLoss` and `ReinforceLoss` have the
arguments of their torchforge counterparts and return the loss (a scalar). The formulas below are
written in the loss language, with the clamps, defaults and aggregations of torchforge (January
2026). Some differ from the papers and from `std/rl`. Losses run as Triton kernels on a GPU, in
torch elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forgedsl_runtime.losses import LossFunction, LossOutput

AGGREGATES = {
    "token_mean": "token_mean({}, mask)",
    "sequence_mean": "seq_mean({}, mask)",
    "fixed_horizon": "fixed_horizon({}, mask, 1.0)",
}
"""Aggregations by the name torchforge uses. `fixed_horizon` divides by all B * S positions of the
batch: `evaluate` passes B * S as the number of sequences, with a horizon of 1."""

FIELDS = (
    "logprob: diff [B, T] f32, behavior: [B, T] f32, ref: [B, T] f32, adv: [B, T] f32, "
    "mask: [B, T] bool"
)
RATIO = "  ratio = exp(clamp(logprob - behavior, -20.0, 20.0))\n"
CLIPPED = (
    "  gain = min(ratio * adv, clip(ratio, 1 - {clip_low}, 1 + {clip_high}) * adv)\n"
    "  high = ratio > 1 + {clip_high} and adv > 0\n"
    "  low = ratio < 1 - {clip_low} and adv < 0\n"
)
REPORTS = (
    "  report ratio = token_mean(ratio, mask)\n"
    "  report clip_high_fraction = token_mean(high, mask)\n"
    "  report clip_low_fraction = token_mean(low, mask)\n"
)


def loss_text(body: str, value: str, aggregate: str, reports: str = REPORTS) -> str:
    """Return the .forge text of a loss with this body."""
    if aggregate not in AGGREGATES:
        raise ValueError(f"agg_type {aggregate!r} is not one of {', '.join(AGGREGATES)}")
    minimized = AGGREGATES[aggregate].format(value)
    return f"forge 1\nloss compat({FIELDS}) {{\n{body}  minimize {minimized}\n{reports}}}\n"


class PolicyLoss:
    """Base class: holds the settings, compiles the loss, and calls it."""

    text = ""

    def __init__(self, agg_type: str) -> None:
        from forgedsl_runtime.losses import compile_loss

        self.agg_type = agg_type
        self.loss: LossFunction = compile_loss(self.text)

    def evaluate(
        self, logits: Any, labels: Any, loss_mask: Any, given: dict[str, Any], loss_scale: Any
    ) -> LossOutput:
        """Call the generated loss with the counts its aggregation divides by."""
        sequences = labels.numel() if self.agg_type == "fixed_horizon" else len(labels)
        mask = loss_mask.bool()
        return self.loss(
            logits=logits,
            labels=labels,
            mask=mask,
            num_tokens=mask.sum() if loss_scale is None else loss_scale,
            num_sequences=max(sequences, 1),
            **{name: given[name] for name in self.loss.input_names},
        )


class ReferenceFreeLoss(PolicyLoss):
    """Base of losses that need no log-probs of a reference model."""

    def __call__(
        self,
        logits: Any,
        target_ids: Any,
        advantages: Any,
        generator_logprobs: Any,
        loss_mask: Any,
        loss_scale: Any = None,
    ) -> LossOutput:
        """Compute the loss. `logits` are `[B, S, V]`, the other tensors `[B, S]`; `loss_scale`
        replaces the number of valid tokens in the denominator."""
        given = {"behavior": generator_logprobs, "adv": advantages}
        return self.evaluate(logits, target_ids, loss_mask, given, loss_scale)


class GRPOLoss(PolicyLoss):
    """Dr.GRPO (2503.20783): clipped ratio, plus the k3 estimate of the KL to the reference, divided
    by a fixed horizon."""

    def __init__(
        self,
        clip_low: float = 0.2,
        clip_high: float = 0.28,
        beta: float = 0.1,
        agg_type: str = "fixed_horizon",
    ) -> None:
        body = RATIO + CLIPPED.format(clip_low=clip_low, clip_high=clip_high)
        body += "  d = clamp(ref - logprob, -20.0, 20.0)\n  kl = clamp(expm1(d) - d, 0.0, 10.0)\n"
        reports = REPORTS + ("  report kl_ref = token_mean(kl, mask)\n" if beta else "")
        self.text = loss_text(body, f"-gain + {float(beta)} * kl", agg_type, reports)
        super().__init__(agg_type)

    def __call__(
        self,
        logits: Any,
        target_ids: Any,
        advantages: Any,
        generator_logprobs: Any,
        loss_mask: Any,
        ref_logprobs: Any = None,
        loss_scale: Any = None,
    ) -> LossOutput:
        """Compute the loss. `logits` are `[B, S, V]`, the other tensors `[B, S]`. The log-probs of
        the reference model come before `loss_scale`."""
        if "ref" in self.loss.input_names and ref_logprobs is None:
            raise ValueError("ref_logprobs required when beta > 0")
        given = {"behavior": generator_logprobs, "adv": advantages, "ref": ref_logprobs}
        return self.evaluate(logits, target_ids, loss_mask, given, loss_scale)


class DAPOLoss(ReferenceFreeLoss):
    """DAPO (2503.14476) with dual clip (1912.09729), mean over tokens."""

    def __init__(
        self,
        clip_low: float = 0.2,
        clip_high: float = 0.28,
        dual_clip_c: float = 3.0,
        agg_type: str = "token_mean",
    ) -> None:
        body = RATIO + CLIPPED.format(clip_low=clip_low, clip_high=clip_high)
        body += f"  kept = max(gain, {float(dual_clip_c)} * adv) if adv < 0 else gain\n"
        self.text = loss_text(body, "-kept", agg_type)
        super().__init__(agg_type)


class CISPOLoss(ReferenceFreeLoss):
    """CISPO (2506.13585): weighs the log-prob by the clipped, detached ratio."""

    def __init__(
        self, clip_low: float = 1.0, clip_high: float = 4.0, agg_type: str = "token_mean"
    ) -> None:
        body = RATIO + (
            f"  weight = stop(clip(ratio, 1 - {clip_low}, 1 + {clip_high}))\n"
            f"  high = ratio > 1 + {clip_high}\n  low = ratio < 1 - {clip_low}\n"
        )
        self.text = loss_text(body, "-weight * adv * logprob", agg_type)
        super().__init__(agg_type)


class GSPOLoss(ReferenceFreeLoss):
    """GSPO-token (2507.18071): each token has the value of the sequence's ratio and its own
    gradient."""

    def __init__(
        self, clip_low: float = 0.2, clip_high: float = 0.2, agg_type: str = "sequence_mean"
    ) -> None:
        body = (
            "  level = mean(stop(logprob) - behavior, T, mask)\n"
            "  ratio = exp(clamp(logprob - stop(logprob) + level, -20.0, 20.0))\n"
        ) + CLIPPED.format(clip_low=clip_low, clip_high=clip_high)
        self.text = loss_text(body, "-gain", agg_type)
        super().__init__(agg_type)


class SAPOLoss(ReferenceFreeLoss):
    """SAPO (2511.20347): a smooth gate in place of the clip."""

    def __init__(
        self, tau_pos: float = 1.0, tau_neg: float = 1.05, agg_type: str = "sequence_mean"
    ) -> None:
        body = RATIO + (
            f"  tau = {float(tau_pos)} if adv > 0 else {float(tau_neg)}\n"
            "  gate = sigmoid(tau * (ratio - 1)) * 4 / tau\n"
        )
        reports = (
            "  report ratio = token_mean(ratio, mask)\n  report gate = token_mean(gate, mask)\n"
        )
        self.text = loss_text(body, "-gate * adv", agg_type, reports)
        super().__init__(agg_type)


class SimpleGRPOLoss:
    """On-policy GRPO from log-probs: `(logprobs, ref_logprobs, advantages, padding_mask)`."""

    def __init__(self, beta: float = 0.1) -> None:
        self.beta = beta

    def __call__(self, logprobs: Any, ref_logprobs: Any, advantages: Any, padding_mask: Any) -> Any:
        """Compute the loss. `logprobs` `[B, S]` carry gradient; advantages are `[B, 1]` or
        `[B, S]`."""
        d = ref_logprobs - logprobs
        gain = (logprobs - logprobs.detach()).exp() * advantages
        value = -gain + self.beta * (d.expm1() - d)
        counts = padding_mask.sum(dim=1).clamp(min=1.0)
        return ((value * padding_mask).sum(dim=1) / counts).mean()


class ReinforceLoss:
    """REINFORCE with a clipped, detached importance weight, from logits.

    Arguments: `(trainer_logits, target_ids, target_mask, target_weights, target_log_probs)`.
    """

    def __init__(self, clip_ratio: tuple[float, float] = (0.1, 10.0)) -> None:
        from forgedsl_runtime.losses import compile_loss

        low, high = clip_ratio
        body = RATIO + f"  weight = stop(clip(ratio, {float(low)}, {float(high)}))\n"
        reports = "  report ratio = token_mean(ratio, mask)\n"
        text = loss_text(body, "-weight * adv * logprob", "token_mean", reports)
        self.loss = compile_loss(text)

    def __call__(
        self,
        trainer_logits: Any,
        target_ids: Any,
        target_mask: Any,
        target_weights: Any,
        target_log_probs: Any,
    ) -> Any:
        """Compute the loss: a mean over the tokens where the mask is true."""
        return self.loss(
            logits=trainer_logits,
            labels=target_ids,
            mask=target_mask.bool(),
            behavior=target_log_probs,
            adv=target_weights,
        ).loss
