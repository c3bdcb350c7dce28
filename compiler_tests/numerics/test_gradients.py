"""Every standard loss: symbolic gradient, autograd and finite differences agree in float64."""

from __future__ import annotations

import pytest
import torch
from tolerance import EXACT, SMALL, close


def test_linear_agrees_with_autograd(standard_loss, losses):
    case = losses.make_case(standard_loss)
    want = losses.reference(standard_loss, case)
    got = standard_loss.linear(
        hidden=case.hidden, weight=case.weight, temperature=0.7, **case.batch, **case.inputs
    ).loss
    torch.testing.assert_close(got, want, **EXACT)
    torch.testing.assert_close(
        losses.gradients(3 * got, case), losses.gradients(3 * want, case), **EXACT
    )


@pytest.mark.cover
@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_chunks_do_not_matter(standard_loss, losses, chunk):
    case = losses.make_case(standard_loss, seed=1)
    call = {"weight": case.weight, "temperature": 0.7, **case.batch, **case.inputs}
    whole = standard_loss.linear(hidden=case.hidden, **call).loss
    parts = standard_loss.linear(hidden=case.hidden, chunk_rows=chunk, **call).loss
    torch.testing.assert_close(parts, whole, **EXACT)
    torch.testing.assert_close(
        losses.gradients(parts, case), losses.gradients(whole, case), **EXACT
    )


def test_logits_agree_with_linear(standard_loss, losses):
    case = losses.make_case(standard_loss, seed=2)
    call = {"temperature": 0.7, **case.batch, **case.inputs}
    logits = case.hidden @ case.weight.t()
    from_logits = standard_loss(logits=logits, chunk_rows=4, **call)
    linear = standard_loss.linear(hidden=case.hidden, weight=case.weight, **call)
    assert (from_logits.kernel, linear.kernel) == ("torch/logits", "torch/linear")
    assert from_logits.metrics.keys() == {"entropy", *standard_loss.reports}
    torch.testing.assert_close(from_logits.metrics, linear.metrics)
    torch.testing.assert_close(
        losses.gradients(from_logits.loss, case), losses.gradients(linear.loss, case)
    )


SMOOTH = ("sft_smoothed", "sapo", "grpo_entropy", "ppo_dual", "gspo", "gmpo", "dpo", "ipo")


@pytest.mark.parametrize("name", SMOOTH)  # the others have detached factors
def test_finite_differences(losses, name):
    loss = losses.standard(name)
    case = losses.make_case(loss, seed=3, noise=0.1 if name != "gspo" else 1e-5)

    def value(hidden, weight):
        call = {"temperature": 0.7, **case.batch, **case.inputs}
        return loss.linear(hidden=hidden, weight=weight, chunk_rows=5, **call).loss

    assert torch.autograd.gradcheck(value, (case.hidden, case.weight), atol=1e-6, rtol=1e-4)


def test_float32_follows_float64(standard_loss, losses):
    case = losses.make_case(standard_loss, seed=4)
    inputs = {name: value.float() for name, value in case.inputs.items()}
    hidden = case.hidden.detach().float().requires_grad_()
    weight = case.weight.detach().float().requires_grad_()
    got = standard_loss.linear(
        hidden=hidden, weight=weight, temperature=0.7, **case.batch, **inputs
    ).loss
    want = losses.reference(standard_loss, case)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, **close(torch.float32, SMALL, condition=16.0))


def test_bfloat16_gradients_have_their_dtype(losses):
    loss = losses.standard("dapo")
    case = losses.make_case(loss)
    hidden = case.hidden.detach().bfloat16().requires_grad_()
    weight = case.weight.detach().bfloat16().requires_grad_()
    out = loss.linear(hidden=hidden, weight=weight, **case.batch, **case.inputs)
    out.loss.backward()
    assert out.loss.dtype == torch.float32
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16


def test_weight_tied_with_the_embedding(losses):
    loss = losses.standard("dapo")
    case = losses.make_case(loss)
    call = {"temperature": 0.7, **case.batch, **case.inputs}
    tokens = torch.randint(11, (case.labels.numel(),), generator=torch.Generator().manual_seed(9))
    tied = case.weight
    got = loss.linear(hidden=torch.tanh(tied[tokens]), weight=tied, **call).loss
    logits = torch.tanh(tied[tokens]) @ tied.t()
    want = loss(logits=logits, **call).loss
    torch.testing.assert_close(torch.autograd.grad(got, tied), torch.autograd.grad(want, tied))
