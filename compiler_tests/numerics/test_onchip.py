"""Linear losses whose logits stay on chip: tiles, rows far from their label, rows that hold NaN."""

from __future__ import annotations

import re

import pytest
import torch
from tolerance import EXACT, SMALL, close

import forgedsl

EPS = torch.finfo(torch.bfloat16).eps
NAMES = ("dapo", "gspo", "grpo_entropy", "sft_smoothed")


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    """Kernels are loaded on first use and see this then."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def case_of(losses, name, **more):
    """A batch whose vocabulary spans tiles of 32 columns and whose rows span tiles of 16."""
    loss = losses.standard(name)
    case = losses.make_case(loss, lengths=(9, 12, 7, 11), noise=1e-4, **more)
    wide = torch.randn(70, case.weight.shape[1], dtype=case.weight.dtype)
    wide[: len(case.weight)] = case.weight.detach()
    case.weight = wide.requires_grad_()
    return loss, case


@pytest.mark.cover
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kept", [None, torch.float64])
def test_tiles_and_kept_logits_agree_with_autograd(losses, name, kept):
    loss, case = case_of(losses, name)
    call = {**case.batch, **case.inputs, "temperature": 0.7}
    want = losses.reference(loss, case)
    out = loss.using("triton").linear(
        hidden=case.hidden, weight=case.weight, chunk_rows=20, logits_dtype=kept, **call
    )
    assert ("onchip" in out.kernel) == (kept is None)
    torch.testing.assert_close(out.loss, want, **EXACT)
    torch.testing.assert_close(
        losses.gradients(3 * out.loss, case), losses.gradients(3 * want, case), **EXACT
    )


@pytest.mark.cover
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("more", [{}, {"chunk_rows": 20}, {"workspace": 1 << 20}])
def test_labels_far_below_the_largest_logit(losses, name, more):
    """Sums around the label overflow; they are taken again around the largest logit."""
    loss, case = case_of(losses, name)
    direction = torch.zeros_like(case.weight)
    direction[60] = 16.0 * torch.sign(case.hidden[3].detach())
    weight = (case.weight.detach() + direction).requires_grad_()
    call = {**case.batch, **case.inputs}
    z = (case.hidden @ weight.t()).detach()
    below = z.logsumexp(1) - z.gather(1, case.labels.unsqueeze(1)).squeeze(1)
    assert (below[case.mask] > 40.0).any()
    want = loss.linear(hidden=case.hidden, weight=weight, **call)
    got = loss.using("triton").linear(hidden=case.hidden, weight=weight, **call, **more)
    torch.testing.assert_close(got.loss, want.loss, **EXACT)
    sources = (case.hidden, weight)
    torch.testing.assert_close(
        torch.autograd.grad(got.loss, sources), torch.autograd.grad(want.loss, sources), **EXACT
    )


@pytest.mark.cover
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "more", [{}, {"chunk_rows": 20}, {"chunk_rows": 20, "compact": True}, {"workspace": 1 << 20}]
)
@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_masked_rows_may_hold_anything(losses, name, more):
    loss, case = case_of(losses, name)
    call = {**case.batch, **case.inputs}
    poisoned = torch.where(case.mask.unsqueeze(1), case.hidden, torch.nan)
    want = loss.linear(hidden=case.hidden, weight=case.weight, **call).loss
    got = loss.using("triton").linear(hidden=poisoned, weight=case.weight, **call, **more).loss
    torch.testing.assert_close(got, want, **EXACT)
    torch.testing.assert_close(losses.gradients(got, case), losses.gradients(want, case), **EXACT)


def test_a_nan_that_counts_is_not_lost(losses):
    loss, case = case_of(losses, "dapo")
    counted = int(case.mask.nonzero()[5])
    hidden = case.hidden.detach().clone()
    hidden[counted, 2] = torch.nan
    out = loss.using("triton").linear(
        hidden=hidden, weight=case.weight, **case.batch, **case.inputs
    )
    assert out.loss.isnan()


@pytest.mark.parametrize("name", NAMES)
def test_bfloat16(losses, name):
    """Weights are rounded to 8 bits where the products read them, and nothing else is."""
    loss, case = case_of(losses, name)
    pair = [part.detach().bfloat16().requires_grad_() for part in (case.hidden, case.weight)]
    wide = [part.detach().double().requires_grad_() for part in pair]
    inputs = {key: value.to(torch.float32) if value.is_floating_point() else value
              for key, value in case.inputs.items()}  # fmt: skip
    doubled = {key: value.double() if value.is_floating_point() else value
               for key, value in inputs.items()}  # fmt: skip
    # rows of 8 numbers are what the copy engine can fetch
    width = -(-pair[0].shape[1] // 8) * 8
    padded = [torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in pair]
    out = loss.using("triton").linear(hidden=padded[0], weight=padded[1], **case.batch, **inputs)
    assert out.kernel.startswith("triton/linear/onchip")
    want = loss.linear(hidden=wide[0], weight=wide[1], **case.batch, **doubled)
    torch.testing.assert_close(out.loss.double(), want.loss, **close(torch.float32, SMALL))
    found = torch.autograd.grad(out.loss, pair)
    right = torch.autograd.grad(want.loss, wide)
    for got, exact in zip(found, right, strict=True):
        # what is rounded are weights, sums and results; roundings of many numbers add up as squares
        assert (got.double() - exact).norm() <= 3 * EPS * exact.norm()


def test_without_gradient_only_statistics_are_formed(losses):
    loss, case = case_of(losses, "grpo_entropy")
    call = {**case.batch, **case.inputs}
    with torch.no_grad():
        got = loss.using("triton").linear(
            hidden=case.hidden, weight=case.weight, chunk_rows=20, **call
        )
        want = loss.linear(hidden=case.hidden, weight=case.weight, **call)
    torch.testing.assert_close((got.loss, got.metrics), (want.loss, want.metrics), **EXACT)


def test_token_logprobs(losses, monkeypatch):
    from forgedsl_runtime.losses import head, logprobs

    monkeypatch.setattr(logprobs, "ROWS_AT_A_TIME", 20)
    _, case = case_of(losses, "sft")
    hidden, weight = case.hidden.detach(), case.weight.detach()
    want = logprobs.token_logprobs(hidden, weight, case.labels, 0.7)
    rows = head.every_row(case.labels, torch.float64)
    torch.testing.assert_close(logprobs.on_chip(hidden, weight, rows, 0.7), want, **EXACT)


def test_a_label_outside_of_the_vocabulary_is_nan_and_reads_nothing(losses):
    """On a GPU labels are not looked at before; what stands behind the weight is not read."""
    from forgedsl_runtime.losses import head, logprobs

    _, case = case_of(losses, "sft")
    labels = case.labels.clone()
    labels[3], labels[7] = 1 << 40, -1
    rows = head.every_row(labels, torch.float64)
    found = logprobs.on_chip(case.hidden.detach(), case.weight.detach(), rows, 1.0)
    assert found.isnan().nonzero().flatten().tolist() == [3, 7]


@pytest.mark.parametrize("kept", [None, torch.float64])
def test_hidden_states_of_any_strides(losses, kept):
    loss, case = case_of(losses, "dapo")
    across = case.hidden.detach().t().contiguous().t()
    assert across.stride(0) == 1
    call = {"weight": case.weight, **case.batch, **case.inputs}
    want = loss.linear(hidden=case.hidden, **call)
    got = loss.using("triton").linear(hidden=across, logits_dtype=kept, **call)
    torch.testing.assert_close(got.loss, want.loss, **EXACT)


@pytest.mark.parametrize("more", [{}, {"workspace": 1 << 20}])
def test_rows_that_the_copy_engine_cannot_fetch(losses, more):
    """A copy of these rows would not begin at multiples of 16 bytes: logits are kept."""
    loss, case = case_of(losses, "dapo", dtype=torch.float32)
    assert case.hidden.shape[1] * 4 % 16
    wide = torch.nn.functional.pad(case.hidden.detach(), (0, 8 - case.hidden.shape[1]))
    hidden = wide[:, : case.hidden.shape[1]]
    assert hidden.stride(0) * 4 % 16 == 0
    call = {"weight": case.weight, **case.batch, **case.inputs, **more}
    out = loss.using("triton").linear(hidden=hidden, **call)
    assert "onchip" not in out.kernel
    torch.testing.assert_close(out.loss, loss.linear(hidden=hidden, **call).loss)


def test_tiles_fit_into_the_workspace():
    from forgedsl_runtime.losses import onchip

    for workspace in (1 << 26, 1 << 28):
        for width in (512, 2048, 4096):
            for count in (1, 4096, 8192, 70000):
                hidden = torch.empty(count, width, device="meta", dtype=torch.bfloat16)
                weight = torch.empty(151936, width, device="meta", dtype=torch.bfloat16)
                tile = onchip.Tile.of(workspace, hidden, weight)
                used = 2 * tile.rows * (tile.columns + width)
                used += 4 * tile.columns * width if tile.rows < count else 0
                assert used <= workspace
                assert tile.columns % onchip.GRANULE == 0


def test_the_workspace_that_an_error_names_suffices():
    from forgedsl_runtime.losses import onchip

    for width in (64, 512, 4096):
        weight = torch.empty(151936, width, device="meta", dtype=torch.bfloat16)
        for count in (1, 100, 300, 8192, 70000):
            hidden = torch.empty(count, width, device="meta", dtype=torch.bfloat16)
            with pytest.raises(ValueError, match=r"(\d+) are needed") as info:
                onchip.Tile.of(1000, hidden, weight)
            needed = int(re.findall(r"(\d+) are needed", str(info.value))[0])
            assert onchip.Tile.of(needed, hidden, weight).columns >= onchip.GRANULE


def test_tiles_keep_all_processors_busy():
    from forgedsl_runtime.losses import onchip

    # 64 * 33 tiles: 16 for each of 132
    assert onchip.balanced_columns(8192, 12288, 132) == 33 * 256
    assert onchip.balanced_columns(8192, 12288, 1) == 12288
    assert onchip.balanced_columns(128, 700, 132) == 512


def test_a_workspace_too_small_is_said():
    loss = forgedsl.compile_loss("sft", backend="triton")
    labels = torch.zeros(300, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"workspace=1000 bytes is too small for rows of width 64"):
        loss.linear(hidden=torch.zeros(300, 64), weight=torch.zeros(500, 64), labels=labels,
                    seq_id=labels, workspace=1000)  # fmt: skip
