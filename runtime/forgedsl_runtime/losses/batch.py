"""Packed rows: the input of a generated loss module.

    logits or hidden, labels, mask, seq_id, fields   ->  pack  ->  Rows

Inputs come padded (`[B, T]`, sequence fields `[B]`) or packed (`[N]` with `seq_id [N]`), pairs as
sequences 2p (chosen) and 2p + 1 (rejected). On a CPU rows whose mask is false are left out and cost
nothing. On a GPU their number is unknown without waiting for the device, so all rows stay, and
kernels skip rows by label and mask. No value of a masked row can reach the loss. Wrong shapes raise
ValueError; wrong dtypes, missing and unknown inputs raise TypeError.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
from torch import Tensor

from forgedsl.lower.job import LossField

ROW_STATISTICS = ("logprob", "entropy", "logsumexp", "mean_logprob")
IGNORE_INDEX = -100
NO_LABEL = -(2**31)
"""ignore_index that ignores no label."""


@dataclass(kw_only=True)
class Rows:
    """Rows of a batch. `index` holds the positions of the kept rows among all `num_rows` rows
    (None: all are kept). A row is valid if its label is not `ignore_index` and its `mask`, if
    given, is True. `seq_len` is 0 if rows are packed."""

    index: Tensor | None
    num_rows: int
    labels: Tensor
    mask: Tensor | None
    ignore_index: int
    packed_id: Tensor | None
    seq_len: int
    num_sequences: int
    tokens: dict[str, Tensor]
    sequences: dict[str, Tensor]
    dtype: torch.dtype
    paired: bool

    @property
    def num_kept(self) -> int:
        return self.labels.numel()

    @functools.cached_property
    def valid(self) -> Tensor:
        """True for kept rows that are valid. Kernels compute this themselves."""
        valid = self.labels != self.ignore_index
        return valid if self.mask is None else valid & self.mask

    def with_labels(self, labels: Tensor) -> Rows:
        """Replace the labels; the same rows stay valid."""
        return replace(self, labels=labels, mask=self.valid, ignore_index=NO_LABEL)

    @functools.cached_property
    def seq_id(self) -> Tensor:
        """Sequence number of each row."""
        if self.packed_id is not None:
            return self.packed_id
        numbers = torch.arange(self.num_sequences, device=self.labels.device)
        return numbers.repeat_interleave(self.seq_len)

    @functools.cached_property
    def seq_valid(self) -> Tensor:
        """True for sequences with a valid row."""
        found = torch.zeros(self.num_sequences, dtype=self.dtype, device=self.labels.device)
        return found.scatter_reduce_(0, self.seq_id, self.valid.to(self.dtype), "amax") > 0

    @functools.cached_property
    def starts(self) -> Tensor:
        """First row of each sequence, and the end of the last."""
        edges = torch.arange(self.num_sequences + 1, device=self.labels.device)
        return torch.searchsorted(self.seq_id, edges, out_int32=True)

    def namespace(
        self, step: SimpleNamespace, statistics: Mapping[str, Tensor], rows: slice = slice(None)
    ) -> SimpleNamespace:
        """Return the inputs `x` of a generated function, for a range of rows."""
        return SimpleNamespace(
            **{name: value[rows] for name, value in self.tokens.items()},
            **self.sequences,
            **statistics,
            mask=self.valid[rows],
            seq_id=self.seq_id[rows],
            seq_valid=self.seq_valid,
            step=step,
            dtype=self.dtype,
        )


def slices(count: int, size: int) -> Iterator[slice]:
    """Yield slices that divide `count` items into parts of `size`."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def pack(
    fields: tuple[LossField, ...],
    given: Mapping[str, Tensor],
    *,
    labels: Tensor,
    mask: Tensor | None,
    seq_id: Tensor | None,
    ignore_index: int,
    dtype: torch.dtype,
    compact: bool,
) -> Rows:
    """Check the shapes and dtypes of a batch and pack its rows; `compact` drops masked ones."""
    shape, device = labels.shape, labels.device
    if labels.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"labels must be token ids (int64), not {labels.dtype}")
    if mask is not None:
        check("mask", mask, shape, torch.bool)
        mask = mask.reshape(-1).contiguous()
    seq_len = 0
    if labels.dim() == 2:
        if seq_id is not None:
            raise ValueError("seq_id is for packed rows [N]; padded rows [B, T] need none")
        num_sequences, seq_len = shape
    else:
        num_sequences = count_sequences(fields, given, seq_id, shape)
        if seq_id is None:
            seq_id = torch.zeros(shape, dtype=torch.int64, device=device)
        check("seq_id", seq_id, shape, torch.int64)
    paired = any("P" in field.axes for field in fields)
    if paired and num_sequences % 2:
        raise ValueError(
            f"{num_sequences} sequences do not form pairs: sequence 2p must be the chosen answer, "
            "2p + 1 the rejected one"
        )
    tokens, sequences = check_fields(fields, given, shape, num_sequences, dtype)
    rows = Rows(
        index=None,
        num_rows=labels.numel(),
        labels=labels.reshape(-1).contiguous(),
        mask=mask,
        ignore_index=ignore_index,
        packed_id=None if seq_id is None else seq_id.contiguous(),
        seq_len=seq_len,
        num_sequences=num_sequences,
        tokens={name: value.reshape(-1) for name, value in tokens.items()},
        sequences=sequences,
        dtype=dtype,
        paired=paired,
    )
    return drop_invalid(rows) if compact else rows


