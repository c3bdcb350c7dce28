"""LossFunction: a generated loss module as a callable on logits, or on hidden states and lm_head.

    loss(logits=..., labels=..., ...)            ->  LossOutput(loss, metrics, kernel)
    loss.linear(hidden=..., weight=..., ...)     ->  the same, without holding all logits at once

On a GPU the generated Triton kernels run (`fused`, `linear`), elsewhere the torch module
(`chunked`).
"""

from __future__ import annotations

import functools
import linecache
import re
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from forgedsl.lower import job
from forgedsl_runtime.losses import head as heads
from forgedsl_runtime.losses.autograd import apply, call_operator, register
from forgedsl_runtime.losses.batch import IGNORE_INDEX, ROW_STATISTICS, Rows, drop_invalid, pack
from forgedsl_runtime.losses.checks import (
    check_counts,
    check_labels,
    check_linear,
    check_logits,
    check_temperature,
    check_tensors,
)
from forgedsl_runtime.losses.chunked import Run
from forgedsl_runtime.losses.kernels import Kernels, require
from forgedsl_runtime.losses.output import LossOutput
from forgedsl_runtime.losses.parallel import Shard
from forgedsl_runtime.losses.tiled import TiledRun

TOKEN_WISE = {"loss", "prepare", "gradient", "value_gradient", "totals", "masked_sum"}
"""functions of a generated module that work per token, or sum over tokens"""


