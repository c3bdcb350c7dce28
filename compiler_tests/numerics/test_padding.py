"""Products of narrow numbers on a CPU read nothing that nobody wrote, whatever the CPU."""

from __future__ import annotations

from math import nan

import pytest
import torch
from padding import FinitePadding, between_rows, nothing_written
from torch.nn.functional import pad

WAYS = {
    "chunked": {},
    "small chunks": {"chunk_rows": 20},
    "compact": {"chunk_rows": 20, "compact": True},
    "logits kept": {"logits_dtype": torch.bfloat16},
    "logits kept, compact": {"logits_dtype": torch.bfloat16, "chunk_rows": 20, "compact": True},
    "workspace": {"workspace": 1 << 20},
}
BACKENDS = ("torch", "triton")
NAMES = ("dapo", "gspo", "grpo_entropy", "sft_smoothed")
"""of single tokens, of sequences, with an entropy, with a mean: what the products differ in"""


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.fixture
def watched():
    with nothing_written(), FinitePadding() as found:
        yield found


def narrow(case, dtype):
    """Inputs of a loss, hidden states of narrow numbers among others of a wider matrix, where NaN
    stand; no multiple of 8 tokens in the vocabulary."""
    inputs = {key: value.detach().float() if value.is_floating_point() else value
              for key, value in case.inputs.items()}  # fmt: skip
    hidden = pad(case.hidden.detach(), (0, 2)).to(dtype)  # 16 bytes, as the copy engine wants
    weight = pad(case.weight.detach(), (0, 2)).to(dtype)
    among = pad(hidden, (0, 8), value=nan)[:, : hidden.shape[1]]
    assert len(weight) % 8
    return among.requires_grad_(), weight.requires_grad_(), {**case.batch, **inputs}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_of_a_linear_loss(watched, losses, backend, way, name):
    run(losses, losses.standard(name), backend, way, torch.bfloat16)


@pytest.mark.deep
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_of_every_linear_loss(watched, losses, standard_loss, backend, way, dtype):
    run(losses, standard_loss, backend, way, dtype)


def run(losses, loss, backend, way, dtype):
    case = losses.make_case(loss, lengths=(9, 12, 7, 11), noise=1e-4)
    hidden, weight, call = narrow(case, dtype)
    out = loss.using(backend).linear(hidden=hidden, weight=weight, **call, **WAYS[way])
    out.loss.backward()
    assert out.loss.isfinite()
    assert hidden.grad.isfinite().all()
    assert weight.grad.isfinite().all()


@pytest.mark.parametrize("on_chip", [False, True])
def test_of_log_probs(watched, losses, on_chip):
    from forgedsl_runtime.losses import head, logprobs

    case = losses.make_case(losses.standard("sft"), lengths=(9, 12, 7, 11))
    hidden, weight, call = narrow(case, torch.bfloat16)
    given = hidden.detach(), weight.detach()
    if on_chip:
        rows = head.every_row(call["labels"], torch.float32)
        found = logprobs.on_chip(*given, rows, 0.7)
    else:
        found = logprobs.token_logprobs(*given, call["labels"], 0.7)
    assert found.isfinite().all()


def test_rows_are_looked_between():
    wide = torch.arange(12.0).view(3, 4)
    assert [gap.tolist() for gap in between_rows(wide[:, :3])] == [[3.0], [7.0], [11.0]]
    assert [gap.tolist() for gap in between_rows(wide[:, 1:3].t())] == [[3, 4], [7, 8], [11]]
    assert not list(between_rows(wide))


def test_the_watch_sees_what_is_between_rows(watched):
    left, right = torch.zeros(4, 8).bfloat16(), torch.zeros(7, 3).bfloat16()
    assert (left[:, :7] @ right).isfinite().all()
    left[:, 7] = nan
    with pytest.raises(AssertionError, match="mm may read what nobody wrote"):
        left[:, :7] @ right
    assert (watched.products, watched.padded) == (2, 2)


def test_memory_that_is_asked_for_holds_nan(watched):
    assert torch.empty(3).isnan().all()
    assert torch.zeros(2).bfloat16().new_empty(5).isnan().all()
