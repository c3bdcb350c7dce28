"""Gradients of microbatches are added as PyTorch adds them, bit for bit (interpreted)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from forgedsl_runtime.services.titan.upstream.gradient_sums import add_gradient

PROGRAM = """
import torch
from forgedsl_runtime.services.titan.upstream import gradient_sums

torch.manual_seed(0)
for count in (1, 7, 4096, 10_001):
    for dtype in (torch.bfloat16, torch.float32):
        total, gradient = torch.randn(count), torch.randn(count).to(dtype)
        expected = total + gradient
        gradient_sums.add_elements[(-(-count // gradient_sums.BLOCK),)](
            total, gradient, count, BLOCK=gradient_sums.BLOCK
        )
        assert total.equal(expected), (count, dtype)
"""


def test_the_kernel_adds_as_pytorch_does(interpreted: Callable[[str], None]) -> None:
    interpreted(PROGRAM)


@pytest.mark.parametrize("turned", [False, True])
def test_without_a_gpu_pytorch_adds(turned: bool) -> None:
    total = torch.randn(5, 3)
    gradient = (torch.randn(3, 5).t() if turned else torch.randn(5, 3)).bfloat16()
    expected = total + gradient
    add_gradient(total, gradient)
    assert total.equal(expected)
