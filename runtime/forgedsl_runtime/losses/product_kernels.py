"""Triton kernels of a linear loss whose logits stay on chip: the same for every loss.

    label_logits   hidden, weight            ->  the logit of each label
    product        hidden @ weight.T, a tile of logits z at a time. Its output, by MODE:
                   "sums"      per tile, the partial sums of the statistics of the rows
                   "weights"   the sums, and 2 ** (z - reference), rounded to bfloat16
                   "gradient"  d loss / d logits
                   "largest"   per tile, the largest logit of each row
    gather         partial sums              ->  the statistics of the rows
    rebase         the largest logits        ->  references of rows whose label is too far below
    factors        gradients of statistics   ->  slope, bend, floor: the numbers of a row that give
                                                 d loss / d logits; and its value at the label
    at_labels      values of `factors`       ->  the entries of `out` at the labels
    apply_weights  weights                   ->  d loss / d logits, for losses whose gradient is not
                                                 just the weights times a factor per row

Logits are in units of log 2 (z / T times log2(e)), so that every exponential is one exp2. Sums are
taken around the logit of the label; a row whose label lies too far below the others is `far`: its
sums are taken again around its largest logit. The launches for this return at once if no row is
`far`.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG_2 = tl.constexpr(0.6931471805599453)
NOTHING = tl.constexpr(-1e4)
LARGE = tl.constexpr(1e15)
"""Rows with larger sums are `far`: their weights times a factor could overflow bfloat16."""
FAST = tl.constexpr(not triton.knobs.runtime.interpret)


@triton.jit
def exp2(x):
    """Compute 2 ** x in one instruction, flushing subnormal results; keeping them takes four."""
    if FAST and x.dtype == tl.float32:
        code: tl.constexpr = "ex2.approx.ftz.f32 $0, $1;"
        return tl.inline_asm_elementwise(code, "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return tl.exp2(x)


@triton.jit
def log2(x):
    """Compute log2 in one instruction; minus infinity for subnormal numbers."""
    if FAST and x.dtype == tl.float32:
        code: tl.constexpr = "lg2.approx.ftz.f32 $0, $1;"
        return tl.inline_asm_elementwise(code, "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return tl.log2(x)


@triton.jit(do_not_specialize=["num_rows"])
def label_logits(
    hidden, weight, labels, valid, label_logit, reference, far, scale, num_rows, hidden_stride,
    weight_stride,
    V: tl.constexpr, H: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Compute the logit of each row's label, which is its first reference. It is 0 for an invalid
    row, and NaN if the label is outside of the vocabulary."""
    unit = tl.load(scale)
    for row in tl.range(tl.program_id(0), num_rows, tl.num_programs(0)):
        counts = tl.load(valid + row).to(tl.int1)
        label = tl.where(counts, tl.load(labels + row), 0).to(tl.int64)
        inside = (label >= 0) & (label < V)
        x = hidden + tl.cast(row, tl.int64) * hidden_stride
        w = weight + label * weight_stride
        products = tl.full([BLOCK], 0.0, ACC)
        for first in tl.range(0, H, BLOCK):
            at = first + tl.arange(0, BLOCK)
            here = (at < H) & counts & inside
            left = tl.load(x + at, here, 0.0).to(ACC)
            products += left * tl.load(w + at, here, 0.0).to(ACC)
        z = tl.where(inside, tl.sum(products, 0) * unit, float("nan"))
        tl.store(label_logit + row, z)
        tl.store(reference + row, z)
    if tl.program_id(0) == 0:
        tl.store(far, 0)


@triton.jit
def piece(
    out, logits, row, column, reference, slope, bend, floor, total, tilt, level, unit,
    num_columns,
    WIDTH: tl.constexpr, TAIL: tl.constexpr, MODE: tl.constexpr, MEAN: tl.constexpr,
    TILTED: tl.constexpr, LEVEL: tl.constexpr,
):  # fmt: skip
    """Process some columns of a tile by MODE: `largest` updates the maximum of each row, `sums` and
    `weights` add to the sums of the rows, and `weights` and `gradient` store their values in
    `out`."""
    z = logits * unit
    here = (column + tl.arange(0, WIDTH) < num_columns)[None, :]
    if MODE == "largest":
        if TAIL:
            z = tl.where(here, z, -1e30)
        largest = tl.max(z, 1)
        total = tl.maximum(total, largest, propagate_nan=tl.PropagateNan.ALL)
        return total, tilt, level
    d = z - reference[:, None]  # finite or NaN, since no logit is minus infinity
    if MODE == "gradient":
        w = exp2(d)
        dz = w * (slope[:, None] + bend[:, None] * d) if TILTED else w * slope[:, None]
        if LEVEL:
            dz += floor[:, None]
        out.store([row, column], dz.to(out.dtype))
        return total, tilt, level
    if TAIL:
        d = tl.where(here, d, NOTHING)
    w = exp2(d)
    if MODE == "weights":
        out.store([row, column], w.to(out.dtype))
    total += tl.sum(w, 1)
    tilt += tl.sum(w * d, 1)
    if MEAN:
        if TAIL:
            z = tl.where(here, z, 0.0)
        level += tl.sum(z, 1)
    return total, tilt, level


