"""Means over the tokens of one side of a pair leave out those of the other side."""

from __future__ import annotations

import pytest
import torch
from tolerance import SMALL, close

import forgedsl

SOURCE = """
loss chosen_only(logprob: diff [P, T] f32, weight: [P, T] f32, mask: [P, T] bool) {
  level = batch_mean(weight.rejected, mask.rejected)
  minimize token_mean(-(weight.chosen - level) * logprob.chosen, mask.chosen)
}
"""


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_a_mean_over_the_chosen_answers(backend: str, monkeypatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    rng = torch.Generator().manual_seed(3)
    logits = torch.randn(4, 5, 11, generator=rng, requires_grad=True)
    labels = torch.randint(11, (4, 5), generator=rng)
    weight = torch.randn(4, 5, generator=rng)
    mask = torch.arange(5) < torch.tensor([[5], [2], [3], [4]])
    logprob = torch.log_softmax(logits, 2).gather(2, labels[..., None])[..., 0]
    level = weight[1::2][mask[1::2]].mean()
    wanted = (-(weight[0::2] - level) * logprob[0::2])[mask[0::2]].mean()
    (gradient,) = torch.autograd.grad(wanted, logits)

    loss = forgedsl.compile_loss(SOURCE, backend=backend)
    out = loss(logits=logits, labels=labels, mask=mask, weight=weight)
    out.loss.backward()

    torch.testing.assert_close(out.loss, wanted, **close(torch.float32, SMALL))
    torch.testing.assert_close(logits.grad, gradient, **close(torch.float32, SMALL))
