"""Random losses by their kernels, under the interpreter, against autograd of the torch module."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import forgedsl

SOURCE = Path(__file__).parents[1] / "property/test_losses_fuzz.py"
SPEC = importlib.util.spec_from_file_location("random_losses", SOURCE)
assert SPEC is not None
assert SPEC.loader is not None
random_losses = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(random_losses)
EXAMPLES = 1000 if os.environ.get("FORGE_DEEP") else 25


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not os.environ.get("FORGE_DEEP"),
    suppress_health_check=[*HealthCheck],
)
@given(root=random_losses.roots, body=random_losses.expressions(), seed=st.integers(0, 10_000))
def test_kernels_agree_with_torch(root, body, seed):
    text = f"forge 1\nloss f({random_losses.FIELDS}) {{ minimize {root.format(body)} }}\n"
    plain = forgedsl.compile_loss(text, backend="torch")
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(12, 7, generator=rng, dtype=torch.float64)
    values = {
        name: torch.randn(3 if name == "adv" else 12, generator=rng, dtype=torch.float64)
        for name in ("behavior", "ref", "adv")
    }
    call = {
        "labels": torch.randint(7, (12,), generator=rng),
        "mask": torch.rand(12, generator=rng) > 0.3,
        "seq_id": torch.arange(3).repeat_interleave(4),
        **{name: values[name] for name in plain.input_names},
    }
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    want = plain(logits=theirs, **call)
    assume(torch.isfinite(want.loss) and want.loss.abs() < 1e6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        got = plain.using("triton")(logits=ours, **call)
        got.loss.backward()
    want.loss.backward()
    torch.testing.assert_close(got.loss, want.loss, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-7, atol=1e-9)
