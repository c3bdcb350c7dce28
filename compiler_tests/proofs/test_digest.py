"""Digests of weights: of parts they add up, and every fault changes them."""

from __future__ import annotations

import pytest
import torch

from forgedsl_runtime.proofs import digest as module
from forgedsl_runtime.proofs.digest import digest, factors, unsigned

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float64)


def weights(dtype: torch.dtype = torch.float32, rows: int = 48, columns: int = 40) -> torch.Tensor:
    rng = torch.Generator().manual_seed(7)
    return (10 * torch.randn(rows, columns, generator=rng)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_add_up_to_the_whole(dtype: torch.dtype) -> None:
    value = weights(dtype)
    parts = [
        digest(value[a:b, c:d], a, c)
        for a, b in ((0, 5), (5, 48))
        for c, d in ((0, 13), (13, 14), (14, 40))
    ]
    assert unsigned(sum(int(part) for part in parts)) == unsigned(int(digest(value)))


def test_a_fused_tensor_is_the_sum_of_what_it_holds() -> None:
    q, k = weights(), weights(rows=8)
    fused = torch.cat([k, q])
    assert digest(fused[8:]) == digest(q)
    assert digest(fused[:8]) == digest(k)


def test_a_vector_is_a_column() -> None:
    value = weights()[:, 0]
    assert digest(value) == digest(value[:, None])
    assert digest(value) == digest(value[:9]) + digest(value[9:], 9)


def test_more_dimensions_count_as_columns() -> None:
    value = weights(columns=60)
    assert digest(value.view(48, 5, 12)) == digest(value)


def test_how_much_is_widened_at_once_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = digest(weights())
    for chunk in (1, 41, 100, 1 << 30):
        monkeypatch.setattr(module, "CHUNK", chunk)
        assert digest(weights()) == expected


def test_factors_are_odd_and_differ() -> None:
    found = factors(module.ROWS, 0, 100_000, torch.device("cpu"))
    assert bool((found & 1 == 1).all())
    assert len(found.unique()) == len(found)
    assert torch.equal(found[10:20], factors(module.ROWS, 10, 10, torch.device("cpu")))
    assert not torch.equal(found[:10], factors(module.COLUMNS, 0, 10, torch.device("cpu")))


def splitmix64(number: int) -> int:
    """As published: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014)."""
    mixed = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
    return mixed ^ (mixed >> 31)


def test_a_digest_is_what_its_formula_says() -> None:
    value = weights(torch.bfloat16, rows=3, columns=4)
    bits = value.view(torch.int16).tolist()
    row = [splitmix64((r + 1) * module.ROWS % 2**64) | 1 for r in range(3)]
    column = [splitmix64((c + 1) * module.COLUMNS % 2**64) | 1 for c in range(4)]
    expected = sum(row[r] * column[c] * bits[r][c] for r in range(3) for c in range(4))
    assert unsigned(int(digest(value))) == expected % 2**64


# ---- faults


def flipped(value: torch.Tensor, bit: int) -> torch.Tensor:
    out = value.clone()
    out.view(torch.int16 if value.element_size() == 2 else torch.int32)[17, 23] ^= 1 << bit
    return out


@pytest.mark.parametrize("bit", [0, 7, 14])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_flipped_bit_is_found(dtype: torch.dtype, bit: int) -> None:
    value = weights(dtype)
    assert digest(flipped(value, bit)) != digest(value)


FAULTS = {
    "transposed": lambda v: v.T.contiguous(),
    "rows swapped": lambda v: v[[1, 0, *range(2, 40)]],
    "columns swapped": lambda v: v[:, [1, 0, *range(2, 40)]],
    "halves swapped": lambda v: torch.cat([v[20:], v[:20]]),
    "rolled": lambda v: v.roll(1),
    "the shard of another rank": lambda v: torch.cat([v[:20], v[:20]]),
    "rounded twice": lambda v: v.half().float(),
    "negated": torch.neg,
    "stale by one part in a thousand": lambda v: v * 1.001,
    "one element zero": lambda v: v * (torch.arange(v.numel()).view(v.shape) != 77),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str) -> None:
    assert digest(FAULTS[name](weights())) != digest(
        weights()[:40] if name == "transposed" else weights()
    )


def test_no_two_of_many_small_changes_have_the_same_digest() -> None:
    value = weights(torch.bfloat16)
    found = {int(digest(value))}
    words = value.view(torch.int16)
    for i in range(0, value.numel(), 7):
        words.view(-1)[i] += 1
        found.add(int(digest(value)))
    assert len(found) == 1 + len(range(0, value.numel(), 7))
