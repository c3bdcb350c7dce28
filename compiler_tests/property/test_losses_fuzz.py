"""Random typed losses: symbolic gradient against autograd of the undifferentiated program.

Expressions are drawn as .forge text over token and sequence values, so the parser, inference,
folding, both emissions and the runtime take part. Points close to a kink are left out: there the
two may legitimately pick different subgradients of numerically different comparisons.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import forgedsl
from forgedsl.losses import text as tree_text

EXAMPLES = 3000 if os.environ.get("FORGE_DEEP") else 60
FIELDS = (
    "logprob: diff [B, T] f32, entropy: diff [B, T] f32, logsumexp: diff [B, T] f32, "
    "behavior: [B, T] f32, ref: [B, T] f32, adv: [B] f32, mask: [B, T] bool"
)
NUM_SEQUENCES, NUM_ROWS = 3, 12

CONSTANTS = ("0.5", "(-1.5)", "2.0", "0.0", "1.0")
LEAVES = ("logprob", "entropy", "logsumexp", "behavior", "ref", "adv", *CONSTANTS)
FORMS = (
    "({} + {})", "({} - {})", "({} * {})", "min({}, {})", "max({}, {})", "abs({})", "stop({})",
    "sigmoid(clamp({}, -4.0, 4.0))", "tanh({})", "log_sigmoid({})", "softplus({})",
    "expm1(clamp({}, -4.0, 4.0))", "exp(clamp({}, -4.0, 4.0))", "({} / (1.0 + abs({})))",
    "sqrt(1.0 + {} ** 2)", "log1p(abs({}))", "clip({}, -0.7, 1.3)", "({} if {} > {} else {})",
    "({} if {} >= {} and {} < 1.0 else {})", "sum({} + logprob, T, mask)",
    "mean({} + behavior, T, mask)", "max({} + logprob, T, mask)", "min({} * logprob, T, mask)",
    "std({} + entropy, T, mask)",
)  # fmt: skip


@st.composite
def expressions(draw, depth=4):
    """An expression of the language as text."""
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(LEAVES))
    form = draw(st.sampled_from(FORMS))
    parts = [draw(expressions(depth - 1)) for _ in range(form.count("{}"))]
    return form.format(*parts)


roots = st.sampled_from(
    [
        "token_mean({} + logprob, mask)",
        "seq_mean({} * logprob + logprob, mask)",
        "seq_sum({} + 0.1 * logprob, mask)",
        "seq_mean(sum({} + logprob, T, mask))",
    ]
)


def inputs(seed):
    rng = torch.Generator().manual_seed(seed)

    def draw(size):
        return torch.randn(size, generator=rng, dtype=torch.float64)

    given_ = {name: draw(NUM_ROWS) for name in ("behavior", "ref")}
    statistics = {name: draw(NUM_ROWS) for name in ("logprob", "entropy", "logsumexp")}
    seq_id = torch.arange(NUM_SEQUENCES).repeat_interleave(NUM_ROWS // NUM_SEQUENCES)
    mask = torch.rand(NUM_ROWS, generator=rng) > 0.3
    mask[:: NUM_ROWS // NUM_SEQUENCES] = True
    return SimpleNamespace(
        **given_,
        **{name: value.requires_grad_() for name, value in statistics.items()},
        adv=draw(NUM_SEQUENCES),
        mask=mask,
        seq_id=seq_id,
        seq_valid=torch.ones(NUM_SEQUENCES, dtype=torch.bool),
        step=SimpleNamespace(
            num_tokens=mask.sum().double(), num_sequences=torch.tensor(3.0).double()
        ),
        dtype=torch.float64,
    )


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not os.environ.get("FORGE_DEEP"),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(root=roots, body=expressions(), seed=st.integers(0, 10_000))
def test_symbolic_gradient_is_that_of_autograd(root, body, seed):
    loss = forgedsl.compile_loss(f"forge 1\nloss f({FIELDS}) {{ minimize {root.format(body)} }}\n")
    assert tree_text.write(tree_text.read(loss.tree)) == loss.tree
    x = inputs(seed)
    value, _ = loss.module.loss(x)
    assume(torch.isfinite(value) and value.abs() < 1e6)
    names = [name for name in loss.module.STATISTICS if hasattr(x, name)]
    want = torch.autograd.grad(value, [getattr(x, name) for name in names])
    with torch.no_grad():
        got = loss.module.gradient(x, loss.module.prepare(x))
    for name, expected in zip(names, want, strict=True):
        torch.testing.assert_close(got[name], expected, rtol=1e-8, atol=1e-9)
