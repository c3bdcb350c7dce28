"""Random losses three ways: kernels under the interpreter, the torch module, and autograd of the
undifferentiated program through log_softmax. All in float64, from logits and from hidden states."""

from __future__ import annotations

import os
from functools import partial
from types import SimpleNamespace

import pytest
import random_losses
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from tolerance import SMALL, close

import forgedsl

DEEP = os.environ.get("FORGE_DEEP") == "1"
SEQUENCES, TOKENS, WIDTH, VOCABULARY = 4, 5, 6, 35
ROWS = SEQUENCES * TOKENS
CLOSE = close(torch.float64, SMALL, condition=2.0**23)
"""losses that are drawn may be steeper than those that one would write"""
MANY_SUMS = (
    f"loss f({random_losses.FIELDS.format('B')}) {{ minimize seq_mean(sum(sum(mean(logprob + "
    "behavior, T, mask) + logprob, T, mask) + logprob, T, mask)) }"
)
"""found by this test: the table of sums was cut off after its first line"""


def draw(seed, paired):
    """Hidden states, lm_head and the inputs of any loss; one sequence may be wholly masked."""
    rng = torch.Generator().manual_seed(seed)

    def noise(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    call = {name: noise(ROWS) for name in random_losses.TOKEN_INPUTS}
    call["adv"] = noise(SEQUENCES // 2 if paired else SEQUENCES)
    batch = {
        "labels": torch.randint(VOCABULARY, (ROWS,), generator=rng),
        "mask": torch.rand(ROWS, generator=rng) > 0.3,
        "seq_id": torch.arange(SEQUENCES).repeat_interleave(TOKENS),
    }
    return noise(ROWS, WIDTH), noise(VOCABULARY, WIDTH), call, batch


def undifferentiated(loss, logits, call, batch):
    """The loss by autograd of the program as it was written."""
    logp = torch.log_softmax(logits, dim=1)
    valid = torch.zeros(SEQUENCES, dtype=torch.bool)
    valid[batch["seq_id"][batch["mask"]]] = True
    pairs = valid.view(-1, 2).all(1).repeat_interleave(2)
    step = SimpleNamespace(
        num_tokens=batch["mask"].sum().double().clamp(min=1),
        num_sequences=(pairs if loss.paired else valid).sum().double().clamp(min=1),
    )
    x = SimpleNamespace(
        **call,
        logprob=logp.gather(1, batch["labels"].unsqueeze(1)).squeeze(1),
        entropy=-(logp.exp() * logp).sum(1),
        logsumexp=torch.logsumexp(logits, 1),
        mean_logprob=logp.mean(1),
        mask=batch["mask"],
        seq_id=batch["seq_id"],
        seq_valid=valid,
        step=step,
        dtype=torch.float64,
    )
    return loss.module.loss(x)[0]


def with_gradients(value, *sources):
    grads = torch.autograd.grad(value, sources, allow_unused=True)
    found = [
        torch.zeros_like(source) if grad is None else grad
        for source, grad in zip(sources, grads, strict=True)
    ]
    return [value.detach(), *found]


@pytest.mark.full
@settings(
    max_examples=1000 if DEEP else 8,
    deadline=None,
    derandomize=not DEEP,
    suppress_health_check=[*HealthCheck],
)
@example(text=MANY_SUMS, seed=0)
@given(text=random_losses.losses(), seed=st.integers(0, 10_000))
def test_three_ways(text, seed):
    loss = forgedsl.compile_loss(text, backend="torch")
    hidden, weight, inputs, batch = draw(seed, loss.paired)
    call = {name: inputs[name] for name in loss.input_names}
    hidden.requires_grad_(), weight.requires_grad_()

    def plain(scale):
        value = undifferentiated(loss, scale * (hidden @ weight.t()), call, batch)
        return with_gradients(value, hidden, weight)

    want = plain(1.0)
    assume(all(torch.isfinite(part).all() for part in want) and want[0].abs() < 1e6)
    # at a kink, rounding decides which side is differentiated
    assume(all(map(partial(torch.allclose, rtol=1e-4, atol=1e-6), want, plain(1.0 + 1e-9))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        for way in (loss, loss.using("triton")):
            out = way(logits=hidden @ weight.t(), **call, **batch).loss
            torch.testing.assert_close(with_gradients(out, hidden, weight), want, **CLOSE)
            for kept in (None, torch.float64) if way is not loss else (None,):
                out = way.linear(hidden=hidden, weight=weight, chunk_rows=5, logits_dtype=kept,
                                 **call, **batch)  # fmt: skip
                torch.testing.assert_close(with_gradients(out.loss, hidden, weight), want, **CLOSE)
                assert way is loss or ("onchip" in out.kernel) == (kept is None)
