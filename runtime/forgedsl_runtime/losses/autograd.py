"""Autograd functions that run a loss.

    apply      an evaluation and its inputs  ->  the loss, with gradient; eager
    evaluate   the same as one operator that torch.compile does not look into

Forward already computes the gradients, for an upstream gradient of 1; backward rescales them. Two
cases compute them in backward, both with the torch module: a loss in chunks that needs whole
sequences (`chunked`), and a loss within a workspace (`tiled`). In eager mode the kernels' gradients
are freed by the first backward pass, so there can be only one. In a compiled graph they are outputs
of the operator, and the graph saves them.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

MAKERS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""Objects with `make_run` and `metric_names`, by the number they have in compiled graphs."""
NUMBERS = itertools.count()


def register(maker: Any) -> int:
    """Return a number for `maker`, valid as long as it lives."""
    number = next(NUMBERS)
    MAKERS[number] = maker
    return number


def apply(run: Any, sources: tuple[Tensor, ...]) -> Tensor:
    """Return the loss of a run; its gradient goes to `sources`."""
    needed = tuple(source.requires_grad and torch.is_grad_enabled() for source in sources)
    loss: Tensor = _Apply.apply(run, needed, *sources)  # type: ignore[no-untyped-call]
    return loss


class _Apply(torch.autograd.Function):
    """Hands the gradients of a run to autograd."""

    @staticmethod
    def forward(ctx: Any, run: Any, needed: tuple[bool, ...], *sources: Tensor) -> Tensor:
        ctx.run = run
        ctx.sources = [(source.dtype, source.shape) for source in sources]
        with torch.no_grad():
            loss: Tensor = run.forward(needed)  # ctx.needs_input_grad ignores torch.no_grad
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *_typed(ctx.run.backward(grad), ctx.sources)


def _typed(
    gradients: tuple[Tensor | None, ...], sources: list[tuple[torch.dtype, torch.Size]]
) -> list[Tensor | None]:
    """Convert gradients to the dtypes and shapes of their sources."""
    return [
        None if gradient is None else gradient.to(dtype).view(shape)
        for gradient, (dtype, shape) in zip(gradients, sources, strict=True)
    ]


@torch.library.custom_op("forgedsl::evaluate", mutates_args=())
def evaluate(
    number: int,
    form: str,
    needed: list[bool],
    sources: list[Tensor],
    names: str,
    tensors: list[Tensor],
    temperature: float,
    ignore_index: int,
    chunk_rows: int | None,
    compact: bool,
    logits_dtype: torch.dtype | None,
    workspace: int | None,
) -> list[Tensor]:
    """Return the loss, its metrics in one tensor, and the gradients of sources that need one."""
    given = dict(zip(names.split(), tensors, strict=True))
    maker = MAKERS[number]
    counts = {name.removeprefix("count:"): given.pop(name) for name in names.split() if ":" in name}
    options = {
        "ignore_index": ignore_index,
        "chunk_rows": chunk_rows,
        "compact": compact,
        "logits_dtype": logits_dtype,
        "workspace": workspace,
    }
    run = maker.make_run(form, tuple(sources), given, counts, temperature, options)
    loss = run.forward(tuple(needed))
    metrics = torch.stack([run.metrics[name] for name in maker.metric_names])
    found: list[Tensor] = []
    if any(needed):
        like = [(source.dtype, source.shape) for source in sources]
        gradients = _typed(run.backward(torch.ones_like(loss)), like)
        found = [gradient for gradient in gradients if gradient is not None]
    return [loss, metrics, *found]


@evaluate.register_fake
def _(
    number: int,
    form: str,
    needed: list[bool],
    sources: list[Tensor],
    names: str,
    tensors: list[Tensor],
    temperature: float,
    ignore_index: int,
    chunk_rows: int | None,
    compact: bool,
    logits_dtype: torch.dtype | None,
    workspace: int | None,
) -> list[Tensor]:
    wide = torch.float64 in [source.dtype for source in sources]
    dtype = torch.float64 if wide else torch.float32
    count = len(MAKERS[number].metric_names)
    gradients = [
        source.new_empty(source.shape) for source, need in zip(sources, needed, strict=True) if need
    ]
    first = sources[0]
    return [first.new_empty((), dtype=dtype), first.new_empty((count,), dtype=dtype), *gradients]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.needed, ctx.num_tensors = inputs[2], len(inputs[5])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*output[2:])


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    weight, kept = grads[0], iter(ctx.saved_tensors)
    sources = [next(kept) * weight if need and weight is not None else None for need in ctx.needed]
    return (None, None, None, sources, None, [None] * ctx.num_tensors, *[None] * 6)


evaluate.register_autograd(_backward, setup_context=_keep)


def call_operator(
    number: int,
    form: str,
    sources: tuple[Tensor, ...],
    tensors: Mapping[str, Tensor | None],
    counts: Mapping[str, float | Tensor | None],
    temperature: float,
    options: Mapping[str, Any],
) -> list[Tensor]:
    """Call the operator; arguments that are None are omitted."""
    named = {name: value for name, value in tensors.items() if value is not None}
    for name, count in counts.items():
        if count is not None:
            value = count if isinstance(count, Tensor) else torch.full((), count)
            named[f"count:{name}"] = value
    needed = [source.requires_grad and torch.is_grad_enabled() for source in sources]
    call: Callable[..., list[Tensor]] = evaluate
    return call(
        number,
        form,
        needed,
        list(sources),
        " ".join(named),
        [value.detach() for value in named.values()],
        temperature,
        options["ignore_index"],
        options["chunk_rows"],
        options.get("compact", False),
        options.get("logits_dtype"),
        options.get("workspace"),
    )
