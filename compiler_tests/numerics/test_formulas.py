"""The standard losses against their gradients written out by hand (losses.md section 4).

`g` is d loss / d logprob per valid token, before the weight of the aggregation.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tolerance import EXACT


def clipped(r, adv, low, high):
    return torch.where(adv >= 0, r < 1 + high, r > 1 - low)


def sapo(t):
    tau = 1.05 - 0.05 * (t.adv > 0).double()
    q = torch.sigmoid(tau * (t.r - 1))
    return -4 * q * (1 - q) * t.r * t.adv


def dppo(t):
    moved = t.logprob.exp() - t.behavior.exp()
    dropped = torch.where(t.adv > 0, moved > 0.2, moved < -0.2)
    return -torch.where(dropped, 0.0, t.adv * t.r) + 2e-3 * (t.logprob - t.behavior)


def tis(t, keep):
    r = (t.logprob - t.proximal).exp()
    weight = keep((t.proximal - t.behavior).exp())
    return -weight * t.adv * r * clipped(r, t.adv, 0.2, 0.2)


TOKEN = {
    "sft": lambda t: -torch.ones_like(t.logprob),
    "dft": lambda t: -t.logprob.exp(),
    "ppo": lambda t: -t.adv * t.r * clipped(t.r, t.adv, 0.2, 0.2),
    "dapo": lambda t: -t.adv * t.r * clipped(t.r, t.adv, 0.2, 0.28),
    "cispo": lambda t: -t.r.clamp(max=5) * t.adv,
    "dppo": dppo,
    "tis_ppo": lambda t: tis(t, lambda w: w.clamp(max=2.0)),
    "icepop": lambda t: tis(t, lambda w: torch.where((w >= 0.5) & (w <= 5.0), w, 0.0)),
}
SEQUENCE = {
    "grpo": lambda t: (
        -t.adv * t.r * clipped(t.r, t.adv, 0.2, 0.2) + 0.04 * (1 - (t.ref - t.logprob).exp())
    ),
    "sapo": sapo,
}


def tokens(loss, case):
    """Per-token values of the valid tokens."""
    found = {"logprob": case.statistics()["logprob"].detach(), **case.inputs}
    if "adv" in found:
        found["adv"] = found["adv"][case.seq_id]
    found = SimpleNamespace(**{name: value[case.mask] for name, value in found.items()})
    if hasattr(found, "behavior"):
        found.r = (found.logprob - found.behavior).exp()
    found.seq_id = case.seq_id[case.mask]
    return found


def coefficients(loss, case):
    """d loss / d logprob of each valid token, through the logits: dz[y] - dz[v] = g / T."""
    logits = (case.hidden @ case.weight.t()).detach().requires_grad_()
    loss(logits=logits, temperature=0.7, **case.batch, **case.inputs).loss.backward()
    dz = logits.grad[case.mask] * 0.7
    p = torch.softmax(logits.detach()[case.mask] / 0.7, dim=1)
    labels = case.labels[case.mask].unsqueeze(1)
    return (dz.gather(1, labels) / (1 - p.gather(1, labels))).squeeze(1)


@pytest.mark.parametrize("name", TOKEN)
def test_token_mean_losses(losses, name):
    loss = losses.standard(name)
    case = losses.make_case(loss, seed=11, noise=0.4)
    want = TOKEN[name](tokens(loss, case)) / case.mask.sum()
    torch.testing.assert_close(coefficients(loss, case), want, **EXACT)


@pytest.mark.parametrize("name", SEQUENCE)
def test_sequence_mean_losses(losses, name):
    loss = losses.standard(name)
    case = losses.make_case(loss, seed=12, noise=0.4)
    found = tokens(loss, case)
    length = torch.bincount(found.seq_id)[found.seq_id]
    want = SEQUENCE[name](found) / length / len(found.seq_id.unique())
    torch.testing.assert_close(coefficients(loss, case), want, **EXACT)


@pytest.mark.parametrize(("name", "scaled"), [("gspo", False), ("luspo", True)])
def test_sequence_ratios(losses, name, scaled):
    loss = losses.standard(name)
    case = losses.make_case(loss, seed=13, noise=1e-3)
    found = tokens(loss, case)
    length = torch.bincount(found.seq_id).double()
    drift = (found.logprob - found.behavior).detach()
    ratio = (torch.zeros_like(length).index_add(0, found.seq_id, drift) / length).exp()
    low, high = (2e-3, 2.5e-3) if scaled else (3e-4, 4e-4)
    per_sequence = -case.inputs["adv"] * ratio * clipped(ratio, case.inputs["adv"], low, high)
    weight = torch.ones_like(length) if scaled else 1 / length
    want = (per_sequence * weight)[found.seq_id] / 4
    torch.testing.assert_close(coefficients(loss, case), want, **EXACT)


def test_gmpo(losses):
    loss = losses.standard("gmpo")
    case = losses.make_case(loss, seed=14, noise=0.5)
    found = tokens(loss, case)
    length = torch.bincount(found.seq_id).double()
    drift = (found.logprob - found.behavior).detach()
    active = torch.where(found.adv > 0, drift < 0.4, drift > -0.4)
    kept = torch.where(active, drift, 0.4 * found.adv.sign())
    ratio = (torch.zeros_like(length).index_add(0, found.seq_id, kept) / length).exp()
    want = -(ratio / length)[found.seq_id] * found.adv * active / 4
    assert not active.all()
    torch.testing.assert_close(coefficients(loss, case), want, **EXACT)


def test_dpo(losses):
    loss = losses.standard("dpo")
    case = losses.make_case(loss, seed=15)
    found = tokens(loss, case)
    drift = (found.logprob - found.ref).detach()
    total = torch.zeros(4, dtype=torch.float64).index_add(0, found.seq_id, drift)
    pull = 0.1 * torch.sigmoid(-0.1 * (total[0::2] - total[1::2])) / 2
    want = torch.stack([-pull, pull], dim=1).reshape(-1)[found.seq_id]
    torch.testing.assert_close(coefficients(loss, case), want, **EXACT)


def test_dr_grpo_divides_by_the_horizon(losses):
    loss = losses.standard("dr_grpo")
    case = losses.make_case(loss, seed=16)
    found = tokens(loss, case)
    want = -found.adv * found.r * clipped(found.r, found.adv, 0.2, 0.2) / (4 * 7.0)
    torch.testing.assert_close(coefficients(loss, case), want, **EXACT)