@triton.jit
def tile_of(
    hidden, weight, out, sums, reference_ptr, slope_ptr, bend_ptr, floor_ptr, unit, m, n, num_rows,
    num_columns, num_parts,
    H: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    TAIL: tl.constexpr, MODE: tl.constexpr, MEAN: tl.constexpr, TILTED: tl.constexpr,
    LEVEL: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Compute one tile of logits, then process its halves: the second is processed while the first
    is stored."""
    acc = tl.zeros((ROWS, COLUMNS), ACC)
    for k in range(0, H, DEPTH):
        a = hidden.load([m * ROWS, k])
        b = weight.load([n * COLUMNS, k])
        if not FAST:  # the interpreter cannot multiply bfloat16
            a = a.to(ACC)
            b = b.to(ACC)
        acc = tl.dot(a, b.T, acc, out_dtype=ACC)
    HALF: tl.constexpr = COLUMNS // 2
    left, right = acc.reshape((ROWS, 2, HALF)).permute((0, 2, 1)).split()
    rows = m * ROWS + tl.arange(0, ROWS)
    inside = rows < num_rows
    reference = tl.load(reference_ptr + rows, inside, 0.0)
    slope = reference
    bend = reference
    floor = reference
    if MODE == "gradient":
        slope = tl.load(slope_ptr + rows, inside, 0.0)
        if TILTED:
            bend = tl.load(bend_ptr + rows, inside, 0.0)
        if LEVEL:
            floor = tl.load(floor_ptr + rows, inside, 0.0)
    total = tl.full([ROWS], -1e30 if MODE == "largest" else 0.0, ACC)
    tilt = tl.full([ROWS], 0.0, ACC)
    level = tl.full([ROWS], 0.0, ACC)
    for half in tl.static_range(2):
        logits = left if half == 0 else right
        total, tilt, level = piece(
            out, logits, m * ROWS, n * COLUMNS + half * HALF, reference, slope, bend, floor,
            total, tilt, level, unit, num_columns,
            HALF, TAIL, MODE, MEAN, TILTED, LEVEL,
        )  # fmt: skip
    if MODE != "gradient":
        place = sums + n * num_rows + rows
        tl.store(place, total, inside)
        if MODE != "largest":
            tl.store(place + num_parts * num_rows, tilt, inside)
            if MEAN:
                tl.store(place + 2 * num_parts * num_rows, level, inside)


@triton.jit(do_not_specialize=["num_rows", "num_columns"])
def product(
    hidden, weight, out, sums, reference, slope_ptr, bend_ptr, floor_ptr, far, far_rows, scale,
    num_rows, num_columns,
    H: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    GROUP: tl.constexpr, TAIL: tl.constexpr, MODE: tl.constexpr, AGAIN: tl.constexpr,
    MEAN: tl.constexpr, TILTED: tl.constexpr, LEVEL: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Compute all tiles, in groups of GROUP tile rows, so that concurrent tiles read the same
    inputs. `AGAIN`: only tiles with a `far` row."""
    num_m = tl.cdiv(num_rows, ROWS)
    num_n = tl.cdiv(num_columns, COLUMNS)
    unit = tl.load(scale)  # log2(e) / T
    tiles = num_m * num_n
    if AGAIN:
        tiles = tl.where(tl.load(far) > 0, tiles, 0)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=not AGAIN):
        in_group = GROUP * num_n
        first_m = tile // in_group * GROUP
        height = tl.minimum(num_m - first_m, GROUP)
        m = first_m + tile % in_group % height
        n = tile % in_group // height
        wanted = True
        if AGAIN:
            rows = m * ROWS + tl.arange(0, ROWS)
            wanted = tl.max(tl.load(far_rows + rows, rows < num_rows, 0).to(tl.int32), 0) > 0
        if wanted:
            tile_of(
                hidden, weight, out, sums, reference, slope_ptr, bend_ptr, floor_ptr, unit, m, n,
                num_rows, num_columns, num_n,
                H, ROWS, COLUMNS, DEPTH, TAIL, MODE, MEAN, TILTED, LEVEL, ACC,
            )  # fmt: skip


