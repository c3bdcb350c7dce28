"""Count valid rows, and sequences with at least one valid row, in one kernel launch. If a loss call
is a whole step, these counts are its denominators.

    labels, mask, sequences  ->  row_counts  ->  num_tokens, num_sequences on the device

Each Triton program counts the valid rows of a few sequences (or of a few blocks of rows, if
sequences are not counted). One atomic add to a 64-bit word adds the count (low bits) and the number
of finished programs (high bits). The last program reads the sum there. No program waits, and
integer sums are equal in any order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from forgedsl_runtime.losses.batch import Rows
from forgedsl_runtime.losses.kernels import (
    INTERPRETED_BLOCK,
    Kernels,
    can_overlap,
    num_processors,
    overlap_option,
)

BLOCK, WARPS = 1024, 8
"""Rows of a sequence that a program reads per iteration. A program reads two sequences at a time,
which may be a preference pair."""
PROGRAMS = 4
"""largest number of programs per multiprocessor"""
ARRIVED = tl.constexpr(1 << 40)
"""Value that a program adds to count its arrival; the lower bits of the word are the sum."""


def row_counts(kernels: Kernels, rows: Rows, *, sequences: bool) -> dict[str, Tensor]:
    """Return the counts of these rows, in their dtype; counting `sequences` takes longer."""
    device, num_rows = rows.labels.device, rows.num_kept
    block = BLOCK if device.type == "cuda" else INTERPRETED_BLOCK
    count, length, starts = -(-num_rows // block), block, None
    if sequences:
        count, length = rows.num_sequences, rows.seq_len
        starts = None if length else rows.starts
    programs = max(1, min(-(-count // 2), PROGRAMS * num_processors(device)))
    # each count has a row of its own, of at least 16 bytes, so that both are aligned for kernels
    found = torch.empty((2, 4), dtype=rows.dtype, device=device)
    words = kernels.counter(device, "counted", 2, dtype=torch.int64)
    overlap = can_overlap(device)
    _count[(programs,)](
        found, words, rows.labels, rows.mask, starts, rows.ignore_index, num_rows, count, length,
        SEQUENCES=sequences, PAIRED=rows.paired, BLOCK=block, OVERLAP=overlap, num_warps=WARPS,
        **overlap_option(overlap),
    )  # fmt: skip
    names = ("num_tokens", "num_sequences") if sequences else ("num_tokens",)
    return {name: found[number, 0] for number, name in enumerate(names)}


@triton.jit(do_not_specialize=["ignore_index", "num_rows", "num_sequences", "seq_len"])
def _count(
    found, words, labels, mask, starts, ignore_index, num_rows, num_sequences, seq_len,
    SEQUENCES: tl.constexpr, PAIRED: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        gdc_wait()  # the preceding kernel may still run: touch no memory before this line
        gdc_launch_dependents()
    first = tl.program_id(0) * 2
    tokens = tl.full([2], 0, tl.int32)
    present = tl.full([2], 0, tl.int32)
    seen = first * 0
    while (first < num_sequences) & (seen < num_rows):  # sequences after the last row are empty
        seqs = first + tl.arange(0, 2)
        if starts is None:
            start = seqs * seq_len
            end = tl.minimum(start + seq_len, num_rows)
        else:
            start = tl.load(starts + seqs, mask=seqs < num_sequences, other=0)
            end = tl.load(starts + seqs + 1, mask=seqs < num_sequences, other=0)
        each = tl.full([2, BLOCK], 0, tl.int32)
        for turn in range(0, tl.max(end - start, 0), BLOCK):
            rows = (start + turn)[:, None] + tl.arange(0, BLOCK)[None, :]
            here = rows < end[:, None]
            counts = tl.load(labels + rows, mask=here, other=ignore_index) != ignore_index
            if mask is not None:
                counts &= tl.load(mask + rows, mask=here, other=0).to(tl.int1)
            each += counts.to(tl.int32)
        in_each = tl.sum(each, 1)
        tokens += in_each
        present += tl.minimum(tl.min(in_each, 0) if PAIRED else in_each, 1)
        seen = tl.max(end, 0)
        first += 2 * tl.num_programs(0)
    _add(words, found, tl.sum(tokens, 0))
    if SEQUENCES:
        _add(words + 1, found + 4, tl.sum(present, 0))


@triton.jit
def _add(word, result, count):
    """Add a program's count; the last program stores the sum and resets the word to zero."""
    before = tl.atomic_add(word, count.to(tl.int64) + ARRIVED, sem="relaxed")
    if before // ARRIVED == tl.num_programs(0) - 1:
        tl.store(result, (before % ARRIVED + count).to(result.dtype.element_ty))
        tl.store(word, 0)
