"""LossFunction: a generated loss module as a callable on logits, or on hidden states and lm_head.

    loss(logits=..., labels=..., ...)            ->  LossOutput(loss, metrics, kernel)
    loss.linear(hidden=..., weight=..., ...)     ->  the same, without ever holding the logits

A token-local loss is differentiated while its logits are at hand: forward already forms the
gradients of hidden and weight, three products in all. A sequence-coupled one needs the log-probs
of whole sequences first and computes the logits again in backward.
"""

from __future__ import annotations

import functools
import linecache
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import torch
from torch import Tensor

from forgedsl.lower import job
from forgedsl.runtime.losses import head as heads
from forgedsl.runtime.losses.batch import IGNORE_INDEX, ROW_STATISTICS, Rows, pack


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """`loss` has gradient; `metrics` has `entropy` and every report, as partial sums over the
    counts of the step; `kernel` names the implementation that ran."""

    loss: Tensor
    metrics: dict[str, Tensor]
    kernel: str


class LossFunction:
    """A loss that was declared in the language."""

    def __init__(self, spec: job.Loss) -> None:
        self.name = spec.name
        self.source = spec.source
        self.tree = spec.tree
        self.fields = spec.fields
        self.reports = spec.reports
        self.module = load_module(spec.name, spec.source)
        self.paired = any("P" in field.axes for field in spec.fields)

    @classmethod
    def from_job(cls, spec: job.Loss) -> Self:
        return cls(spec)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs a call must supply besides labels and mask."""
        return tuple(
            field.name for field in self.fields if field.name not in (*ROW_STATISTICS, "mask")
        )

    @property
    def phase(self) -> str:
        """token-local, sequence-coupled or batch-coupled."""
        return str(self.module.PHASE)

    def __call__(
        self,
        *,
        logits: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        seq_id: Tensor | None = None,
        num_tokens: float | Tensor | None = None,
        num_sequences: float | Tensor | None = None,
        totals: Mapping[str, Tensor] | None = None,
        temperature: float = 1.0,
        ignore_index: int = IGNORE_INDEX,
        chunk_rows: int | None = None,
        **inputs: Tensor,
    ) -> LossOutput:
        """The loss of logits `[B, T, V]` or packed `[N, V]`; `logits[b, t]` scores `labels[b, t]`.

        Inputs are `[B, T]` or `[B]` as declared (packed: `[N]`, with `seq_id [N]`). `num_tokens`
        and `num_sequences` count the valid tokens, and the sequences that have one, of the whole
        optimizer step; without them this call is the whole step.
        """
        if logits.shape[:-1] != labels.shape:
            raise ValueError(
                f"logits {list(logits.shape)} do not fit labels {list(labels.shape)}: "
                "[B, T, V] and [B, T], or [N, V] and [N]"
            )
        dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
        rows = self._pack(inputs, labels, mask, seq_id, ignore_index, dtype)
        step = self._step(rows, num_tokens, num_sequences, totals)
        flat = logits.reshape(-1, logits.shape[-1])
        source = heads.LogitsHead(flat.detach(), rows.index, dtype, chunk_rows)
        return self._apply(Run(self, rows, step, source, temperature), flat)

    def linear(
        self,
        *,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        seq_id: Tensor | None = None,
        num_tokens: float | Tensor | None = None,
        num_sequences: float | Tensor | None = None,
        totals: Mapping[str, Tensor] | None = None,
        temperature: float = 1.0,
        ignore_index: int = IGNORE_INDEX,
        chunk_rows: int | None = None,
        **inputs: Tensor,
    ) -> LossOutput:
        """The loss of logits `hidden @ weight.T`: hidden `[N, H]` or `[B, T, H]`, weight `[V, H]`.

        The gradient of `weight` is that of a plain tensor; under FSDP pass the gathered weight.
        """
        check_linear(hidden, weight, labels)
        wide = torch.float64 in (hidden.dtype, weight.dtype)
        dtype = torch.float64 if wide else torch.float32
        flat = hidden.reshape(-1, hidden.shape[-1])
        rows = self._pack(inputs, labels, mask, seq_id, ignore_index, dtype)
        step = self._step(rows, num_tokens, num_sequences, totals)
        source = heads.LinearHead(flat.detach(), weight.detach(), rows.index, dtype, chunk_rows)
        return self._apply(Run(self, rows, step, source, temperature), flat, weight)

    def totals(
        self,
        *,
        labels: Tensor,
        mask: Tensor | None = None,
        seq_id: Tensor | None = None,
        ignore_index: int = IGNORE_INDEX,
        **inputs: Tensor,
    ) -> dict[str, Tensor]:
        """The counts of this microbatch. Their sums over the step are the `totals` of a call."""
        rows = self._pack(inputs, labels, mask, seq_id, ignore_index, torch.float32)
        return self._counts(rows)

    def _pack(
        self,
        inputs: Mapping[str, Tensor],
        labels: Tensor,
        mask: Tensor | None,
        seq_id: Tensor | None,
        ignore_index: int,
        dtype: torch.dtype,
    ) -> Rows:
        if seq_id is None and labels.dim() == 1 and "x.seq" in self.source:
            raise TypeError(f"loss {self.name} works on sequences: packed rows need seq_id [N]")
        return pack(
            self.fields,
            inputs,
            labels=labels,
            mask=mask,
            seq_id=seq_id,
            ignore_index=ignore_index,
            dtype=dtype,
        )

    def _counts(self, rows: Rows) -> dict[str, Tensor]:
        valid = rows.seq_valid
        if rows.paired:
            valid = valid.view(-1, 2).all(1).repeat_interleave(2)
        counts = {
            "num_tokens": torch.tensor(float(rows.index.numel()), device=valid.device),
            "num_sequences": valid.sum().float(),
        }
        if self.module.TOTALS:
            counts.update(self.module.totals(rows.namespace(SimpleNamespace(), {})))
        return counts

    def _step(
        self,
        rows: Rows,
        num_tokens: float | Tensor | None,
        num_sequences: float | Tensor | None,
        totals: Mapping[str, Tensor] | None,
    ) -> SimpleNamespace:
        """The counts of the whole optimizer step, clamped to at least one."""
        given = {"num_tokens": num_tokens, "num_sequences": num_sequences}
        given = {name: value for name, value in given.items() if value is not None}
        given.update(totals or {})
        if not given:
            given.update(self._counts(rows))
        needed = ["num_tokens", *self.module.TOTALS]
        if "x.step.num_sequences" in self.source:
            needed.append("num_sequences")
        if missing := [name for name in needed if name not in given]:
            raise TypeError(
                f"loss {self.name} also needs {', '.join(missing)} of the whole step: "
                "add up LossFunction.totals(...) of its microbatches and pass totals="
            )
        device = rows.seq_id.device
        step = {
            name: torch.as_tensor(value, dtype=rows.dtype, device=device)
            for name, value in given.items()
        }
        return SimpleNamespace(
            **{n: v if n.startswith("batch_sum") else v.clamp(min=1) for n, v in step.items()}
        )

    def _apply(self, run: Run, *sources: Tensor) -> LossOutput:
        loss = _Apply.apply(run, *sources)
        return LossOutput(loss=loss, metrics=run.metrics, kernel=run.head.kernel)


class Run:
    """One evaluation of a loss: rows, counts, and where logits come from."""

    def __init__(
        self,
        loss: LossFunction,
        rows: Rows,
        step: SimpleNamespace,
        head: heads.Head,
        temperature: float,
    ) -> None:
        self.module = loss.module
        self.mean_logprob = "x.mean_logprob" in loss.source
        self.rows = rows
        self.step = step
        self.head = head
        self.temperature = temperature
        self.metrics: dict[str, Tensor] = {}
        self.statistics: dict[str, Tensor] = {}
        self.cotangents: dict[str, Tensor] | None = None
        self.needed: tuple[bool, ...] = ()

    def forward(self, needed: tuple[bool, ...]) -> Tensor:
        """The loss and the metrics; the gradients too where one pass suffices."""
        fused = self.head.single or self.module.PHASE == "token-local"
        differentiate = any(needed)
        self.needed = needed
        if differentiate and fused:
            self.head.start(needed)
        parts = []
        for rows in self.head.chunks():
            softmax, found = self._statistics(rows)
            if differentiate and fused:
                self._push(rows, softmax, self._gradient(found, rows))
            parts.append(found)
        empty = self.rows.seq_id.new_zeros(0, dtype=self.rows.dtype)
        self.statistics = {
            name: torch.cat([part[name] for part in parts] or [empty])
            for name in (parts[0] if parts else ROW_STATISTICS)
        }
        if differentiate and not fused:
            self.cotangents = self._gradient(self.statistics, slice(None))
        loss, reports = self.module.loss(self.rows.namespace(self.step, self.statistics))
        entropy = self.statistics["entropy"].sum() / self.step.num_tokens
        self.metrics = {"entropy": entropy}
        for name, value in reports.items():
            self.metrics[name] = torch.as_tensor(value, dtype=self.rows.dtype)
        return torch.as_tensor(loss, dtype=self.rows.dtype, device=entropy.device)

    def backward(self) -> tuple[Tensor | None, ...]:
        """The gradients for a loss of weight one."""
        if self.cotangents is not None:
            self.head.start(self.needed)
            for rows in self.head.chunks():
                softmax, _ = self._statistics(rows)
                part = {name: value[rows] for name, value in self.cotangents.items()}
                self._push(rows, softmax, part)
        return self.head.gradients

    @functools.cached_property
    def _sums(self) -> dict[str, Tensor]:
        sums: dict[str, Tensor] = self.module.prepare(self.rows.namespace(self.step, {}))
        return sums

    def _statistics(self, rows: slice) -> tuple[heads.Softmax, dict[str, Tensor]]:
        z = self.head.logits(rows)
        if self.temperature != 1.0:
            z /= self.temperature
        return heads.Softmax.of(z, self.rows.labels[rows], mean_logprob=self.mean_logprob)

    def _gradient(self, found: Mapping[str, Tensor], rows: slice) -> dict[str, Tensor]:
        x = self.rows.namespace(self.step, found, rows)
        gradient: dict[str, Tensor] = self.module.gradient(x, self._sums)
        return gradient

    def _push(self, rows: slice, softmax: heads.Softmax, part: Mapping[str, Tensor]) -> None:
        gradient = softmax.gradient(self.rows.labels[rows], part)
        if self.temperature != 1.0:
            gradient /= self.temperature
        self.head.push(rows, gradient)


class _Apply(torch.autograd.Function):
    """Hands the gradients of a run to autograd."""

    @staticmethod
    def forward(ctx: Any, run: Run, *sources: Tensor) -> Tensor:
        ctx.run = run
        ctx.dtypes = [source.dtype for source in sources]
        with torch.no_grad():
            return run.forward(tuple(ctx.needs_input_grad[1:]))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.run.backward()
        scaled = [
            None if gradient is None else (gradient * grad).to(dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        ]
        return None, *scaled


def check_linear(hidden: Tensor, weight: Tensor, labels: Tensor) -> None:
    """Shapes of the linear form."""
    if hidden.shape[:-1] != labels.shape:
        raise ValueError(
            f"hidden {list(hidden.shape)} does not fit labels {list(labels.shape)}: "
            "[N, H] and [N], or [B, T, H] and [B, T]"
        )
    if weight.dim() != 2 or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(
            f"weight {list(weight.shape)} does not fit hidden {list(hidden.shape)}: [V, H]"
        )
    if hasattr(weight, "full_tensor"):
        raise TypeError("weight is a DTensor: pass weight.full_tensor()")


@functools.cache
def load_module(name: str, source: str) -> ModuleType:
    """The generated module, with its lines available to tracebacks."""
    filename = f"<loss {name}>"
    module = ModuleType(f"forgedsl_loss_{name}")
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), module.__dict__)
    return module


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    temperature: float = 1.0,
    *,
    chunk_rows: int | None = None,
) -> Tensor:
    """The log-prob of each label, `[N]`, without gradient; logits are never kept."""
    check_linear(hidden, weight, labels)
    wide = torch.float64 in (hidden.dtype, weight.dtype)
    dtype = torch.float64 if wide else torch.float32
    index = torch.arange(labels.shape[0], device=labels.device)
    source = heads.LinearHead(hidden.detach(), weight.detach(), index, dtype, chunk_rows)
    found = hidden.new_empty(labels.shape, dtype=dtype)
    with torch.no_grad():
        for rows in source.chunks():
            z = source.logits(rows) / temperature
            chosen = z.gather(1, labels[rows].unsqueeze(1)).squeeze(1)
            found[rows] = chosen - torch.logsumexp(z, dim=1)
    return found
