"""Proofs about the losses of a trainer, on a few sequences of the first batch.

    samples, some tokens masked --NaN in fields of masked tokens--> the same loss?        masks
    samples with ratios far from 1 --hidden states--
        the loss as it runs | its expression in float64 --> value, gradient               loss

Both checks run before the first update, and do not change it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from forgedsl_runtime.data_types import Sample
from forgedsl_runtime.losses import LossFunction

FEW = 8
"""sequences that are computed: an even number, for pairs"""
CHUNK = 1 << 25
"""logits in float64 that exist at a time on a GPU: 256 MiB, and a few copies of them"""
OF_OTHERS = ("behavior", "proximal")
"""fields with log-probs of earlier policies, from which a loss takes ratios"""
APART = (0.07, 0.5, -0.5, 1.3, -1.3)
"""offsets added to these log-probs, token by token. The ratios are then 0.27 to 3.7, and most
losses clip some. None is near a usual bound (0.8, 0.9, 1.1, 1.2, 1.28, 2, 3) or near 1, where a
loss such as abs(ratio - 1) has a kink: there rounding would decide"""
MOST_ON_CPU = 2e11
"""floating-point operations in float64 that take a CPU some 4 s"""
BOUNDS = {torch.float32: (1e-4, 1e-3), torch.float64: (1e-9, 1e-9)}
"""by dtype of the hidden states: largest allowed difference of the value, and of the gradient
relative to its norm. Other dtypes have the bounds `ROUNDED`, since their products are rounded to as
few as 8 bits"""
ROUNDED = (1e-3, 5e-2)
LOGPROB_ERRORS = {torch.float32: 1e-5, torch.float64: 1e-12}
"""by dtype of the hidden states: error of a log-prob by rounding. A gradient may be off by what
such errors make, however small it is: with equal scores and a reference that equals the policy, it
is nothing but rounding"""
LOGPROB_ERROR = 1e-3
"""of other dtypes"""
ELSEWHERE = "another rank has its tokens"
Line = dict[str, Any]
"""a line of proofs.jsonl"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Value of the loss of one microbatch, and its gradient with respect to the hidden states: as
    in training, and in float64. `why` says why they were not computed."""

    kernel: str = ""
    tokens: int = 0
    value: float = 0.0
    wanted: float = 0.0
    apart: float = 0.0
    """Euclidean norm of the difference of the gradients"""
    norm: float = 0.0
    bounds: tuple[float, float] = ROUNDED
    noise: float = 0.0
    """norm of the gradient that errors of log-probs by rounding make; 0 if `apart` is within its
    bound anyway"""
    why: str = ""


def few(samples: Sequence[Sample], *, pairs: bool) -> list[Sample]:
    """Return at most FEW samples, evenly spaced; with `pairs` both answers of each pair."""
    width = 2 if pairs else 1
    count = len(samples) // width
    step = max(1, count // (FEW // width))
    chosen = range(0, count, step)[: FEW // width]
    return [samples[width * i + side] for i in chosen for side in range(width)]


def thinned(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples with every third token masked."""
    return [
        replace(sample, mask=[on and i % 3 < 2 for i, on in enumerate(sample.mask)])
        for sample in samples
    ]


def spread(samples: Sequence[Sample]) -> list[Sample]:
    """Return samples whose ratios to earlier policies are far from 1. In the first batch ratios are
    usually 1: no token is clipped, and a wrong clip range would not show."""

    def moved(values: Sequence[float], offset: int) -> list[float]:
        return [value + APART[(i + offset) % len(APART)] for i, value in enumerate(values)]

    return [
        replace(
            sample,
            token_fields={
                name: moved(values, OF_OTHERS.index(name)) if name in OF_OTHERS else values
                for name, values in sample.token_fields.items()
            },
        )
        for sample in samples
    ]


def with_nan(samples: Sequence[Sample]) -> list[Sample]:
    """Return samples whose token fields are NaN at tokens that do not count."""
    return [
        replace(
            sample,
            token_fields={
                name: [v if on else math.nan for v, on in zip(values, sample.mask, strict=True)]
                for name, values in sample.token_fields.items()
            },
        )
        for sample in samples
    ]


