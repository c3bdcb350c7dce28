"""Agreement with Liger's own kernels, which run under the same interpreter."""

from __future__ import annotations

import pytest
import torch
from tolerance import close

import forgedsl

B, T, V = 3, 5, 37


@pytest.fixture
def liger(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return pytest.importorskip("liger_kernel.transformers.grpo_loss").triton_grpo_loss


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "params", "options"),
    [
        ("dapo", {}, {"loss_type": "dapo"}),
        ("grpo", {"beta": 0.04, "clip_high": 0.28}, {"loss_type": "grpo", "beta": 0.04}),
        (
            "dr_grpo",
            {"horizon": 8.0, "clip_high": 0.28},
            {"loss_type": "dr_grpo", "max_completion_length": 8},
        ),
        ("cispo", {"max_weight": 5.0}, {"loss_type": "cispo", "eps_high": 5.0}),
        ("sapo", {}, {"loss_type": "sapo"}),
        (
            "gspo",
            {"clip_low": 0.2, "clip_high": 0.28},
            {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        ),
    ],
)
def test_liger(liger, name, params, options):
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(B, T + 1, V, generator=rng)
    labels = torch.randint(V, (B, T), generator=rng)
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
    current = torch.log_softmax(logits[:, :-1], 2).gather(2, labels.unsqueeze(2)).squeeze(2)
    old = current + 0.3 * torch.randn(B, T, generator=rng)
    ref = current + 0.3 * torch.randn(B, T, generator=rng)
    adv = torch.randn(B, generator=rng)
    theirs = logits.clone().requires_grad_()
    given = {"beta": 0.0, "eps_low": 0.2, "eps_high": 0.28, "temperature": 1.0, **options}
    value, _ = liger(theirs, old, ref, labels, adv, mask, inplace=False, reduce=True, **given)
    value.backward()
    ours = logits[:, :-1].clone().requires_grad_()
    loss = forgedsl.compile_loss(name, params=params, backend="triton")
    inputs = {"behavior": old, "ref": ref, "adv": adv}
    inputs = {key: inputs[key] for key in loss.input_names}
    out = loss(logits=ours, labels=labels, mask=mask.bool(), **inputs)
    out.loss.backward()
    torch.testing.assert_close(out.loss, value, **close(torch.float32, V + B * T))
    torch.testing.assert_close(ours.grad, theirs.grad[:, :-1], **close(torch.float32, V + B * T))
