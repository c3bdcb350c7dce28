"""Digests of weights. Equal bits give equal digests, for any split of a tensor and any order of
summation.

    tensor [rows, columns] --> sum over all elements of row[r] * column[c] * bits[r, c], modulo 2^64

`row` and `column` are odd pseudo-random numbers of 64 bits that depend on the index alone. So the
digest of a tensor is the sum of the digests of its parts: rows or columns that ranks hold, slices
of a fused tensor. Two different tensors with elements of at most 32 bits have equal digests with a
probability below 2^-31, if their difference does not depend on the pseudo-random numbers. This is
true of errors in a transfer (multilinear hashing, Carter and Wegman 1979).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

ROWS, COLUMNS = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03
"""seeds of the two kinds of factors"""
CHUNK = 1 << 20
"""number of elements that a CPU widens to 64 bits at once: these 8 MiB stay in its cache. A GPU
widens them on chip (`digest_kernel`)"""
GROUP_BYTES = 1 << 27
"""size of the tensors that share a kernel launch on a GPU; as much may have to stay in memory until
then"""
WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Digests:
    """Digests of tensors, read back at once. On a GPU they are computed in groups, by one kernel
    launch each. A tensor may be freed after `add`, but not overwritten before `read`."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Tensor, int, int]] = []
        self._waiting_bytes = 0
        self._found: list[Tensor] = []

    def add(self, value: Tensor, row: int = 0, column: int = 0) -> None:
        """Add a part of a tensor; the arguments are those of `digest`."""
        if value.device.type == "cpu":
            self._found.append(digest(value, row, column)[None])
            return
        self._waiting.append((value, row, column))
        self._waiting_bytes += value.nbytes
        if self._waiting_bytes > GROUP_BYTES:
            self._launch()

    def add_found(self, value: Tensor) -> None:
        """Add a digest that is already computed, int64 []."""
        self._launch()
        self._found.append(value[None])

    def read(self) -> list[int]:
        """Return the digests modulo 2^64, in the order in which they were added; wait for the
        device once."""
        self._launch()
        found: list[int] = torch.cat(self._found).tolist() if self._found else []
        return [unsigned(value) for value in found]

    def _launch(self) -> None:
        if self._waiting:
            self._found.append(_digests_on_gpu(self._waiting))
            self._waiting, self._waiting_bytes = [], 0


def digest(value: Tensor, row: int = 0, column: int = 0) -> Tensor:
    """Return the digest of a part of a tensor, int64 [], on the tensor's device.

    value: any dtype; [rows, ...], whose dimensions after the first are flattened, or [rows]. `row`
    and `column` are the place of the part's first element in the whole tensor.
    """
    if value.device.type != "cpu":
        return _digests_on_gpu([(value, row, column)])[0]
    bits = _bits(value)
    rows, columns = bits.shape
    by_column = factors(COLUMNS, column, columns, value.device)
    by_row = factors(ROWS, row, rows, value.device)
    found = torch.zeros((), dtype=torch.int64)
    step = max(1, CHUNK // columns)
    for start in range(0, rows, step):
        part = torch.mv(bits[start : start + step].to(torch.int64), by_column)
        found += torch.dot(part, by_row[start : start + step])
    return found


def _digests_on_gpu(parts: Sequence[tuple[Tensor, int, int]]) -> Tensor:
    """Return the digests of parts of tensors with their rows and columns, int64 [parts]."""
    from forgedsl_runtime.proofs.digest_kernel import Matrix, digest_matrices

    matrices = []
    for value, row, column in parts:
        bits = _bits(value)
        by_row = factors(ROWS, row, bits.shape[0], bits.device)
        matrices.append(Matrix(bits, by_row, factors(COLUMNS, column, bits.shape[1], bits.device)))
    return digest_matrices(matrices)


def _bits(value: Tensor) -> Tensor:
    """View a tensor as signed integers, [rows, columns]."""
    return value.detach().reshape(len(value), -1).view(WORDS[value.element_size()])


@lru_cache(maxsize=256)
def factors(seed: int, start: int, count: int, device: torch.device) -> Tensor:
    """Return odd factors for `count` consecutive indices, int64 [count]: splitmix64 of seed and
    index."""
    index = torch.arange(start, start + count, dtype=torch.int64, device=device)
    mixed = (index + 1) * _signed(seed)
    mixed = (mixed ^ _shifted(mixed, 30)) * _signed(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ _shifted(mixed, 27)) * _signed(0x94D049BB133111EB)
    return (mixed ^ _shifted(mixed, 31)) | 1


def unsigned(found: int) -> int:
    """Return a sum of digests modulo 2^64."""
    return found % 2**64


def _shifted(value: Tensor, by: int) -> Tensor:
    """Shift right logically: fill with zeros, not with the sign bit."""
    return (value >> by) & ((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    """Reinterpret an unsigned 64-bit number as int64."""
    return number - 2**64 if number >= 2**63 else number
