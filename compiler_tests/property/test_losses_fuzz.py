"""Random typed losses: symbolic gradient against autograd of the undifferentiated program.

Expressions are drawn as .forge text over token and sequence values, so the parser, inference,
folding, both emissions and the runtime take part. Points close to a kink are left out: there the
two may legitimately pick different subgradients of numerically different comparisons.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import random_losses
import tolerance
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import forgedsl
from forgedsl.losses import text as tree_text

EXAMPLES = 1000 if os.environ.get("FORGE_DEEP") else 60
NUM_SEQUENCES, NUM_ROWS = 4, 12
LARGEST = 2.0**20
"""of a loss that is looked at; rounding of its terms grows with it"""


def inputs(seed, paired):
    rng = torch.Generator().manual_seed(seed)

    def draw(size):
        return torch.randn(size, generator=rng, dtype=torch.float64)

    given_ = {name: draw(NUM_ROWS) for name in random_losses.TOKEN_INPUTS}
    statistics = {name: draw(NUM_ROWS) for name in random_losses.STATISTICS}
    seq_id = torch.arange(NUM_SEQUENCES).repeat_interleave(NUM_ROWS // NUM_SEQUENCES)
    mask = torch.rand(NUM_ROWS, generator=rng) > 0.3
    mask[:: NUM_ROWS // NUM_SEQUENCES] = True
    return SimpleNamespace(
        **given_,
        **{name: value.requires_grad_() for name, value in statistics.items()},
        adv=draw(NUM_SEQUENCES // 2 if paired else NUM_SEQUENCES),
        mask=mask,
        seq_id=seq_id,
        seq_valid=torch.ones(NUM_SEQUENCES, dtype=torch.bool),
        step=SimpleNamespace(
            num_tokens=mask.sum().double(),
            num_sequences=torch.tensor(float(NUM_SEQUENCES)).double(),
        ),
        dtype=torch.float64,
    )


@pytest.mark.full
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not os.environ.get("FORGE_DEEP"),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(text=random_losses.losses(), seed=st.integers(0, 10_000))
def test_symbolic_gradient_is_that_of_autograd(text, seed):
    loss = forgedsl.compile_loss(text)
    assert tree_text.write(tree_text.read(loss.tree)) == loss.tree
    x = inputs(seed, loss.paired)
    value, _ = loss.module.loss(x)
    assume(torch.isfinite(value) and value.abs() < LARGEST)
    names = [name for name in loss.module.STATISTICS if hasattr(x, name)]
    want = torch.autograd.grad(value, [getattr(x, name) for name in names])
    with torch.no_grad():
        got = loss.module.gradient(x, loss.module.prepare(x))
    near = tolerance.close(torch.float64, NUM_ROWS, condition=LARGEST)
    for name, expected in zip(names, want, strict=True):
        torch.testing.assert_close(got[name], expected, **near)