def masks(
    name: str, samples: Sequence[Sample], evaluate: Callable[[Sequence[Sample]], dict[str, float]]
) -> Line:
    """Return the line of the proof that masked tokens reach neither the loss nor its reports.
    Some tokens are masked for this, since in most batches all tokens of a completion count. On a
    device that is not deterministic, only a NaN in the result is a fault."""
    samples = thinned(samples)
    masked = sum(sample.mask.count(False) for sample in samples)
    line: Line = {"proof": "masks", "loss": name, "sequences": len(samples), "masked": masked}
    before, after = evaluate(samples), evaluate(with_nan(samples))
    changed = _differing(before, after)
    if changed and (unsteady := _differing(before, evaluate(samples))):
        changed = [key for key in changed if math.isnan(after[key]) and not math.isnan(before[key])]
        if not changed:
            names = ", ".join(unsteady)
            why = f"two evaluations of one batch give different bits of {names} on this device"
            return line | {"holds": None, "changed": [], "why": why}
    return line | {"holds": not changed, "changed": changed}


def _differing(one: Mapping[str, float], other: Mapping[str, float]) -> list[str]:
    return sorted(key for key in one if repr(one[key]) != repr(other[key]))


def compare(
    loss: LossFunction, hidden: Tensor, weight: Tensor, *, labels: Tensor, temperature: float,
    shared: Mapping[str, Any], given: Mapping[str, Any],
) -> Compared:  # fmt: skip
    """Compute the loss of a microbatch as in training, and in float64. `given` has the fields of
    the microbatch, `shared` the options of a vocabulary that is split over ranks."""
    if not hidden.shape[0]:
        return Compared(why=ELSEWHERE)
    if loss.of_values_alone:
        return Compared(why="it reads values alone, and runs no kernel")
    if loss.spec.python:
        return Compared(why="a loss in Python")
    group = shared.get("group")
    device = _device(hidden, shared.get("vocabulary", weight.shape[0]))
    if _anywhere(device is None, group, hidden.device):
        return Compared(why="too large for this machine in float64")
    assert device is not None
    fields = {k: v.detach() if isinstance(v, Tensor) else v for k, v in given.items()}
    value, gradient, kernel = _run(loss, hidden, weight, labels, temperature, fields, shared=shared)
    if group is not None:
        weight = _gathered(weight, shared["vocabulary"], group)
        if dist.get_rank(group) > 0:  # all ranks of the group have the same tokens
            return Compared(why=ELSEWHERE)
    wide = {k: _wide(v, device) for k, v in fields.items()}
    hidden_wide, weight_wide = _wide(hidden, device), _wide(weight, device)
    labels = labels.to(device)
    chunk = max(1, CHUNK // weight.shape[0]) if device.type == "cuda" else None
    wanted, exact, _ = _run(
        loss.using("torch"), hidden_wide, weight_wide, labels, temperature, wide, chunk_rows=chunk
    )
    apart = float((gradient.to(device, torch.float64) - exact).norm())
    norm, bounds, noise = float(exact.norm()), BOUNDS.get(hidden.dtype, ROUNDED), 0.0
    if apart > bounds[1] * norm:
        error = LOGPROB_ERRORS.get(hidden.dtype, LOGPROB_ERROR)
        noise = error * _mean_logprob_gradient(hidden_wide, weight_wide, labels, temperature)
    return Compared(
        kernel=kernel, tokens=hidden.shape[0], value=value, wanted=wanted, apart=apart, norm=norm,
        bounds=bounds, noise=noise,
    )  # fmt: skip


def _mean_logprob_gradient(
    hidden: Tensor, weight: Tensor, labels: Tensor, temperature: float
) -> float:
    """Return the norm of the gradient of the mean log-prob of the labels with respect to the hidden
    states [rows, width]. `weight` is [vocabulary, width]; all are in float64."""
    squares = 0.0
    rows = max(1, CHUNK // weight.shape[0])
    parts = torch.split(hidden, rows), torch.split(labels.clamp(min=0), rows)
    for part, wanted in zip(*parts, strict=True):
        shares = torch.softmax(part @ weight.T / temperature, dim=-1)
        squares += float((weight[wanted] - shares @ weight).square().sum())
    return math.sqrt(squares) / (len(hidden) * temperature)


def line_of(name: str, found: Collection[Compared], sequences: int) -> Line:
    """Return the line of the proof that a loss equals its expression in float64. `found` are the
    comparisons of all microbatches of all ranks."""
    line: Line = {"proof": "loss", "loss": name, "sequences": sequences}
    made = [each for each in found if not each.why]
    if not made:
        why = sorted({each.why for each in found} - {ELSEWHERE})
        return line | {"holds": None, "why": "; ".join(why)}
    value, wanted = math.fsum(e.value for e in made), math.fsum(e.wanted for e in made)
    apart = math.hypot(*(e.apart for e in made))
    norm = math.hypot(*(e.norm for e in made))
    most_value, most_gradient = made[0].bounds
    holds = abs(value - wanted) <= most_value * max(1.0, abs(wanted))
    scale = max(norm, math.hypot(*(e.noise for e in made)) / most_gradient)
    holds = holds and apart <= most_gradient * scale
    return line | {
        "holds": holds, "kernel": made[0].kernel, "tokens": sum(e.tokens for e in made),
        "value": value, "value_float64": wanted, "gradient_norm": norm,
        "gradient_apart": apart / scale if scale else apart, "bounds": [most_value, most_gradient],
    }  # fmt: skip


def _run(
    loss: LossFunction, hidden: Tensor, weight: Tensor, labels: Tensor, temperature: float,
    given: Mapping[str, Any], chunk_rows: int | None = None,
    shared: Mapping[str, Any] | None = None,
) -> tuple[float, Tensor, str]:  # fmt: skip
    """Return the value, the gradient with respect to the hidden states, and the kernel that ran."""
    with torch.enable_grad():
        rows = hidden.detach().requires_grad_()
        out = loss.linear(
            hidden=rows, weight=weight.detach(), labels=labels, temperature=temperature,
            chunk_rows=chunk_rows, **(shared or {}), **given,
        )  # fmt: skip
        (gradient,) = torch.autograd.grad(out.loss, rows)
    return float(out.loss.detach()), gradient, out.kernel


def _wide(value: Any, device: torch.device) -> Any:
    if isinstance(value, Mapping):
        return {name: _wide(each, device) for name, each in value.items()}
    if not isinstance(value, Tensor):
        return value
    return value.detach().to(device, torch.float64 if value.is_floating_point() else value.dtype)


def _device(hidden: Tensor, vocabulary: int) -> torch.device | None:
    """Return a device that can compute the float64 products; None if there is none."""
    elements = vocabulary * hidden.shape[1]
    if hidden.is_cuda:
        free, _ = torch.cuda.mem_get_info(hidden.device)
        if free > 4 * 8 * elements + 8 * 8 * CHUNK:
            return hidden.device
    small = 6.0 * hidden.shape[0] * elements <= MOST_ON_CPU
    return torch.device("cpu") if small else None


def _anywhere(mine: bool, group: Any, device: torch.device) -> bool:
    """True if `mine` is true on any rank of the group (a collective)."""
    if group is None:
        return mine
    found = torch.tensor(mine, dtype=torch.int32, device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    return bool(found)


def _gathered(weight: Tensor, vocabulary: int, group: Any) -> Tensor:
    """Return the whole weight, [vocabulary, hidden], of which each rank of the group has the rows
    that torch.chunk gives it."""
    ranks = dist.get_world_size(group)
    largest = -(-vocabulary // ranks)
    padded = weight.new_zeros(largest, weight.shape[1])
    padded[: len(weight)] = weight.detach()
    parts = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(parts, padded, group=group)
    return torch.cat(parts)[:vocabulary]