@triton.jit(do_not_specialize=["num_rows", "num_parts"])
def gather(
    sums, label_logit, reference, valid, logprob_ptr, entropy_ptr, logsumexp_ptr, mean_logprob_ptr,
    far, far_rows, num_rows, num_parts,
    V: tl.constexpr, ROWS: tl.constexpr, PARTS: tl.constexpr, MEAN: tl.constexpr,
    AGAIN: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Compute the statistics of the rows from the parts of their sums; count the `far` rows."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < num_rows
    if AGAIN:
        inside &= tl.load(far) > 0
    total_P = tl.full([PARTS, ROWS], 0.0, ACC)
    tilt_P = tl.full([PARTS, ROWS], 0.0, ACC)
    level_P = tl.full([PARTS, ROWS], 0.0, ACC)
    for first in range(0, num_parts, PARTS):
        parts = first + tl.arange(0, PARTS)
        here = (parts < num_parts)[:, None] & inside[None, :]
        place = sums + parts[:, None] * num_rows + rows[None, :]
        total_P += tl.load(place, here, 0.0)
        tilt_P += tl.load(place + num_parts * num_rows, here, 0.0)
        if MEAN:
            level_P += tl.load(place + 2 * num_parts * num_rows, here, 0.0)
    total = tl.where(inside, tl.sum(total_P, 0), 1.0)
    tilt = tl.sum(tilt_P, 0)
    counts = tl.load(valid + rows, inside, 0).to(tl.int1)
    at = tl.load(reference + rows, inside, 0.0)
    z_label = tl.load(label_logit + rows, inside, 0.0)
    log_total = tl.log2(total)
    log_sum = at + log_total
    tl.store(logprob_ptr + rows, ((z_label - at) - log_total) * LOG_2, inside)
    tl.store(entropy_ptr + rows, (log_total - tilt / total) * LOG_2, inside)
    tl.store(logsumexp_ptr + rows, log_sum * LOG_2, inside)
    if MEAN:
        level = tl.sum(level_P, 0)
        tl.store(mean_logprob_ptr + rows, (level / V - log_sum) * LOG_2, inside)
    if not AGAIN:
        lost = counts & ~(total < LARGE)
        tl.store(far_rows + rows, lost, inside)
        count = tl.sum(lost.to(tl.int32), 0)
        if count > 0:
            tl.atomic_add(far, count)


@triton.jit(do_not_specialize=["num_rows", "num_parts"])
def rebase(
    sums, reference, far, far_rows, num_rows, num_parts,
    ROWS: tl.constexpr, PARTS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Set the reference of each `far` row to its largest logit."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (rows < num_rows) & (tl.load(far) > 0)
    lost = tl.load(far_rows + rows, inside, 0).to(tl.int1) & inside
    largest_P = tl.full([PARTS, ROWS], -1e30, ACC)
    for first in range(0, num_parts, PARTS):
        parts = first + tl.arange(0, PARTS)
        place = sums + parts[:, None] * num_rows + rows[None, :]
        here = (parts < num_parts)[:, None] & lost[None, :]
        found = tl.load(place, here, -1e30)
        largest_P = tl.maximum(largest_P, found, propagate_nan=tl.PropagateNan.ALL)
    largest = tl.max(largest_P, 0)
    tl.store(reference + rows, largest, lost)


@triton.jit
def slopes(
    rows, counts, entropy_ptr, d_logprob_ptr, d_entropy_ptr, d_logsumexp_ptr, d_mean_logprob_ptr,
    inverse, each, none,
    LOGPROB: tl.constexpr, ENTROPY: tl.constexpr, LOGSUMEXP: tl.constexpr, MEAN: tl.constexpr,
):  # fmt: skip
    """Return the factors of d loss / d z = p (slope + bend log2 p) + floor. At the label, `gain` is
    added."""
    slope = none
    bend = none
    floor = none
    gain = none
    if LOGPROB:
        gain = tl.load(d_logprob_ptr + rows, counts, 0.0) * inverse
        slope -= gain
    if ENTROPY:
        d_entropy = tl.load(d_entropy_ptr + rows, counts, 0.0) * inverse
        slope -= d_entropy * tl.load(entropy_ptr + rows, counts, 0.0)
        bend = -(d_entropy * LOG_2)
    if LOGSUMEXP:
        slope += tl.load(d_logsumexp_ptr + rows, counts, 0.0) * inverse
    if MEAN:
        d_mean = tl.load(d_mean_logprob_ptr + rows, counts, 0.0) * inverse
        slope -= d_mean
        floor = d_mean * each
    return slope, bend, floor, gain


@triton.jit(do_not_specialize=["num_rows"])
def factors(
    valid, label_logit, reference, logsumexp_ptr, entropy_ptr, d_logprob_ptr, d_entropy_ptr,
    d_logsumexp_ptr, d_mean_logprob_ptr, slope_ptr, bend_ptr, floor_ptr, at_label_ptr, scale,
    num_rows,
    LOGPROB: tl.constexpr, ENTROPY: tl.constexpr, LOGSUMEXP: tl.constexpr, MEAN: tl.constexpr,
    FORM: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Store the factors of each row (see `slopes`), and its value at the label; zeros for rows that
    do not count.

    FORM "factor": store in `slope` the number by which the weights of the row are multiplied, and
    the weight to put at the label.
    FORM "weights": store slope and bend for weights in place of probabilities.
    FORM "gradient": store slope and bend for probabilities, and set the reference to log2 of the
    sum, so that 2 ** (z - reference) is the probability.
    """
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < num_rows
    counts = tl.load(valid + rows, inside, 0).to(tl.int1)
    slope, bend, floor, gain = slopes(
        rows, counts, entropy_ptr, d_logprob_ptr, d_entropy_ptr, d_logsumexp_ptr,
        d_mean_logprob_ptr, tl.load(scale + 1), tl.load(scale + 2), tl.full([BLOCK], 0.0, ACC),
        LOGPROB, ENTROPY, LOGSUMEXP, MEAN,
    )  # fmt: skip
    log_sum = tl.load(logsumexp_ptr + rows, inside, 0.0) / LOG_2
    q_label = tl.load(label_logit + rows, counts, 0.0) - log_sum
    p_label = tl.exp2(q_label)
    at_label = p_label * (slope + bend * q_label) + floor + gain
    if FORM == "gradient":
        tl.store(reference + rows, tl.where(counts, log_sum, 0.0), inside)
    else:
        total = tl.exp2(log_sum - tl.load(reference + rows, inside, 0.0))
        slope = slope / total
        bend = bend / total
        if FORM == "factor":
            at_label = p_label * total - total
    tl.store(slope_ptr + rows, tl.where(counts, slope, 0.0), inside)
    tl.store(at_label_ptr + rows, tl.where(counts, at_label, 0.0), inside)
    if ENTROPY:
        tl.store(bend_ptr + rows, tl.where(counts, bend, 0.0), inside)
    if MEAN:
        tl.store(floor_ptr + rows, tl.where(counts, floor, 0.0), inside)


@triton.jit(do_not_specialize=["num_rows", "first_column", "num_columns"])
def at_labels(
    out, labels, valid, at_label_ptr, out_stride, first_column, num_columns, num_rows,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the entries that `factors` computed at the labels of valid rows, if the label is one
    of these columns."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    counts = tl.load(valid + rows, rows < num_rows, 0).to(tl.int1)
    column = tl.load(labels + rows, counts, -1) - first_column
    mine = counts & (column >= 0) & (column < num_columns)
    value = tl.load(at_label_ptr + rows, mine, 0.0)
    place = out + rows.to(tl.int64) * out_stride + column
    tl.store(place, value.to(out.dtype.element_ty), mine)


@triton.jit
def apply_weights(
    out, reference, logsumexp_ptr, slope_ptr, bend_ptr, floor_ptr, out_stride,
    V: tl.constexpr, BLOCK: tl.constexpr, TILTED: tl.constexpr, LEVEL: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """Overwrite the weights with the gradient of the logits: w (slope + bend log2 p) + floor."""
    num_blocks: tl.constexpr = (V + BLOCK - 1) // BLOCK
    row = tl.program_id(0) // num_blocks
    columns = tl.program_id(0) % num_blocks * BLOCK + tl.arange(0, BLOCK)
    place = out + tl.cast(row, tl.int64) * out_stride + columns
    w = tl.load(place, columns < V, 1.0).to(ACC)
    slope = tl.load(slope_ptr + row)
    dz = w * slope
    if TILTED:
        log_total = tl.load(logsumexp_ptr + row) / LOG_2 - tl.load(reference + row)
        q = tl.maximum(log2(w) - log_total, NOTHING, propagate_nan=tl.PropagateNan.ALL)
        dz = w * (slope + tl.load(bend_ptr + row) * q)
    if LEVEL:
        dz += tl.load(floor_ptr + row)
    tl.store(place, dz.to(out.dtype.element_ty), columns < V)
