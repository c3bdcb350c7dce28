"""Decode attention on a GPU: KV cache pages shared by siblings are read once.

    queries [B, H, D], keys and values of the new tokens, pages of the others, lengths [B]
        --> outputs [B, H, D]; the pages also hold the new tokens

Completions of one prompt share its pages, and a decode step is bound by the bytes of keys and
values. vLLM's kernels read a shared page once for each request. Here rows whose page tables begin
with the same pages are grouped, on the GPU, in each step. One program reads the shared pages for
all rows of a group, others read each row's own pages, and a last one joins the parts (split
softmax, arXiv 1805.02867). The last one also writes the new token of its row to its page, and adds
it as a part of its own. Sharing is found from the page numbers, so it is correct for any requests.

An engine records a graph for each of some twenty numbers of rows. Triton compiles a kernel anew for
other constants, so in the large kernels what differs between these graphs is no constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

TILE = 16
"""number of rows of a matrix product on tensor cores. A product covers one KV head. It has one row
for each query head of that KV head and each request of a group (requests that share KV pages)"""
CHUNK = 512
"""least number of tokens of a part. If there are too few rows to fill the GPU, parts may have half
of that"""
PROGRAMS = 2048
"""target number of programs: 132 multiprocessors hold about 700 at a time"""
MOST_PARTS = 32
WORTH = 64
"""least number of shared tokens for which a group gets a program"""
FEW_ROWS = 128
"""up to this many rows are grouped by one kernel"""


@triton.jit
def _full_pages(length, PAGE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return how many pages are full without the newest token, which may not be written yet."""
    return tl.maximum(length - 1, 0) // PAGE


