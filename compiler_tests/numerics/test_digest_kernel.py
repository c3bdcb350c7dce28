"""The digest kernel of GPUs, in Triton's interpreter, finds what the CPU finds. On a GPU,
benchmarks/digests.py compares them."""

from __future__ import annotations

import pytest
import torch

from forgedsl_runtime.proofs.digest import COLUMNS, ROWS, WORDS, digest, factors

SHAPES = [(9, 40), (130, 1), (1, 1), (3, 150), (17, 103), (0, 4)]
DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.float64]


def test_the_kernel_finds_the_digests_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    from forgedsl_runtime.proofs import digest_kernel
    from forgedsl_runtime.proofs.digest_kernel import Matrix, digest_matrices

    monkeypatch.setattr(digest_kernel, "WIDTH", 64)
    monkeypatch.setattr(digest_kernel, "PROGRAMS", 3)
    draw = torch.Generator().manual_seed(7)
    matrices, expected = [], []
    for dtype in DTYPES:
        for shape in SHAPES:
            value = (10 * torch.randn(*shape, generator=draw)).to(dtype)
            for column in (0, shape[1] // 3):  # the second: rows that are not adjacent
                part = value[:, column:]
                by_column = factors(COLUMNS, column, part.shape[1], value.device)
                bits = part.view(WORDS[value.element_size()])
                matrices.append(Matrix(bits, factors(ROWS, 3, len(part), value.device), by_column))
                expected.append(digest(part, 3, column) if part.numel() else torch.tensor(0))
    assert digest_matrices(matrices).tolist() == torch.stack(expected).tolist()
