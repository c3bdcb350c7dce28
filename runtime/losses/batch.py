"""Packed rows: what a generated loss module computes on.

    logits or hidden, labels, mask, seq_id, fields   ->  pack  ->  Rows

Inputs come padded (`[B, T]`, sequence fields `[B]`) or packed (`[N]` with `seq_id [N]`), pairs as
sequences 2p (chosen) and 2p + 1 (rejected). Rows whose mask is false are left out: they cost
nothing and nothing they hold can reach the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor

from forgedsl.lower.job import LossField

ROW_STATISTICS = ("logprob", "entropy", "logsumexp", "mean_logprob")
IGNORE_INDEX = -100


@dataclass(slots=True, kw_only=True)
class Rows:
    """The valid rows of a batch. `index` are their positions among all `num_rows` packed rows."""

    index: Tensor
    num_rows: int
    labels: Tensor
    seq_id: Tensor
    seq_valid: Tensor
    tokens: dict[str, Tensor]
    sequences: dict[str, Tensor]
    dtype: torch.dtype
    paired: bool

    def namespace(
        self, step: SimpleNamespace, statistics: Mapping[str, Tensor], rows: slice = slice(None)
    ) -> SimpleNamespace:
        """The inputs `x` of a generated function, for a range of rows."""
        return SimpleNamespace(
            **{name: value[rows] for name, value in self.tokens.items()},
            **self.sequences,
            **statistics,
            seq_id=self.seq_id[rows],
            seq_valid=self.seq_valid,
            step=step,
            dtype=self.dtype,
        )


def pack(
    fields: tuple[LossField, ...],
    given: Mapping[str, Tensor],
    *,
    labels: Tensor,
    mask: Tensor | None,
    seq_id: Tensor | None,
    ignore_index: int,
    dtype: torch.dtype,
) -> Rows:
    """Check the shapes and dtypes of a batch and pack its valid rows."""
    shape, device = labels.shape, labels.device
    if labels.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"labels are token ids (int64), not {labels.dtype}")
    valid = labels != ignore_index
    if mask is not None:
        check("mask", mask, shape, torch.bool)
        valid = valid & mask
    if labels.dim() == 2:
        if seq_id is not None:
            raise ValueError("seq_id is for packed rows [N]; padded rows [B, T] need none")
        seq_id = torch.arange(shape[0], device=device).repeat_interleave(shape[1])
        num_sequences = shape[0]
    else:
        num_sequences = count_sequences(fields, given, seq_id, shape)
        if seq_id is None:
            seq_id = torch.zeros(shape, dtype=torch.int64, device=device)
        check("seq_id", seq_id, shape, torch.int64)
    valid = valid.reshape(-1)
    index = valid.nonzero().squeeze(1)
    seq_id = seq_id[index]
    paired = any("P" in field.axes for field in fields)
    if paired and num_sequences % 2:
        raise ValueError(
            f"{num_sequences} sequences are no pairs: 2p is chosen, 2p + 1 is rejected"
        )
    seq_valid = torch.zeros(num_sequences, dtype=torch.bool, device=device)
    seq_valid[seq_id] = True
    tokens, sequences = check_fields(fields, given, shape, num_sequences, dtype)
    return Rows(
        index=index,
        num_rows=labels.numel(),
        labels=labels.reshape(-1)[index].long(),
        seq_id=seq_id,
        seq_valid=seq_valid,
        tokens={
            "mask": torch.ones_like(seq_id, dtype=torch.bool),
            **{name: value.reshape(-1)[index] for name, value in tokens.items()},
        },
        sequences=sequences,
        dtype=dtype,
        paired=paired,
    )


def check(name: str, value: Tensor, shape: torch.Size, dtype: torch.dtype) -> None:
    """One input against the shape of the batch."""
    if value.shape != shape:
        raise ValueError(f"{name} has shape {list(value.shape)}, the batch has {list(shape)}")
    if value.dtype != dtype:
        raise TypeError(f"{name} is {value.dtype}, {dtype} is needed")


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
    return int(seq_id[-1]) + 1


def check_fields(
    fields: tuple[LossField, ...],
    given: Mapping[str, Tensor],
    shape: torch.Size,
    num_sequences: int,
    dtype: torch.dtype,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The token fields and the sequence fields, in the dtype the loss computes in."""
    wanted = {f.name: f for f in fields if f.name not in (*ROW_STATISTICS, "mask")}
    if shape.numel() == 0:  # a rank without work in this microbatch
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
    tokens, sequences = {}, {}
    for name, field in wanted.items():
        value = given[name].detach()
        over_tokens = "T" in field.axes
        pairs = torch.Size([num_sequences // 2]) if "P" in field.axes else None
        expected = shape if over_tokens else pairs or torch.Size([num_sequences])
        if value.shape != expected:
            raise ValueError(
                f"{name} is [{', '.join(field.axes)}] and has shape {list(value.shape)}, "
                f"this batch needs {list(expected)}"
            )
        if (field.dtype == "bool") != (value.dtype == torch.bool):
            raise TypeError(f"{name} is declared {field.dtype} and given as {value.dtype}")
        (tokens if over_tokens else sequences)[name] = (
            value if field.dtype == "bool" else value.to(dtype)
        )
    return tokens, sequences


def signature(fields: tuple[LossField, ...]) -> str:
    """`behavior: [B, T] f32, adv: [B] f32`."""
    return ", ".join(
        f"{field.name}: [{', '.join(field.axes)}] {field.dtype}"
        for field in fields
        if field.name not in ROW_STATISTICS
    )