@triton.jit(do_not_specialize=["rows"])
def _group_rows(  # type: ignore[no-untyped-def]
    table, stride, lengths, members, first_rows, common, rows,
    PAGE: tl.constexpr, ROWS: tl.constexpr, MEMBERS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """For batch row i, find all rows whose page table begins with the same page. Put them into
    groups of at most MEMBERS rows. Also count the tokens in the pages that row i shares with the
    first of these rows."""
    i = tl.program_id(0)
    at = tl.arange(0, ROWS)
    slot = tl.arange(0, MEMBERS)
    if i >= rows:  # a captured graph may have more rows than the batch
        tl.store(first_rows + i, i)
        tl.store(common + i, 0)
        tl.store(members + i * MEMBERS + slot, tl.where(slot == 0, i, -1))
        return
    key = tl.load(table + i.to(tl.int64) * stride)
    keys = tl.load(table + at.to(tl.int64) * stride, mask=at < rows, other=-1)
    full = _full_pages(tl.load(lengths + at, mask=at < rows, other=0), PAGE)
    pages = _full_pages(tl.load(lengths + i), PAGE)
    same_page = ((keys == key) & (full > 0) & (pages > 0)) | (at == i)
    before = tl.cumsum(same_page.to(tl.int32), 0) - 1
    rank = tl.sum(tl.where(at == i, before, 0), 0)
    size = tl.sum(same_page.to(tl.int32), 0)
    group_start = rank // MEMBERS * MEMBERS
    first_row = tl.min(tl.where(same_page & (before == group_start), at, ROWS), 0)
    leader = tl.min(tl.where(same_page, at, ROWS), 0)
    pages = tl.minimum(pages, _full_pages(tl.load(lengths + leader), PAGE))
    same = 0
    open_ = pages > 0
    while open_:
        column = same + tl.arange(0, STEP)
        mine = tl.load(table + i.to(tl.int64) * stride + column, mask=column < pages, other=-1)
        first = table + leader.to(tl.int64) * stride + column
        theirs = tl.load(first, mask=column < pages, other=-2)
        differs = tl.min(tl.where(mine == theirs, STEP, tl.arange(0, STEP)), 0)
        same += differs
        open_ = differs == STEP
    tl.store(common + i, tl.where(size > 1, same * PAGE, 0))
    tl.store(first_rows + i, first_row)
    tl.store(members + first_row * MEMBERS + rank - group_start, i)
    tl.store(members + i * MEMBERS + slot, -1, mask=(first_row == i) & (slot >= size - rank))


@triton.jit
def _own_starts(  # type: ignore[no-untyped-def]
    members, first_rows, common, starts, shared_first_rows,
    ROWS: tl.constexpr, MEMBERS: tl.constexpr, WORTH: tl.constexpr,
):  # fmt: skip
    """Compute the token index at which a row's own (not shared) part starts. List the first rows of
    all groups that have several; -1 stands after the last of them."""
    i = tl.program_id(0)
    at = tl.arange(0, ROWS)
    inside = at < tl.num_programs(0)
    several = tl.load(first_rows + at, mask=inside, other=-1) == at
    if MEMBERS > 1:
        several &= tl.load(members + at * MEMBERS + 1, mask=inside, other=-1) >= 0
    else:
        several &= at < 0
    count = tl.sum(several.to(tl.int32), 0)
    place = tl.sum((several & (at < i)).to(tl.int32), 0)
    tl.store(shared_first_rows + place, i, mask=tl.sum((several & (at == i)).to(tl.int32), 0) > 0)
    tl.store(shared_first_rows + i, -1, mask=i >= count)
    first_row = tl.load(first_rows + i)
    member = tl.load(members + first_row * MEMBERS + tl.arange(0, MEMBERS))
    shared = tl.load(common + tl.maximum(member, 0))
    start = tl.min(tl.where(member >= 0, shared, 2147483647), 0)
    with_others = tl.sum((member >= 0).to(tl.int32), 0) > 1
    tl.store(starts + i, tl.where(with_others & (start >= WORTH), start, 0))


@triton.jit
def _num_parts(length, chunk, most):  # type: ignore[no-untyped-def]
    return tl.minimum((length + chunk - 1) // chunk, most)


@triton.jit
def _unpack_fp8_pairs(x, FP8: tl.constexpr):  # type: ignore[no-untyped-def]
    """Split pairs of fp8 numbers in int16 into the first and the second ones, in fp16."""
    if FP8:
        first = x.to(tl.int8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
        return first, (x >> 8).to(tl.int8).to(tl.float8e4nv, bitcast=True).to(tl.float16)
    else:  # noqa: RET505  (Triton does not compile the other branch)
        return x, x


@triton.jit
def _attend_range(  # type: ignore[no-untyped-def]
    q, q1, pages, cache, c_page, c_token, low, high, scale,
    W: tl.constexpr, PAGE: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
    FP8: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return largest score, sum and weighted values of the tokens from low to high, for each row of
    q.

    fp8 is loaded as W pairs along the head dimension. Tensor cores need their operands in a certain
    register order, and the instruction that loads this order moves units of 16 bits: two fp8
    numbers. Scores are q times the first numbers of the pairs plus q1 times the second ones.
    Weighted values of the first numbers are in `side`, those of the second ones in `side1`.
    """
    top = tl.full([TILE], float("-inf"), tl.float32)
    total = tl.zeros([TILE], tl.float32)
    side = tl.zeros([TILE, W], tl.float32)
    side1 = tl.zeros([TILE, W if FP8 else 1], tl.float32)
    w = tl.arange(0, W)
    token = low + tl.arange(0, BLOCK)
    page = tl.load(pages + token // PAGE, mask=token < high, other=0).to(tl.int64)
    for n in tl.range(low, high, BLOCK, num_stages=STAGES):
        token = n + tl.arange(0, BLOCK)
        inside = token < high
        place = cache + page * c_page + (token % PAGE) * c_token
        k, k1 = _unpack_fp8_pairs(
            tl.load(place[:, None] + w[None, :], mask=inside[:, None], other=0), FP8
        )
        v = tl.load(place[:, None] + W + w[None, :], mask=inside[:, None], other=0)
        s = tl.dot(q, tl.trans(k))
        if FP8:
            s = tl.dot(q1, tl.trans(k1), s)
        s = tl.where(inside[None, :], s * scale, float("-inf"))
        above = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - above[:, None])
        fade = tl.exp2(top - above)
        total = total * fade + tl.sum(p, 1)
        v, v1 = _unpack_fp8_pairs(v, FP8)
        side = tl.dot(p.to(v.dtype), v, side * fade[:, None])
        if FP8:
            side1 = tl.dot(p.to(v.dtype), v1, side1 * fade[:, None])
        top = above
        token += BLOCK
        page = tl.load(pages + token // PAGE, mask=token < high, other=0).to(tl.int64)
    return top, total, side, side1


@triton.jit
def _assignment(shared_first_rows, most_groups, shared_parts):  # type: ignore[no-untyped-def]
    """Return the row of a program, its piece of the tokens, and whether they are those that a group
    shares. There are at most half as many groups of several rows (`most_groups`) as rows, so the
    programs for all rows at one place of the grid's third axis cover two pieces of each group."""
    row, level = tl.program_id(1), tl.program_id(2)
    levels = (shared_parts + 1) // 2
    shared = level < levels
    second = row >= most_groups
    group = tl.where(second, row - most_groups, row)
    piece = tl.where(shared, 2 * level + second.to(tl.int32), level - levels)
    exists = (group < most_groups) | (level >= levels)
    row = tl.where(shared, tl.load(shared_first_rows + group, mask=shared, other=0), row)
    exists &= row >= 0
    return tl.maximum(row, 0), piece, shared, exists


@triton.jit(do_not_specialize=["chunk", "shared_parts", "own_parts", "most_groups", "new"])
def _attend(  # type: ignore[no-untyped-def]
    queries, q_row, q_head, cache, c_page, c_head, c_token, table, t_row, lengths,
    members, shared_first_rows, starts, tops, sums, sides, scale, chunk, shared_parts, own_parts,
    most_groups, new,
    G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, MEMBERS: tl.constexpr,
    TILE: tl.constexpr, BLOCK: tl.constexpr, FP8: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Attend to a part of the shared tokens of a group, or of the own tokens of a row."""
    head, heads = tl.program_id(0), tl.num_programs(0)
    row, piece, shared, exists = _assignment(shared_first_rows, most_groups, shared_parts)
    start = tl.load(starts + row)
    length = tl.load(lengths + row) - new
    first = tl.where(shared, 0, start)
    last = tl.where(shared, start, length)
    most = tl.where(shared, shared_parts, own_parts)
    part = tl.where(shared, piece, shared_parts + piece)
    count = tl.where(exists, _num_parts(last - first, chunk, most), 0)
    if piece < count:
        width = ((last - first + count - 1) // count + BLOCK - 1) // BLOCK * BLOCK
        low = first + piece * width
        high = tl.minimum(low + width, last)
        r = tl.arange(0, TILE)
        member, g = r // GP, r % GP
        known = shared & (member < MEMBERS)
        grouped = tl.load(members + row * MEMBERS + member, mask=known, other=-1)
        who = tl.where(shared, grouped, tl.where(member == 0, row, -1))
        valid = (who >= 0) & (g < G)
        who = tl.maximum(who, 0).to(tl.int64)
        step: tl.constexpr = 2 if FP8 else 1
        d = step * tl.arange(0, D // step)
        at = queries + who[:, None] * q_row + (head * G + g)[:, None] * q_head + d[None, :]
        q = tl.load(at, mask=valid[:, None], other=0.0)
        q1 = q
        if FP8:
            q = q.to(tl.float16)
            q1 = tl.load(at + 1, mask=valid[:, None], other=0.0).to(tl.float16)
        top, total, side, side1 = _attend_range(
            q, q1, table + row.to(tl.int64) * t_row, cache + head * c_head, c_page, c_token,
            low, high, scale, D // step, PAGE, TILE, BLOCK, FP8, STAGES,
        )  # fmt: skip
        spot = ((who * heads + head) * G + g) * (shared_parts + own_parts) + part
        tl.store(tops + spot, top, mask=valid)
        tl.store(sums + spot, total, mask=valid)
        tl.store(sides + spot[:, None] * D + d[None, :], side, mask=valid[:, None])
        if FP8:
            tl.store(sides + spot[:, None] * D + d[None, :] + 1, side1, mask=valid[:, None])


@triton.jit  # with numbers in place of these constants it needs more registers
def _merge_parts(  # type: ignore[no-untyped-def]
    tops, sums, sides, lengths, starts, out, o_row, o_head, value_scale,
    queries, q_row, q_head, keys, k_row, k_head, values, v_row, v_head, scale, key_divisor,
    value_divisor, cache, c_page, c_head, c_token, slots,
    G: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, CHUNK: tl.constexpr,
    SHARED: tl.constexpr, OWN: tl.constexpr, PARTS: tl.constexpr, FP8: tl.constexpr,
    NEW: tl.constexpr,
):  # fmt: skip
    """Join the parts of a query head of a row. With NEW, also write the newest token of the row to
    its slot, and add it."""
    row, head = tl.program_id(0), tl.program_id(1)
    start, length = tl.load(starts + row), tl.load(lengths + row)
    old = length - 1 if NEW else length
    part = tl.arange(0, PARTS)
    there = part < _num_parts(start, CHUNK, SHARED)
    own = part - SHARED
    there = tl.where(part < SHARED, there, own < _num_parts(old - start, CHUNK, OWN))
    d = tl.arange(0, D)
    spot = (row * tl.num_programs(1) + head) * (SHARED + OWN) + part
    top = tl.load(tops + spot, mask=there, other=float("-inf"))
    best = tl.max(top, 0)
    if NEW:
        kv_head = head // G
        key = tl.load(keys + row.to(tl.int64) * k_row + kv_head * k_head + d).to(tl.float32)
        value = tl.load(values + row.to(tl.int64) * v_row + kv_head * v_head + d).to(tl.float32)
        query = tl.load(queries + row.to(tl.int64) * q_row + head * q_head + d).to(tl.float32)
        slot = tl.load(slots + row)
        place = cache + slot // PAGE * c_page + kv_head * c_head + slot % PAGE * c_token + d
        writes = (head % G == 0) & (slot >= 0)
        if FP8:
            key = (key / key_divisor).to(tl.float8e4nv)
            value = (value / value_divisor).to(tl.float8e4nv)
            tl.store(place, key.to(tl.int8, bitcast=True), mask=writes)
            tl.store(place + D, value.to(tl.int8, bitcast=True), mask=writes)
            key, value = key.to(tl.float32), value.to(tl.float32)
        else:
            tl.store(place, key, mask=writes)
            tl.store(place + D, value, mask=writes)
        score = tl.sum(query * key, 0) * scale
        best = tl.maximum(best, score)
    weight = tl.where(there, tl.exp2(top - best), 0.0)
    total = tl.sum(tl.load(sums + spot, mask=there, other=0.0) * weight, 0)
    side = tl.load(sides + spot[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
    found = tl.sum(side * weight[:, None], 0)
    if NEW:
        new_weight = tl.exp2(score - best)
        total += new_weight
        found += new_weight * value
    found *= value_scale / total
    tl.store(out + row.to(tl.int64) * o_row + head * o_head + d, found, mask=length > 0)


class SharedPageGroups:
    """Groups of batch rows that share pages, in tensors with fixed addresses for CUDA graphs.

    Args:
        rows: largest number of rows of a batch.
        group: query heads per KV head.
        device: device of the pages.
    """

    def __init__(self, rows: int, group: int, device: torch.device):
        self.group = group
        self.padded = triton.next_power_of_2(group)
        self.max_members = max(1, TILE // self.padded)
        self._rows = rows
        self.members = torch.full((rows, self.max_members), -1, dtype=torch.int32, device=device)
        self.first_rows = torch.arange(rows, dtype=torch.int32, device=device)
        self.common = torch.zeros(rows, dtype=torch.int32, device=device)
        self.starts = torch.zeros(rows, dtype=torch.int32, device=device)
        self.shared_first_rows = torch.full((rows,), -1, dtype=torch.int32, device=device)

    def form(self, table: torch.Tensor, lengths: torch.Tensor, page: int) -> None:
        """Group the rows of a page table [B, pages] with these lengths [B], int32."""
        rows = lengths.shape[0]
        most = self._rows if rows > FEW_ROWS else min(FEW_ROWS, self._rows)
        padded = max(16, triton.next_power_of_2(most))
        launch(
            _group_rows, (self._rows,), table, table.stride(0), lengths, self.members,
            self.first_rows, self.common, rows,
            PAGE=page, ROWS=padded, MEMBERS=self.max_members, STEP=64,
        )  # fmt: skip
        launch(
            _own_starts, (self._rows,), self.members, self.first_rows, self.common, self.starts,
            self.shared_first_rows,
            ROWS=padded, MEMBERS=self.max_members, WORTH=WORTH, num_warps=1,
        )  # fmt: skip


def launch(kernel: Any, grid: tuple[int, ...], *given: Any, **named: Any) -> None:
    """Launch a kernel. If its first tensor is on the meta device, compile it, and do not launch."""
    if given[0].is_meta:
        kernel.warmup(*given, grid=grid, **named)
    else:
        kernel[grid](*given, **named)


def _chosen(programs: int) -> dict[str, int]:
    """Return the settings that were fastest on an H200: the shape of a program, and the number of
    parts that a row is cut into (more if there are few rows)."""
    own = min(MOST_PARTS, max(2, triton.cdiv(PROGRAMS, programs)))
    return {
        "block": 64, "stages": 2, "warps": 4, "chunk": CHUNK if own == 2 else CHUNK // 2,
        "own_parts": own, "shared_parts": min(MOST_PARTS, 2 * own),
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class NewTokens:
    """Keys and values of the newest token of each row, which are not in the pages yet.

    Args:
        keys, values: [B, KV heads, D].
        slots: where they are written: page * tokens of a page + token, int64 [B]. A token with a
            negative slot is not written.
        key_divisor, value_divisor: they are divided by these before they are rounded to fp8.
    """

    keys: torch.Tensor
    values: torch.Tensor
    slots: torch.Tensor
    key_divisor: float = 1.0
    value_divisor: float = 1.0


def decode(
    queries: torch.Tensor,
    cache: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    out: torch.Tensor,
    groups: SharedPageGroups,
    scale: float,
    value_scale: float = 1.0,
    new: NewTokens | None = None,
    **how: int,
) -> None:
    """Compute softmax(scale * q k^T) v, one query a row. On the meta device, only compile kernels.

    Args:
        queries: [B, H, D], bf16, fp16 or fp8 (e4m3).
        cache: [pages, heads, page, 2 * D]: keys, then values, of each token, in the dtype of the
            queries or fp8.
        table: [B, pages of a row], int32.
        lengths: tokens of each row including the new one, int32 [B].
        out: [B, H, D].
        groups: formed from this table and these lengths.
        scale: factor of the scores, including the scales of quantized queries and keys.
        value_scale: scale of quantized values.
        new: the newest tokens, which are written to the cache; None if they are in it already.
        **how: replaces settings of `_chosen`: block (tokens at a time), stages, warps, chunk,
            own_parts, shared_parts.
    """
    rows, heads, size = queries.shape
    _, kv_heads, page, _ = cache.shape
    fp8 = cache.dtype.itemsize == 1
    pairs = cache.view(torch.int16) if fp8 else cache  # see _attend_range
    chosen = _chosen(rows * kv_heads) | how
    shared_parts, own_parts, chunk = (chosen[k] for k in ("shared_parts", "own_parts", "chunk"))
    parts = shared_parts + own_parts
    most_groups = max(1, rows // 2)  # of several rows
    scale *= math.log2(math.e)
    bounds = torch.empty((2, rows, heads, parts), dtype=torch.float32, device=queries.device)
    sides = torch.empty((rows, heads, parts, size), dtype=torch.float32, device=queries.device)
    launch(
        _attend, (kv_heads, rows, (shared_parts + 1) // 2 + own_parts),
        queries, queries.stride(0), queries.stride(1), pairs, pairs.stride(0), pairs.stride(1),
        pairs.stride(2), table, table.stride(0), lengths,
        groups.members, groups.shared_first_rows, groups.starts, bounds[0], bounds[1], sides,
        scale, chunk, shared_parts, own_parts, most_groups, int(new is not None),
        G=groups.group, GP=groups.padded, D=size, PAGE=page, MEMBERS=groups.max_members,
        TILE=max(TILE, groups.padded), BLOCK=chosen["block"], FP8=fp8, STAGES=chosen["stages"],
        num_warps=chosen["warps"],
    )  # fmt: skip
    _merge(queries, cache, lengths, out, groups, scale, value_scale, new, (*bounds, sides), chosen)


def _merge(
    queries: torch.Tensor,
    cache: torch.Tensor,
    lengths: torch.Tensor,
    out: torch.Tensor,
    groups: SharedPageGroups,
    scale: float,
    value_scale: float,
    new: NewTokens | None,
    parts: tuple[torch.Tensor, ...],
    chosen: dict[str, int],
) -> None:
    """Join the parts (largest scores, sums and weighted values). The arguments are those of
    `decode`, but `scale` has a factor of log2(e)."""
    rows, heads, size = queries.shape
    fp8 = cache.dtype.itemsize == 1
    cells = cache.view(torch.int8) if fp8 else cache
    given = new or NewTokens(queries, queries, lengths)  # not read without new tokens
    shared_parts, own_parts = chosen["shared_parts"], chosen["own_parts"]
    launch(
        _merge_parts, (rows, heads), *parts, lengths, groups.starts,
        out, out.stride(0), out.stride(1), value_scale,
        queries, queries.stride(0), queries.stride(1),
        given.keys, given.keys.stride(0), given.keys.stride(1),
        given.values, given.values.stride(0), given.values.stride(1),
        scale, given.key_divisor, given.value_divisor,
        cells, cells.stride(0), cells.stride(1), cells.stride(2), given.slots,
        G=groups.group, D=size, PAGE=cache.shape[2], CHUNK=chosen["chunk"],
        SHARED=shared_parts, OWN=own_parts,
        PARTS=triton.next_power_of_2(shared_parts + own_parts), FP8=fp8, NEW=new is not None,
        num_warps=2,
    )  # fmt: skip
