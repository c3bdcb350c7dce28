"""Identities that losses must satisfy whatever their formulas (losses.md section 8)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tolerance import EXACT

import forgedsl

POLICY = "logprob: diff [B, T] f32, behavior: [B, T] f32, adv: [B] f32, mask: [B, T] bool"
SEQUENCE_LOSSES = ("gspo", "gmpo", "luspo")


def run(loss, case, **changes):
    """Loss and gradients of hidden and weight."""
    call = {"temperature": 0.7, "hidden": case.hidden, **case.batch, **case.inputs, **changes}
    value = loss.linear(weight=case.weight, **call).loss
    return value.detach(), *torch.autograd.grad(value, (call["hidden"], case.weight))


@pytest.mark.parametrize("name", ["ppo", "dapo", "cispo", "tis_ppo", "icepop", "dppo"])
def test_on_policy_token_losses_are_reinforce(losses, name):
    text = f"loss pg({POLICY}) {{ minimize token_mean(-adv * logprob + 0 * behavior, mask) }}"
    want = forgedsl.compile_loss(text)
    loss = losses.standard(name)
    case = losses.make_case(loss, noise=0.0)
    torch.testing.assert_close(run(loss, case)[1:], run(want, _only(case, "adv"))[1:], **EXACT)


@pytest.mark.parametrize("name", ["sapo", "gspo", "gspo_token", "gmpo"])
def test_on_policy_sequence_losses_are_reinforce(losses, name):
    text = f"loss pg({POLICY}) {{ minimize seq_mean(-adv * logprob, mask) }}"
    want = forgedsl.compile_loss(text)
    loss = losses.standard(name)
    case = losses.make_case(loss, noise=0.0)
    torch.testing.assert_close(run(loss, case)[1:], run(want, _only(case, "adv"))[1:], **EXACT)


def _only(case, *names):
    case.inputs = {name: case.inputs[name] for name in names}
    return case


def test_masked_tokens_may_hold_nan(standard_loss, losses):
    case = losses.make_case(standard_loss, seed=5)
    want = run(standard_loss, case)
    poison = torch.where(case.mask.unsqueeze(1), case.hidden.detach(), torch.nan).requires_grad_()
    broken = {
        name: torch.where(case.mask, value, torch.nan) if value.shape == case.mask.shape else value
        for name, value in case.inputs.items()
    }
    if "value" in broken:
        broken["value"] = poison.sum(1)
    got = run(standard_loss, case, hidden=poison, **broken)
    torch.testing.assert_close(got[0], want[0])
    torch.testing.assert_close(got[1][case.mask], want[1][case.mask])
    assert (got[1][~case.mask] == 0).all()
    torch.testing.assert_close(got[2], want[2])


def test_generated_programs_select_masked_tokens_away(standard_loss, losses):
    """The same for the program itself, which sees masked rows in other back ends."""
    case = losses.make_case(standard_loss, seed=5)
    stats = {name: value.detach() for name, value in case.statistics().items()}
    nan = {
        name: torch.where(case.mask, value, torch.nan) if value.shape == case.mask.shape else value
        for name, value in {**stats, **case.inputs}.items()
    }
    step = SimpleNamespace(num_tokens=torch.tensor(9.0), num_sequences=torch.tensor(4.0))
    x = SimpleNamespace(
        **nan,
        mask=case.mask,
        seq_id=case.seq_id,
        seq_valid=torch.ones(4, dtype=torch.bool),
        step=step,
        dtype=torch.float64,
    )
    module = standard_loss.module
    value, reports = module.loss(x)
    assert torch.isfinite(value)
    assert all(torch.isfinite(report) for report in reports.values())
    for gradient in module.gradient(x, module.prepare(x)).values():
        assert torch.isfinite(gradient).all()
        assert (gradient[~case.mask] == 0).all()


def test_microbatches_add_up(standard_loss, losses):
    case = losses.make_case(standard_loss, seed=6, lengths=(5, 3, 6, 4))
    value, *want = run(standard_loss, case)
    totals = {
        "num_tokens": case.mask.sum(),
        "num_sequences": torch.tensor(len(case.seq_id[case.mask].unique())),
    }
    parts = []
    for first, last in ((2, 4), (0, 2)):  # pairs stay together; the order is another one
        rows = (case.seq_id >= first) & (case.seq_id < last)
        inputs = {
            name: given[rows] if given.shape == rows.shape else given[first:last]
            for name, given in case.inputs.items()
        }
        out = standard_loss.linear(
            hidden=case.hidden[rows],
            weight=case.weight,
            labels=case.labels[rows],
            mask=case.mask[rows],
            seq_id=case.seq_id[rows] - first,
            temperature=0.7,
            **totals,
            **inputs,
        )
        parts.append(out.loss)
    total = torch.stack(parts).sum()
    torch.testing.assert_close(total.detach(), value, **EXACT)
    torch.testing.assert_close(list(losses.gradients(total, case)), want, **EXACT)


def test_padded_equals_packed(standard_loss, losses):
    lengths, width = (5, 3, 6, 4), 8
    case = losses.make_case(standard_loss, seed=7, lengths=lengths)
    want = run(standard_loss, case)[0]
    rows = torch.arange(4 * width).view(4, width)
    filled = rows % width < torch.tensor(lengths).unsqueeze(1)

    def pad(value, empty):
        out = value.new_full((4, width, *value.shape[1:]), empty)
        out[filled] = value
        return out

    inputs = {
        name: pad(value, torch.nan) if value.shape == case.mask.shape else value
        for name, value in case.inputs.items()
    }
    out = standard_loss.linear(
        hidden=pad(case.hidden, torch.nan),
        weight=case.weight,
        labels=pad(case.labels, -100),
        mask=pad(case.mask, True),
        temperature=0.7,
        **inputs,
    )
    torch.testing.assert_close(out.loss, want)


def test_an_empty_sequence_changes_nothing(standard_loss, losses):
    case = losses.make_case(standard_loss, seed=8, lengths=(5, 3, 2, 2))
    case.mask = case.mask & (case.seq_id < 2)
    got = run(standard_loss, case)
    rows = case.seq_id < 2
    inputs = {
        name: given[rows] if given.shape == rows.shape else given[:2]
        for name, given in case.inputs.items()
    }
    hidden = case.hidden[rows]
    alone = standard_loss.linear(
        hidden=hidden,
        weight=case.weight,
        labels=case.labels[rows],
        mask=case.mask[rows],
        seq_id=case.seq_id[rows],
        temperature=0.7,
        **inputs,
    ).loss
    torch.testing.assert_close(got[0], alone.detach())
    torch.testing.assert_close(got[2], torch.autograd.grad(alone, case.weight)[0])


@pytest.mark.parametrize("name", SEQUENCE_LOSSES)
def test_order_inside_the_mask_is_irrelevant(losses, name):
    loss = losses.standard(name)
    case = losses.make_case(loss, seed=9, lengths=(6, 6, 6, 6))
    want = run(loss, case)[0]
    order = torch.arange(24).view(4, 6).flip(1).reshape(-1)
    inputs = {n: v[order] if v.shape == case.mask.shape else v for n, v in case.inputs.items()}
    got = loss.linear(
        hidden=case.hidden[order],
        weight=case.weight,
        labels=case.labels[order],
        mask=case.mask[order],
        seq_id=case.seq_id,
        temperature=0.7,
        **inputs,
    )
    torch.testing.assert_close(got.loss, want)


@pytest.mark.parametrize("drift", [50.0, -50.0])
def test_extreme_ratios_stay_finite(standard_loss, losses, drift):
    case = losses.make_case(standard_loss, seed=10, dtype=torch.float32)
    case.inputs = {
        name: value - drift if value.shape == case.mask.shape else value
        for name, value in case.inputs.items()
        if name != "ref"
    } | {name: value for name, value in case.inputs.items() if name == "ref"}
    assert all(torch.isfinite(found).all() for found in run(standard_loss, case))


def test_all_masked_batch_is_zero(standard_loss, losses):
    case = losses.make_case(standard_loss)
    case.mask = torch.zeros_like(case.mask)
    assert [float(found.abs().sum()) for found in run(standard_loss, case)] == [0.0, 0.0, 0.0]


def test_an_empty_microbatch_needs_no_inputs(standard_loss):
    weight = torch.randn(7, 4, requires_grad=True)
    out = standard_loss.linear(
        hidden=torch.zeros(0, 4, requires_grad=True),
        weight=weight,
        labels=torch.zeros(0, dtype=torch.int64),
        seq_id=torch.zeros(0, dtype=torch.int64),
        num_tokens=5,
        num_sequences=2,
    )
    out.loss.backward()
    assert out.loss == 0
    assert not weight.grad.any()
    assert out.metrics.keys() == {"entropy", *standard_loss.reports}


def test_equal_rewards_give_no_gradient(losses):
    loss = losses.standard("dapo")
    case = losses.make_case(loss)
    case.inputs["adv"] = torch.zeros(4, dtype=torch.float64)
    assert [float(found.abs().sum()) for found in run(loss, case)] == [0.0, 0.0, 0.0]


def test_entropy_is_that_of_the_policy(losses):
    loss = losses.standard("dapo")
    case = losses.make_case(loss)
    out = loss.linear(
        hidden=case.hidden, weight=case.weight, temperature=0.7, **case.batch, **case.inputs
    )
    torch.testing.assert_close(
        out.metrics["entropy"], case.statistics()["entropy"][case.mask].mean().detach()
    )
    assert not out.metrics["entropy"].requires_grad


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_kl_estimators_on_a_categorical(kind):
    """Expected values and expected gradients of the table in losses.md section 6."""
    theta = torch.tensor([0.3, -0.2, 0.9, 0.1], dtype=torch.float64, requires_grad=True)
    other = torch.log_softmax(torch.tensor([0.1, 0.4, 0.2, -0.5], dtype=torch.float64), 0)
    p = torch.softmax(theta, 0)
    text = (
        'import "std/rl" as rl\n'
        "loss kl(logprob: diff [B, T] f32, ref: [B, T] f32, mask: [B, T] bool) "
        f"{{ minimize token_mean(rl.{kind}(logprob, ref), mask) }}"
    )
    loss = forgedsl.compile_loss(text)
    each = []
    for token in range(4):  # the expectation over samples, token by token
        out = loss(
            logits=theta.unsqueeze(0),
            labels=torch.tensor([token]),
            ref=other[token].view(1),
            seq_id=torch.tensor([0]),
        ).loss
        each.append((float(out.detach()), *torch.autograd.grad(out, theta)))
    value = sum(float(p[token].detach()) * each[token][0] for token in range(4))
    gradient = sum(p[token].detach() * each[token][1] for token in range(4))
    reverse = (p * (p.log() - other)).sum()
    forward = (other.exp() * (other - p.log())).sum()
    expected = {
        "k1": torch.zeros_like(theta),
        "k2": torch.autograd.grad(reverse, theta, retain_graph=True)[0],
        "k3": torch.autograd.grad(forward, theta, retain_graph=True)[0],
    }[kind]
    torch.testing.assert_close(gradient, expected)
    if kind != "k2":
        assert value == pytest.approx(float(reverse.detach()))


@pytest.mark.parametrize("name", ["tis_ppo", "icepop"])
def test_the_weight_of_the_sampler_is_unbiased(losses, name):
    """Sampled from another policy, without a cap: the expected gradient is that of the reward."""
    theta = torch.tensor([0.3, -0.2, 0.9, 0.1], dtype=torch.float64, requires_grad=True)
    sampler = torch.log_softmax(torch.tensor([0.1, 0.4, 0.2, -0.5], dtype=torch.float64), 0)
    reward = torch.tensor([1.0, -0.5, 0.3, 2.0], dtype=torch.float64)
    wide = {"max_weight": 1e9} if name == "tis_ppo" else {"min_weight": 0.0, "max_weight": 1e9}
    loss = forgedsl.compile_loss(name, params=wide)
    current = torch.log_softmax(theta, 0)
    expected = torch.zeros_like(theta)
    for token in range(4):
        value = loss(
            logits=theta.unsqueeze(0),
            labels=torch.tensor([token]),
            proximal=current[token].detach().view(1),
            behavior=sampler[token].view(1),
            adv=reward[token].view(1),
            seq_id=torch.tensor([0]),
        ).loss
        expected += sampler[token].exp() * torch.autograd.grad(value, theta)[0]
    (want,) = torch.autograd.grad(-(current.exp() * reward).sum(), theta)
    torch.testing.assert_close(expected, want)
