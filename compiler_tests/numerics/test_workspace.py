"""loss.linear within a workspace: the same loss and gradients from tiles of rows and vocabulary."""

from __future__ import annotations

import re

import pytest
import torch
from tolerance import EXACT

import forgedsl
from forgedsl_runtime.losses import tiled

WIDTH, VOCABULARY = 6, 11


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Tiles of 4 columns and 5 rows, where they are of 128 and more."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # before kernels are imported
    from forgedsl_runtime.losses import onchip

    monkeypatch.setattr(
        tiled.Tiles, "of",
        classmethod(lambda cls, workspace, num_rows, weight, *, copies, element:
                    cls(max(1, min(5, num_rows)), 4, num_rows, weight.shape[0])),
    )  # fmt: skip
    monkeypatch.setattr(
        onchip.Tile, "of",
        classmethod(lambda cls, workspace, hidden, weight: cls(max(1, min(5, len(hidden))), 4)),
    )  # fmt: skip


@pytest.mark.cover
@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_agrees_with_autograd(standard_loss, losses, backend):
    near = 1e-4 if standard_loss.name.startswith(("gspo", "luspo")) else 0.3
    case = losses.make_case(standard_loss, noise=near)
    call = {"weight": case.weight, "temperature": 0.7, **case.batch, **case.inputs}
    want = losses.reference(standard_loss, case)
    out = standard_loss.using(backend).linear(hidden=case.hidden, workspace=1, **call)
    kernel = {"torch": "torch/linear/tiled", "triton": "triton/linear/onchip/tiled"}
    assert out.kernel == kernel[backend]
    torch.testing.assert_close(out.loss, want, **EXACT)
    torch.testing.assert_close(
        losses.gradients(3 * out.loss, case), losses.gradients(3 * want, case),
        **EXACT,
    )  # fmt: skip
    whole = standard_loss.linear(hidden=case.hidden, **call)
    torch.testing.assert_close(out.metrics, whole.metrics)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_masked_rows_and_padding(losses, backend):
    loss = losses.standard("grpo_entropy")
    case = losses.make_case(loss, lengths=(4, 4, 4, 4))
    inputs = {k: v.view(4, 4) if v.numel() == 16 else v for k, v in case.inputs.items()}
    call = {"labels": case.labels.view(4, 4), "mask": case.mask.view(4, 4), **inputs}
    hidden = case.hidden.view(4, 4, -1)
    poisoned = torch.where(case.mask.view(4, 4, 1), hidden, torch.nan)
    want = loss.linear(hidden=hidden, weight=case.weight, **call).loss
    got = loss.using(backend).linear(hidden=poisoned, weight=case.weight, workspace=1, **call).loss
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(losses.gradients(got, case), losses.gradients(want, case))


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_an_empty_batch(losses, backend):
    loss = losses.standard("dapo").using(backend)
    weight = torch.randn(7, 4, requires_grad=True)
    none = torch.zeros(0, dtype=torch.int64)
    out = loss.linear(hidden=torch.zeros(0, 4), weight=weight, labels=none, seq_id=none,
                      num_tokens=5, workspace=1)  # fmt: skip
    out.loss.backward()
    assert out.loss == 0
    assert not weight.grad.any()


def test_not_with_a_group(losses):
    loss = losses.standard("sft")
    with pytest.raises(TypeError, match="workspace= and group="):
        loss.linear(hidden=torch.zeros(2, 4), weight=torch.zeros(5, 4), group=object(),
                    labels=torch.zeros(2, dtype=torch.int64), workspace=1 << 20)  # fmt: skip


def test_tiles_fit_into_the_workspace(monkeypatch):
    monkeypatch.undo()
    for workspace in (1 << 26, 1 << 28):
        for width in (512, 2048, 4096):
            weight = torch.empty(151936, width, device="meta")
            for copies, element in ((1, 4), (1, 2), (4, 4)):
                sizes = tiled.Tiles.of(workspace, 65536, weight, copies=copies, element=element)
                used = sizes.columns * width * 8
                used += sizes.rows * (sizes.columns * copies * element + 8 * width)
                assert used <= workspace
                assert sizes.columns % tiled.GRANULE == 0
    with pytest.raises(
        ValueError, match=r"too small for rows of width 4096: at least (\d+) are needed"
    ) as info:
        tiled.Tiles.of(1 << 20, 10, weight, copies=1, element=4)
    needed = int(re.findall(r"(\d+) are needed", str(info.value))[0])
    assert tiled.Tiles.of(needed, 10**6, weight, copies=1, element=4).rows >= tiled.LEAST_ROWS


@pytest.mark.full
def test_memory_does_not_follow_rows_or_vocabulary(monkeypatch):
    """What is allocated at the peak beyond the gradients, of a vocabulary of 32768 in bfloat16."""
    monkeypatch.undo()
    loss = forgedsl.compile_loss("sft", backend="torch")
    workspace, width = 1 << 23, 64
    for num_rows, vocabulary in ((512, 8192), (2048, 8192), (512, 32768)):
        hidden = torch.randn(num_rows, width).bfloat16().requires_grad_()
        weight = torch.randn(vocabulary, width).bfloat16().requires_grad_()
        labels = torch.randint(vocabulary, (num_rows,))
        with torch.profiler.profile(profile_memory=True) as profile:
            loss.linear(
                hidden=hidden, weight=weight, labels=labels, workspace=workspace
            ).loss.backward()
        used = peak = 0
        for event in profile.profiler.kineto_results.events():
            if event.name() == "[memory]":
                used += event.nbytes()
                peak = max(peak, used)
        gradients = 4 * hidden.numel() + 2 * hidden.numel() + 2 * weight.numel()
        statistics = 64 * 8 * num_rows
        assert 0 < peak <= workspace + gradients + statistics