class LossFunction:
    """A loss that was declared in the language."""

    keeps_logprobs = False
    """True if outputs hold the log-probs of the labels"""

    def __init__(self, spec: job.Loss, backend: str = "auto") -> None:
        self.name = spec.name
        self.spec = spec
        self.backend = backend
        self.kernels = Kernels(spec.name, spec.kernels)
        self.source = spec.source
        self.tree = spec.tree
        self.fields = spec.fields
        self.reports = spec.reports
        self.module = load_module(spec.name, spec.source)
        self.paired = any("P" in field.axes for field in spec.fields)
        self.reads_value = hasattr(self.module, "value_gradient")
        """True if the loss reads `value` of a value head, and differentiates through it"""
        self.of_values_alone = self.reads_value and not self.module.STATISTICS
        self.metric_names = (*(() if self.of_values_alone else ("entropy",)), *spec.reports)
        body = spec.source.split('"""', 2)[-1]
        self._knows_sequences = re.search(r"x\.seq|\bseq_\w+\(", body) is not None
        coupling = set(re.findall(r"^def (\w+)", spec.source, re.M)) - TOKEN_WISE
        local = self.phase == "token-local" and not self.paired and "x.seq_valid" not in body
        self.couples = bool(coupling) or not local
        """True if the loss needs all tokens of a sequence at once"""
        self._number = register(self)

    @classmethod
    def from_job(cls, spec: job.Loss, backend: str = "auto") -> Self:
        """Make the loss; `backend` is "torch", "triton", or "auto": kernels on a GPU, torch
        elsewhere."""
        return cls(spec, backend)

    def using(self, backend: str) -> Self:
        """Return the same loss with another backend."""
        return type(self)(self.spec, backend)

    def __repr__(self) -> str:
        """`<loss clipped(logits, labels, mask, behavior, adv) -> loss, clip_frac>`."""
        inputs = ", ".join(("logits", "labels", "mask", *self.input_names))
        return f"<loss {self.name}({inputs}) -> {', '.join(('loss', *self.metric_names))}>"

    def _repr_html_(self) -> str:
        from forgedsl.losses.render_math import render
        from forgedsl.losses.text import read
        from forgedsl.notebook import page

        return page(repr(self)[1:-1], rows={"backend": self.backend}, text=render(read(self.tree)))

    @property
    def kinks(self) -> tuple[str, ...]:
        """Places where the gradient jumps: `min rl.forge:35:10`; PyTorch's rules for ties apply
        there."""
        return self.spec.kinks

    @property
    def input_names(self) -> tuple[str, ...]:
        """Inputs that a call must supply besides labels and mask."""
        return tuple(
            field.name for field in self.fields if field.name not in (*ROW_STATISTICS, "mask")
        )

    @property
    def phase(self) -> str:
        """One of: token-local, sequence-coupled, batch-coupled."""
        return str(self.module.PHASE)

    def __call__(
        self,
        logits: Tensor,
        labels: Tensor,
        mask: Tensor | None = None,
        *,
        seq_id: Tensor | None = None,
        num_tokens: float | Tensor | None = None,
        num_sequences: float | Tensor | None = None,
        totals: Mapping[str, Tensor] | None = None,
        temperature: float = 1.0,
        ignore_index: int = IGNORE_INDEX,
        chunk_rows: int | None = None,
        inplace: bool = False,
        group: ProcessGroup | None = None,
        vocabulary: int | None = None,
        **inputs: Tensor,
    ) -> LossOutput:
        """Compute the loss of logits `[B, T, V]` or packed `[N, V]`; `logits[b, t]` scores
        `labels[b, t]`.

        Inputs are `[B, T]` or `[B]` as declared (packed: `[N]`, with `seq_id [N]`). `num_tokens` is
        the number of valid tokens in the whole optimizer step, `num_sequences` the number of its
        sequences with at least one valid token; without them this call is the whole step. `inplace`
        lets the kernels write the gradient over the logits: half the memory, and the logits are
        gone.

        With `group`, the vocabulary is split over the ranks of this group: `logits` are this rank's
        columns, and all other inputs are equal on all ranks. `vocabulary` is the size of the whole
        vocabulary, needed if it does not divide evenly.
        """
        check_logits(logits, labels)
        counts = {"num_tokens": num_tokens, "num_sequences": num_sequences, **(totals or {})}
        tensors = {"labels": labels, "mask": mask, "seq_id": seq_id, **inputs}
        options: dict[str, Any] = {"ignore_index": ignore_index, "chunk_rows": chunk_rows}
        if group is None and torch.compiler.is_compiling() and not self.reads_value:
            if inplace:
                raise TypeError("inplace=True overwrites logits that torch.compile may still need")
            return self._opaque("logits", (logits,), tensors, counts, temperature, options)
        options |= {"inplace": inplace and logits.requires_grad}
        options |= {"group": group, "vocabulary": vocabulary}
        return self._run_eager("logits", (logits,), tensors, counts, temperature, options)

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
        compact: bool = False,
        logits_dtype: torch.dtype | None = None,
        workspace: int | None = None,
        group: ProcessGroup | None = None,
        vocabulary: int | None = None,
        **inputs: Tensor,
    ) -> LossOutput:
        """Compute the loss of logits `hidden @ weight.T`: hidden `[N, H]` or `[B, T, H]`, weight
        `[V, H]`.

        Logits exist for `chunk_rows` rows at a time, in float32 unless `logits_dtype` says
        otherwise. `compact` omits rows without gradient from the products; the result is the same.
        If the loss is token-local and its logits stay on chip, `compact` omits masked rows, and
        rows with an input that makes the gradient zero (such as a zero advantage); the host waits
        for the device once per call. In all other cases clipped rows are omitted too, and the host
        waits once per chunk. `workspace` limits the bytes held besides the gradients, for any
        number of rows and any vocabulary; logits are then computed twice. `weight` must be a plain
        tensor, not a DTensor: under FSDP pass the gathered weight.

        With `group`, the vocabulary is split over the ranks of this group: `weight` holds this
        rank's rows, and all other inputs are equal on all ranks. `vocabulary` is the number of rows
        in all, needed if it does not divide evenly. The gradient of `hidden` is summed over the
        group.
        """
        check_linear(hidden, weight, labels)
        counts = {"num_tokens": num_tokens, "num_sequences": num_sequences, **(totals or {})}
        tensors = {"labels": labels, "mask": mask, "seq_id": seq_id, **inputs}
        options: dict[str, Any] = {"ignore_index": ignore_index, "chunk_rows": chunk_rows}
        options |= {"compact": compact, "logits_dtype": logits_dtype, "workspace": workspace}
        if workspace is not None and group is not None:
            raise TypeError("workspace= and group= cannot be combined")
        if group is None and torch.compiler.is_compiling() and not self.reads_value:
            return self._opaque("linear", (hidden, weight), tensors, counts, temperature, options)
        options |= {"group": group, "vocabulary": vocabulary}
        return self._run_eager("linear", (hidden, weight), tensors, counts, temperature, options)

    def of_values(
        self,
        *,
        value: Tensor,
        mask: Tensor | None = None,
        seq_id: Tensor | None = None,
        num_tokens: float | Tensor | None = None,
        num_sequences: float | Tensor | None = None,
        totals: Mapping[str, Tensor] | None = None,
        **inputs: Tensor,
    ) -> LossOutput:
        """Compute a loss that reads only a value head, from values `[B, T]` or packed `[N]`.

        Raises:
            TypeError: the loss also reads log-probs.
        """
        if not self.of_values_alone:
            raise TypeError(f"loss {self.name} also reads log-probs: call it with logits or hidden")
        check_tensors(value=value, mask=mask, seq_id=seq_id)
        counts = {"num_tokens": num_tokens, "num_sequences": num_sequences, **(totals or {})}
        check_counts(counts)
        labels = torch.zeros(value.shape, dtype=torch.int64, device=value.device)
        dtype = torch.promote_types(value.dtype, torch.float32)
        rows = self._pack({"value": value, **inputs}, labels, mask, seq_id, IGNORE_INDEX, dtype,
                          compact=not value.is_cuda)  # fmt: skip
        x = rows.namespace(self._step(rows, counts, clamped=True), {})
        x.value = _kept(value, rows)
        loss, reports = self.module.loss(x)
        metrics = {name: torch.as_tensor(found).detach() for name, found in reports.items()}
        return LossOutput(loss=loss, metrics=metrics, kernel="torch/values")

    def at_statistics(
        self,
        statistics: Mapping[str, Tensor],
        *,
        labels: Tensor,
        mask: Tensor | None = None,
        seq_id: Tensor | None = None,
        **inputs: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        """Compute the loss from given statistics (log-probs, entropies, values, ...) in place of
        logits. Return the loss, its reports, and its gradient with respect to each statistic.
        Shapes are as in `__call__`; the batch is the whole step. Everything is computed in the
        dtype of the statistics.

        Raises:
            TypeError: the loss reads more of the model than is given.
        """
        rows, step, x = self._at(statistics, labels, mask, seq_id, inputs)
        loss, reports = self.module.loss(x)
        gradient: dict[str, Tensor] = {}
        if not self.of_values_alone:
            gradient |= self.module.gradient(x, self.module.prepare(rows.namespace(step, {})))
        if self.reads_value:
            gradient["value"] = self.module.value_gradient(x)
        by = {name: _unpacked(gradient[name], rows, like=v) for name, v in statistics.items()}
        return loss, {n: torch.as_tensor(v) for n, v in reports.items()}, by

    def reports_at_statistics(
        self,
        statistics: Mapping[str, Tensor],
        *,
        labels: Tensor,
        mask: Tensor | None = None,
        seq_id: Tensor | None = None,
        **inputs: Tensor,
    ) -> dict[str, Tensor]:
        """Return only the reports of `at_statistics`, which takes half the time.

        Raises:
            TypeError: as `at_statistics`.
        """
        _, _, x = self._at(statistics, labels, mask, seq_id, inputs)
        _, reports = self.module.loss(x)
        return {name: torch.as_tensor(value) for name, value in reports.items()}

    def _at(
        self, statistics: Mapping[str, Tensor], labels: Tensor, mask: Tensor | None,
        seq_id: Tensor | None, inputs: Mapping[str, Tensor],
    ) -> tuple[Rows, SimpleNamespace, SimpleNamespace]:  # fmt: skip
        """Return the rows of a batch, the counts of its step, and what a generated function
        reads."""
        if missing := sorted({field.name for field in self.fields if field.diff} - {*statistics}):
            raise TypeError(f"loss {self.name} also reads {', '.join(missing)}")
        dtype = next(iter(statistics.values())).dtype
        given = {**inputs, **({"value": statistics["value"]} if self.reads_value else {})}
        rows = self._pack(given, labels, mask, seq_id, IGNORE_INDEX, dtype, compact=True)
        step = self._step(rows, {}, clamped=True)
        found = {n: _kept(v, rows) for n, v in statistics.items() if n in ROW_STATISTICS}
        return rows, step, rows.namespace(step, found)

    def _by_value(self, loss: Tensor, rows: Rows, value: Tensor, counts: Any) -> Tensor:
        """Add the gradient with respect to the value head, which no kernel computes; the value of
        `loss` does not change."""
        with torch.no_grad():
            x = rows.namespace(self._step(rows, counts, clamped=True), {})
            gradient = self.module.value_gradient(x).where(rows.valid, 0.0)
        pulled = (_kept(value, rows).where(rows.valid, 0.0) * gradient).sum()
        total: Tensor = loss + (pulled - pulled.detach())
        return total

    def make_run(
        self,
        form: str,
        sources: tuple[Tensor, ...],
        tensors: Mapping[str, Tensor | None],
        counts: Mapping[str, float | Tensor | None],
        temperature: float,
        options: Mapping[str, Any],
    ) -> Any:
        """Make one evaluation. `form` is "logits" (of `__call__`) or "linear"; `options` are the
        other arguments of that method."""
        check_temperature(temperature)
        check_counts(counts)
        first, last = sources[0], sources[-1]
        fused = self._fused(first.device)
        wide = torch.float64 in [source.dtype for source in sources]
        dtype = torch.float64 if wide else torch.float32
        given: dict[str, Any] = dict(tensors)
        batch = {name: given.pop(name, None) for name in ("labels", "mask", "seq_id")}
        check_tensors(**batch)
        rows = self._pack(given, **batch, ignore_index=options["ignore_index"], dtype=dtype,
                          compact=not fused and not first.is_cuda)  # fmt: skip
        clamped = not fused or options.get("group") is not None
        step = self._step(rows, counts, clamped=clamped, fused=fused)
        columns = last.shape[-1] if form == "logits" else last.shape[0]
        shard = None
        if (group := options.get("group")) is not None:
            shard = Shard.of(group, columns, options["vocabulary"])
            rows = shard.local(rows)
        elif not first.is_cuda:
            check_labels(rows, columns)
        flat = first.detach().reshape(-1, first.shape[-1])
        data = (flat, *(source.detach() for source in sources[1:]))
        call = SimpleNamespace(form=form, sources=data, rows=rows, step=step, shard=shard,
                               temperature=temperature, options=options)  # fmt: skip
        return self._kernel_run(call) if fused else self._torch_run(call)

    def _torch_run(self, call: SimpleNamespace) -> Run:
        """Evaluate with the torch module, in chunks of rows."""
        rows, chunk = call.rows, call.options["chunk_rows"]
        mean = "x.mean_logprob" in self.source
        if (workspace := call.options.get("workspace")) is not None:
            hidden, weight = call.sources
            return TiledRun(
                self.module, rows, call.step, call.temperature,
                hidden=hidden, weight=weight, workspace=workspace, mean_logprob=mean,
            )  # fmt: skip
        if call.shard is not None:  # all ranks need the same number of chunks
            chunk = chunk or heads.rows_of_chunk(rows.labels.device, call.shard.largest)
        kind: Any = heads.LogitsHead if call.form == "logits" else heads.LinearHead
        head = kind(*call.sources, rows, rows.dtype, chunk)
        return Run(
            self.module, rows, call.step, head, call.temperature,
            mean_logprob=mean, shard=call.shard,
        )  # fmt: skip

    def _kernel_run(self, call: SimpleNamespace) -> Any:
        """Evaluate with the generated kernels."""
        from forgedsl_runtime.losses import fused, linear, onchip, ranked, sharded, tiled_kernels
        from forgedsl_runtime.losses.product import fits_on_chip

        arguments = (self.kernels, call.rows, call.step, call.temperature)
        options, more = call.options, {}
        if call.shard is not None:
            more = {"shard": call.shard, "module": self.module}
        if call.form == "logits":
            (flat,) = call.sources
            kind: Any = fused.LogitsEvaluation if call.shard is None else sharded.Logits
            data = flat if flat.stride(-1) == 1 else flat.contiguous()
            if inplace := options.get("inplace", False):
                # autograd must see the in-place change
                torch.autograd.graph.increment_version(flat)
            return kind(*arguments, logits=data, inplace=inplace, **more)
        hidden, weight = call.sources
        logits_dtype, workspace = options.get("logits_dtype"), options.get("workspace")
        onchip_fits = call.shard is None and logits_dtype is None and fits_on_chip(hidden, weight)
        if options.get("compact"):
            if onchip_fits and workspace is None and self.kernels.local:
                return ranked.RankedEvaluation(
                    *arguments, hidden=hidden, weight=weight, chunk_rows=options.get("chunk_rows")
                )
            arguments = (self.kernels, drop_invalid(call.rows), *arguments[2:])
        if workspace is not None and onchip_fits:
            return onchip.OnChipTiledEvaluation(
                *arguments, hidden=hidden, weight=weight, workspace=workspace
            )
        if workspace is not None:
            return tiled_kernels.TiledEvaluation(
                *arguments, hidden=hidden, weight=weight, workspace=workspace,
                logits_dtype=logits_dtype, module=self.module,
            )  # fmt: skip
        kind = linear.LinearEvaluation if call.shard is None else sharded.Linear
        kind = onchip.OnChipEvaluation if onchip_fits else kind
        names = ("chunk_rows", "compact", "logits_dtype")
        more |= {name: options.get(name) for name in names}
        return kind(*arguments, hidden=hidden, weight=weight, **more)

    def _run_eager(self, *call: Any) -> LossOutput:
        """Run eagerly; compiled code has a graph break here."""
        if torch.compiler.is_dynamo_compiling():
            torch._dynamo.graph_break()
            dynamo: Any = torch._dynamo
            out: LossOutput = dynamo.disable(self._evaluate)(*call)
            return out
        return self._evaluate(*call)

    def _evaluate(
        self, form: str, sources: tuple[Tensor, ...], tensors: Any, counts: Any,
        temperature: float, options: Mapping[str, Any],
    ) -> LossOutput:  # fmt: skip
        if self.of_values_alone:
            raise TypeError(
                f"loss {self.name} reads only values of a value head: call "
                "loss.of_values(value=...)"
            )
        run = self.make_run(form, sources, tensors, counts, temperature, options)
        loss = apply(run, sources)
        value = tensors.get("value") if self.reads_value else None
        if value is not None and value.requires_grad and torch.is_grad_enabled():
            loss = self._by_value(loss, run.rows, value, counts)
        kept = _logprob(run) if self.keeps_logprobs else None
        return LossOutput(loss=loss, metrics=run.metrics, kernel=run.kernel, logprob=kept)

    def _opaque(
        self, form: str, sources: tuple[Tensor, ...], tensors: Any, counts: Any,
        temperature: float, options: Mapping[str, Any],
    ) -> LossOutput:  # fmt: skip
        loss, metrics, *_ = call_operator(
            self._number, form, sources, tensors, counts, temperature, options
        )
        named = dict(zip(self.metric_names, metrics.detach().unbind(), strict=True))
        kind = "triton" if self._fused(sources[0].device) else "torch"
        return LossOutput(loss=loss, metrics=named, kernel=f"{kind}/{form}")

    def _fused(self, device: torch.device) -> bool:
        """True if the generated kernels run; a loss that is a Python class has none.

        Raises:
            RuntimeError: the backend is "triton" and kernels cannot run.
        """
        if self.spec.python:
            return False
        if self.backend == "triton":
            require(device)
        return self.backend == "triton" or (self.backend == "auto" and device.type == "cuda")

    def totals(
        self,
        *,
        labels: Tensor,
        mask: Tensor | None = None,
        seq_id: Tensor | None = None,
        ignore_index: int = IGNORE_INDEX,
        **inputs: Tensor,
    ) -> dict[str, Tensor]:
        """Return the counts of this microbatch. Their sums over the step are the `totals` of a
        call."""
        if self.reads_value and "value" not in inputs:  # counts do not depend on it
            inputs["value"] = torch.zeros(labels.shape, device=labels.device)
        compact = not labels.is_cuda
        wide = torch.float64 in [value.dtype for value in inputs.values()]
        dtype = torch.float64 if wide else torch.float32
        rows = self._pack(inputs, labels, mask, seq_id, ignore_index, dtype, compact)
        return self._counts(rows)

    def _pack(
        self,
        inputs: Mapping[str, Tensor],
        labels: Tensor,
        mask: Tensor | None,
        seq_id: Tensor | None,
        ignore_index: int,
        dtype: torch.dtype,
        compact: bool,
    ) -> Rows:
        if seq_id is None and labels.dim() == 1 and self._knows_sequences:
            raise TypeError(f"loss {self.name} works on sequences: packed rows need seq_id [N]")
        return pack(
            self.fields,
            inputs,
            labels=labels,
            mask=mask,
            seq_id=seq_id,
            ignore_index=ignore_index,
            dtype=dtype,
            compact=compact,
        )

    def _counts(self, rows: Rows) -> dict[str, Tensor]:
        valid = rows.seq_valid
        if rows.paired:
            valid = valid.view(-1, 2).all(1).repeat_interleave(2)
        counts = {
            "num_tokens": rows.valid.sum().to(rows.dtype),
            "num_sequences": valid.sum().to(rows.dtype),
        }
        if self.module.TOTALS:
            counts.update(self.module.totals(rows.namespace(SimpleNamespace(), {})))
        return counts

    def _step(
        self, rows: Rows, counts: Mapping[str, float | Tensor | None], *, clamped: bool,
        fused: bool = False,
    ) -> SimpleNamespace:  # fmt: skip
        """Return the counts of the whole optimizer step. With `clamped`, each is at least one,
        except for sums over the batch."""
        given = {name: value for name, value in counts.items() if value is not None}
        of_sequences = "x.step.num_sequences" in self.source
        if not given and fused and not self.module.TOTALS:
            from forgedsl_runtime.losses.counts import row_counts

            given.update(row_counts(self.kernels, rows, sequences=of_sequences))
        elif not given:
            given.update(self._counts(rows))
        needed = ["num_tokens", *self.module.TOTALS]
        if of_sequences:
            needed.append("num_sequences")
        if missing := [name for name in needed if name not in given]:
            raise TypeError(
                f"loss {self.name} also needs {', '.join(missing)} of the whole step: "
                "add up LossFunction.totals(...) of its microbatches and pass totals="
            )
        device = rows.labels.device
        step = {
            name: value.to(device, rows.dtype)
            if isinstance(value, Tensor)
            else torch.full((), value, dtype=rows.dtype, device=device)
            for name, value in given.items()
        }
        if not clamped:  # kernels clamp counts themselves
            return SimpleNamespace(**step)
        return SimpleNamespace(
            **{n: v if n.startswith("batch_sum") else v.clamp(min=1) for n, v in step.items()}
        )


def _kept(value: Tensor, rows: Rows) -> Tensor:
    """Return the values of the kept rows, differentiable, in the dtype of the loss."""
    flat = value.reshape(-1).to(rows.dtype)
    return flat if rows.index is None else flat[rows.index]


def _unpacked(value: Tensor, rows: Rows, *, like: Tensor) -> Tensor:
    """Put the values of kept rows into a tensor of this shape, with 0 elsewhere."""
    if rows.index is not None:
        value = value.new_zeros(rows.num_rows).index_copy(0, rows.index, value)
    return value.reshape(like.shape)


def _logprob(run: Any) -> Tensor | None:
    """Return the log-probs that an evaluation has computed, for all rows of its input."""
    found, rows = run.statistics, run.rows
    if isinstance(found, Tensor):  # kernels return one tensor, with a row for each name
        found = dict(zip(run.kernels.module.STATISTICS, found, strict=True))
    if "logprob" not in found:
        return None
    # kernels that sort rows do not compute log-probs of masked rows
    values: Tensor = found["logprob"].detach().float().where(rows.valid, torch.nan)
    if rows.index is None:
        return values
    return values.new_full((rows.num_rows,), torch.nan).index_copy_(0, rows.index, values)


@functools.cache
def load_module(name: str, source: str) -> ModuleType:
    """Load the generated module; its lines are available to tracebacks."""
    filename = f"<loss {name}>"
    module = ModuleType(f"forgedsl_loss_{name}")
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), module.__dict__)
    return module
