"""torchforge's losses under their names: values and gradients of their formulas, written out."""

from __future__ import annotations

import pytest
import torch

import forgedsl
from forgedsl import compat
from forgedsl.losses.selfcheck import self_check
from forgedsl.losses.text import read

B, S, V = 3, 4, 11
MASK = torch.tensor([[1.0, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.float64)


def draw():
    rng = torch.Generator().manual_seed(1)
    logits = torch.randn(B, S, V, generator=rng, dtype=torch.float64)
    labels = torch.randint(V, (B, S), generator=rng)
    logprob = torch.log_softmax(logits, 2).gather(2, labels.unsqueeze(2)).squeeze(2)
    noise = 0.3 * torch.randn(3, B, S, generator=rng, dtype=torch.float64)
    return logits, labels, noise[0] * 4, logprob + noise[1], logprob + noise[2]


def clipped(logprob, old, adv, low, high):
    ratio = (logprob - old).exp()
    return -torch.minimum(ratio * adv, ratio.clamp(1 - low, 1 + high) * adv)


def token_mean(value):
    return (value * MASK).sum() / MASK.sum()


def sequence_mean(value):
    return ((value * MASK).sum(1) / MASK.sum(1)).mean()


def grpo(logprob, old, ref, adv):
    d = ref - logprob
    value = clipped(logprob, old, adv, 0.2, 0.28) + 0.1 * (d.exp() - d - 1)
    return (value * MASK).sum() / MASK.numel()


def dapo(logprob, old, ref, adv):
    value = clipped(logprob, old, adv, 0.2, 0.28)
    return token_mean(torch.where(adv < 0, torch.minimum(value, -3.0 * adv), value))


def cispo(logprob, old, ref, adv):
    return token_mean(-(logprob - old).exp().clamp(0, 5).detach() * adv * logprob)


def gspo(logprob, old, ref, adv):
    level = ((logprob - old) * MASK).sum(1, keepdim=True) / MASK.sum(1, keepdim=True)
    return sequence_mean(clipped(logprob - logprob.detach() + level.detach(), 0.0, adv, 0.2, 0.2))


def sapo(logprob, old, ref, adv):
    tau = torch.where(adv > 0, 1.0, 1.05)
    return sequence_mean(-4 / tau * torch.sigmoid(tau * ((logprob - old).exp() - 1)) * adv)


@pytest.mark.parametrize(
    ("ours", "formula"),
    [
        (compat.GRPOLoss, grpo),
        (compat.DAPOLoss, dapo),
        (compat.CISPOLoss, cispo),
        (compat.GSPOLoss, gspo),
        (compat.SAPOLoss, sapo),
    ],
)
def test_classes_that_take_logits(ours, formula):
    logits, labels, adv, old, ref = draw()
    mine, plain = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = ours()
    more = {"ref_logprobs": ref} if "ref" in loss.loss.input_names else {}
    out = loss(mine, labels, adv, old, MASK, **more)
    logprob = torch.log_softmax(plain, 2).gather(2, labels.unsqueeze(2)).squeeze(2)
    want = formula(logprob, old, ref, adv)
    torch.testing.assert_close(out.loss, want)
    torch.testing.assert_close(
        torch.autograd.grad(out.loss, mine), torch.autograd.grad(want, plain)
    )


@pytest.mark.parametrize("ours", [compat.DAPOLoss, compat.CISPOLoss, compat.GRPOLoss])
def test_loss_scale_is_the_last_argument(ours):
    """The count of tokens of all ranks, in place of that of the mask."""
    logits, labels, adv, old, ref = draw()
    more = (ref,) if ours is compat.GRPOLoss else ()
    loss = ours(agg_type="token_mean")
    plain = loss(logits, labels, adv, old, MASK, *more).loss
    scaled = loss(logits, labels, adv, old, MASK, *more, 2 * MASK.sum()).loss
    torch.testing.assert_close(2 * scaled, plain)


def test_simple_grpo():
    _, _, adv, old, ref = draw()
    logprob = old.requires_grad_()
    d = ref - logprob
    want = sequence_mean(-adv + 0.1 * (d.exp() - d - 1))
    torch.testing.assert_close(compat.SimpleGRPOLoss(0.1)(logprob, ref, adv, MASK), want)


def test_reinforce():
    logits, labels, adv, old, _ = draw()
    logprob = torch.log_softmax(logits, 2).gather(2, labels.unsqueeze(2)).squeeze(2)
    weight = (logprob - old).exp().clamp(0.5, 1.1)
    got = compat.ReinforceLoss(clip_ratio=(0.5, 1.1))(logits, labels, MASK, adv, old)
    torch.testing.assert_close(got, token_mean(-weight * adv * logprob))


def test_a_reference_is_needed_with_beta():
    logits, labels, adv, old, _ = draw()
    with pytest.raises(ValueError, match="ref_logprobs required"):
        compat.GRPOLoss()(logits, labels, adv, old, MASK)


def test_kinks_of_a_loss(losses):
    loss = losses.standard("ppo")
    assert [kink.split()[0] for kink in loss.kinks] == ["clamp", "min", "clamp"]
    assert self_check(read(loss.tree))


def test_conditions_and_reports_are_no_kinks():
    loss = forgedsl.compile_loss(
        "loss f(logprob: diff [B, T] f32, adv: [B] f32, mask: [B, T] bool) {\n"
        "  far = abs(logprob) > 2.0\n"
        "  minimize token_mean(0.0 if far else -adv * logprob, mask)\n"
        "  report size = token_mean(abs(logprob), mask)\n"
        "}\n"
    )
    assert [kink.split()[0] for kink in loss.kinks] == ["where"]