def drop_invalid(rows: Rows) -> Rows:
    """Return only the valid rows. Waits for the device."""
    index = rows.valid.nonzero().squeeze(1)
    if index.numel() == rows.num_rows:
        return replace(rows, index=None, mask=None, packed_id=rows.seq_id, seq_len=0)
    return replace(select_rows(rows, index), mask=None)


def select_rows(rows: Rows, index: Tensor) -> Rows:
    """Return the rows at `index`, in this order. If the order changes, `starts` is meaningless."""
    return replace(
        rows,
        index=index,
        labels=rows.labels[index],
        mask=None if rows.mask is None else rows.mask[index],
        packed_id=rows.seq_id[index],
        seq_len=0,
        tokens={name: value[index] for name, value in rows.tokens.items()},
    )


def check(name: str, value: Tensor, shape: torch.Size, dtype: torch.dtype) -> None:
    """Check shape and dtype of one input."""
    if value.shape != shape:
        raise ValueError(f"{name} has shape {list(value.shape)}, but the batch has {list(shape)}")
    if value.dtype != dtype:
        raise TypeError(f"{name} is {value.dtype}, but {dtype} is needed")


def count_sequences(
    fields: tuple[LossField, ...],
    given: Mapping[str, Tensor],
    seq_id: Tensor | None,
    shape: torch.Size,
) -> int:
    """The number of sequences of a packed batch, from a sequence field or the last seq_id."""
    for field in fields:
        if field.name in given and "T" not in field.axes:
            return given[field.name].shape[0] * (2 if "P" in field.axes else 1)
    if seq_id is None or seq_id.numel() == 0:
        return 2 if any("P" in field.axes for field in fields) else 1
    if seq_id.is_cuda:  # an upper bound: reading the exact number would wait for the device
        torch._assert_async(seq_id[-1] < seq_id.numel(), "seq_id exceeds the number of rows")
        return seq_id.numel() + seq_id.numel() % 2
    return int(seq_id[-1]) + 1


def check_fields(
    fields: tuple[LossField, ...],
    given: Mapping[str, Tensor],
    shape: torch.Size,
    num_sequences: int,
    dtype: torch.dtype,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Check the inputs; return token fields and sequence fields in the loss's dtype."""
    wanted = {f.name: f for f in fields if f.name not in (*ROW_STATISTICS, "mask")}
    if shape.numel() == 0:  # this rank has no rows in this microbatch
        given = {
            name: torch.zeros(
                shape if "T" in field.axes else num_sequences // (2 if "P" in field.axes else 1),
                dtype=torch.bool if field.dtype == "bool" else dtype,
            )
            for name, field in wanted.items()
        }
    if missing := sorted(wanted.keys() - given.keys()):
        raise TypeError(f"this loss needs {', '.join(missing)} ({signature(fields)})")
    if extra := sorted(given.keys() - wanted.keys()):
        raise TypeError(f"this loss has no input {', '.join(extra)} ({signature(fields)})")
    tokens: dict[str, Tensor] = {}
    sequences: dict[str, Tensor] = {}
    for name, field in wanted.items():
        if not isinstance(given[name], Tensor):
            raise TypeError(f"{name} is a {type(given[name]).__name__}, but a tensor is needed")
        value = given[name].detach()
        over_tokens = "T" in field.axes
        pairs = torch.Size([num_sequences // 2]) if "P" in field.axes else None
        expected = shape if over_tokens else pairs or torch.Size([num_sequences])
        if value.shape != expected:
            raise ValueError(
                f"{name} is declared [{', '.join(field.axes)}]; it has shape {list(value.shape)}, "
                f"but this batch needs {list(expected)}"
            )
        if (field.dtype == "bool") != (value.dtype == torch.bool):
            raise TypeError(f"{name} is declared {field.dtype}, but its tensor is {value.dtype}")
        (tokens if over_tokens else sequences)[name] = (
            value if field.dtype == "bool" else value.to(dtype)
        )
    return tokens, sequences


def signature(fields: tuple[LossField, ...]) -> str:
    """Describe the inputs: `behavior: [B, T] f32, adv: [B] f32`."""
    return ", ".join(
        f"{field.name}: [{', '.join(field.axes)}] {field.dtype}"
        for field in fields
        if field.name not in ROW_STATISTICS
    )
