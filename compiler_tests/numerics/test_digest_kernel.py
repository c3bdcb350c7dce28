"""The digest kernel of GPUs, in Triton's interpreter, finds what the CPU finds. On a GPU,
benchmarks/digests.py compares them."""

from __future__ import annotations

import pytest
import torch

from forgedsl.runtime.proofs.digest import COLUMNS, ROWS, WORDS, digest, factors


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float64], ids=str
)
@pytest.mark.parametrize(
    "shape", [(48, 40), (5000, 1), (1, 1), (3, 9000), (700, 1030), (0, 4)], ids=str
)
def test_the_kernel_finds_the_digest_of_the_cpu(
    dtype: torch.dtype, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    from forgedsl.runtime.proofs.digest_kernel import digest_on_gpu

    value = (10 * torch.randn(*shape, generator=torch.Generator().manual_seed(7))).to(dtype)
    bits = value.view(WORDS[value.element_size()])
    for column in (0, shape[1] // 3):  # the second: rows that are not adjacent
        part = bits[:, column:]
        by_row = factors(ROWS, 3, len(part), value.device)
        by_column = factors(COLUMNS, column, part.shape[1], value.device)
        expected = digest(value[:, column:], 3, column) if part.numel() else torch.tensor(0)
        assert digest_on_gpu(part, by_row, by_column) == expected
