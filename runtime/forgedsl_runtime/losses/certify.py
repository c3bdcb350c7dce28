"""Compare a loss with a function in Python on random batches: value, and gradient.

    LossFunction, fn --a batch of each stage, in float64--> Verdict: equal, or where and how not

Each stage adds one thing to the batches of the stage before: several sequences, other lengths,
ratios other than 1, and so on. So the first stage in which the losses differ says what they treat
differently.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from forgedsl_runtime.losses.batch import ROW_STATISTICS
from forgedsl_runtime.losses.function import LossFunction

Function = Callable[..., Any]
LOGPROBS = ("behavior", "proximal", "ref")
"""fields that hold log-probs of other policies"""
TIMES = 3
"""batches of each stage"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Random batches of one kind. `spread` is the standard deviation of log-ratios."""

    name: str
    sequences: int = 6
    tokens: int = 8
    lengths: bool = True
    holes: bool = True
    spread: float = 0.0
    negative: bool = True


STAGES = (
    Stage(name="one sequence of one token", sequences=1, tokens=1, lengths=False, holes=False,
          negative=False),
    Stage(name="a negative advantage", sequences=1, tokens=1, lengths=False, holes=False),
    Stage(name="several tokens", sequences=1, lengths=False, holes=False),
    Stage(name="several sequences", lengths=False, holes=False),
    Stage(name="sequences of different lengths", holes=False),
    Stage(name="masked tokens inside sequences"),
    Stage(name="ratios near 1", spread=0.02),
    Stage(name="ratios of 0.7 to 1.4", spread=0.2),
    Stage(name="ratios of 0.1 to 10", spread=1.0),
)  # fmt: skip
LARGE, SEED = 48, 1_000_000
"""number of sequences and seed of the batch in which a difference is examined"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch in float64. Gradients are taken with respect to `statistics`; `inputs` are data."""

    statistics: Mapping[str, Tensor]
    inputs: Mapping[str, Tensor]
    mask: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of a comparison. `what` is "" if nothing differs, else `value` or `gradient by NAME`.
    `stage` is the first kind of batch that differs, `ours` and `theirs` are the values of the two
    losses there, and `how` has sentences on the difference. `largest` is the largest relative
    difference in the batches whose difference is within the tolerance. `by` names the statistics
    whose gradients were compared."""

    batches: int
    largest: float
    by: tuple[str, ...]
    what: str = ""
    stage: str = ""
    ours: float | None = None
    theirs: float | None = None
    how: tuple[str, ...] = field(default=())


class CallError(Exception):
    """The function cannot be called with the fields of the loss, or its result is no loss."""


def certify(
    loss: LossFunction, fn: Function, *, names: Mapping[str, str], tolerance: float
) -> Verdict:
    """Compare a loss with `fn`, which gets the fields of the loss by the names of its parameters;
    `names` maps parameters with other names to fields. Tensors are `[B, T]` and `[B]`. For a loss
    of pairs, each field is passed as `NAME_chosen` and `NAME_rejected`, `[P, T]`. `fn` returns the
    loss, or a tuple that begins with it.

    Raises:
        CallError: the function has a parameter that is no field, fails, or returns no scalar.
    """
    check(loss, fn, names)
    count, largest = 0, 0.0
    by = tuple(f.name for f in loss.fields if f.diff)
    for stage in STAGES:
        for _ in range(TIMES):
            batch = draw(loss, stage, seed=count)
            count += 1
            mine, yours = _ours(loss, batch), _theirs(loss, fn, batch, names)
            far = {name: _apart(mine[name], yours[name]) for name in mine}
            wrong = next((name for name, each in far.items() if not each <= tolerance), None)
            if wrong is not None:
                how = tuple(_how(loss, fn, batch, stage, names, tolerance))
                return Verdict(
                    batches=count, largest=largest, by=by, what=wrong, stage=stage.name,
                    ours=float(mine["value"]), theirs=float(yours["value"]), how=how,
                )  # fmt: skip
            largest = max(largest, *far.values())
    return Verdict(batches=count, largest=largest, by=by)


def check(loss: LossFunction, fn: Function, names: Mapping[str, str]) -> None:
    """Check that every parameter of `fn` is a field of the loss.

    Raises:
        CallError: a parameter without a default is no field, or `names` maps a parameter to
            something that is no field.
    """
    known = _known(loss)
    for parameter in inspect.signature(fn).parameters.values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        name = names.get(parameter.name, parameter.name)
        if name not in known and (
            parameter.name in names or parameter.default is inspect.Parameter.empty
        ):
            raise CallError(
                f"`{parameter.name}` of the function is no field of the loss, which has "
                f"{', '.join(known)}; say what it is with --name {parameter.name}=FIELD"
            )


def _known(loss: LossFunction) -> list[str]:
    fields = [f.name for f in loss.fields]
    fields += [] if "mask" in fields else ["mask"]
    if not loss.paired:
        return fields
    return [f"{name}_{side}" for name in fields for side in ("chosen", "rejected")]


def draw(loss: LossFunction, stage: Stage, *, seed: int, sequences: int = 0) -> Batch:
    """Return a random batch of a stage; for a loss of pairs, two sequences for each pair."""
    rng = torch.Generator().manual_seed(seed)
    count = (sequences or stage.sequences) * (2 if loss.paired else 1)
    shape = (count, stage.tokens)

    def noise(*size: int) -> Tensor:
        return torch.randn(*size, generator=rng, dtype=torch.float64)

    lengths = torch.full((count,), stage.tokens)
    if stage.lengths:
        lengths = torch.randint(1, stage.tokens + 1, (count,), generator=rng)
        lengths[0], lengths[-1] = stage.tokens, 1 + stage.tokens // 2
    mask = torch.arange(stage.tokens) < lengths[:, None]
    if stage.holes:
        mask &= (torch.rand(shape, generator=rng) > 0.2) | (torch.arange(stage.tokens) == 0)
    logprob = -(0.5 * noise(*shape)).exp()
    found: dict[str, Tensor] = {}
    for each in loss.fields:
        size = shape if "T" in each.axes else shape[:1]
        if "P" in each.axes and "T" not in each.axes:
            size = (count // 2,)
        if each.name == "mask":
            continue
        if each.name == "logprob":
            value = logprob
        elif each.name in LOGPROBS and "T" in each.axes:
            value = (logprob - stage.spread * noise(*size)).clamp(max=-1e-6)
        elif each.dtype == "bool":
            value = noise(*size) > 0
        elif each.name == "entropy":
            value = noise(*size).exp()
        else:
            value = noise(*size)
            if not stage.negative and each.name == "adv":
                value = value.abs()
            elif stage.sequences == 1 and each.name == "adv":
                value = -value.abs()
        found[each.name] = value
    by = {f.name for f in loss.fields if f.diff}
    return Batch(
        statistics={n: v for n, v in found.items() if n in by},
        inputs={n: v for n, v in found.items() if n not in by}, mask=mask,
    )  # fmt: skip


def _ours(loss: LossFunction, batch: Batch) -> dict[str, Tensor]:
    """Return the value, and the gradients by name."""
    inputs = {n: v for n, v in batch.inputs.items() if n not in ROW_STATISTICS}
    data = {n: v for n, v in batch.inputs.items() if n in ROW_STATISTICS}
    labels = torch.zeros_like(batch.mask, dtype=torch.int64)
    value, _, gradients = loss.at_statistics(
        {**batch.statistics, **data}, labels=labels, mask=batch.mask, **inputs
    )
    return {"value": value} | {f"gradient by {n}": gradients[n] for n in batch.statistics}


def _theirs(
    loss: LossFunction, fn: Function, batch: Batch, names: Mapping[str, str]
) -> dict[str, Tensor]:
    """Return what the function gives for a batch."""
    by = {n: v.clone().requires_grad_() for n, v in batch.statistics.items()}
    given: dict[str, Tensor] = {**batch.inputs, **by, "mask": batch.mask}
    if loss.paired:
        given = {
            f"{name}_{side}": v[first::2] if v.shape[0] == len(batch.mask) else v
            for name, v in given.items()
            for first, side in enumerate(("chosen", "rejected"))
        }
    parameters = inspect.signature(fn).parameters
    chosen = {names.get(name, name): name for name in parameters}
    try:
        found = fn(**{chosen[name]: value for name, value in given.items() if name in chosen})
    except Exception as error:
        from forgedsl_runtime.tracebacks import described

        shapes = ", ".join(f"{n} {list(v.shape)}" for n, v in given.items() if n in chosen)
        raise CallError(
            f"the function failed: {described(error)}; it was given {shapes or 'nothing'}"
        ) from error
    value = found[0] if isinstance(found, tuple | list) else found
    if not isinstance(value, Tensor) or value.dim():
        kind = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise CallError(f"the function must return a scalar tensor, but returns {kind}")
    if not value.requires_grad:
        raise CallError(
            f"the result of the function has no gradient by {' or '.join(by)}: use operations of "
            "torch from the arguments to the result"
        )
    gradients = torch.autograd.grad(value, list(by.values()), allow_unused=True)
    made = {
        f"gradient by {name}": torch.zeros_like(v) if g is None else g
        for (name, v), g in zip(by.items(), gradients, strict=True)
    }
    return {"value": value.detach()} | made


def _apart(mine: Tensor, yours: Tensor) -> float:
    """Return the largest absolute difference, divided by the largest absolute value."""
    mine, yours = mine.double(), yours.double()
    scale = max(float(mine.abs().max()), float(yours.abs().max()))
    far = float((mine - yours).abs().max())
    return far / scale if scale > 0 else far


def _how(
    loss: LossFunction, fn: Function, batch: Batch, stage: Stage, names: Mapping[str, str],
    tolerance: float,
) -> Iterator[str]:  # fmt: skip
    """Yield sentences on how the losses differ, in this batch and in a large one of its stage."""
    large = draw(loss, stage, seed=SEED, sequences=LARGE)
    for each in (large, batch):
        mine, yours = _ours(loss, each), _theirs(loss, fn, each, names)
        if (factor := _factor(mine, yours, tolerance)) is not None:
            yield f"the function gives {factor:.6g} times the loss{_meaning(factor, each)}"
            return
    far = {name: _apart(mine[name], yours[name]) > tolerance for name in mine}
    if far["value"] and sum(far.values()) == 1:
        yield "the gradients are equal: the values differ by a term without gradient"
        return
    if not far["value"]:
        yield (
            "the values are equal: one of the two holds something constant (`stop`, `detach`) that "
            "the other differentiates"
        )
    mine, yours = _ours(loss, large), _theirs(loss, fn, large, names)
    for name in mine:
        if name != "value" and _apart(mine[name], yours[name]) > tolerance:
            yield from _tokens(mine[name], yours[name], name, large, tolerance)
            return


def _tokens(
    mine: Tensor, yours: Tensor, name: str, batch: Batch, tolerance: float
) -> Iterator[str]:
    """Yield at which tokens gradients differ, and what these tokens have in common."""
    if weight := _by_length(mine, yours, batch.mask, tolerance):
        yield weight
        return
    wrong = (mine - yours).abs() > tolerance * float(torch.maximum(mine.abs(), yours.abs()).max())
    row, column = (int(i) for i in wrong.nonzero()[0])
    yield (
        f"{name}: differs at {int(wrong.sum())} of {wrong.numel()} positions of a larger batch; at "
        f"the first it is {float(mine[row, column]):.6g} in the file, "
        f"{float(yours[row, column]):.6g} in the function"
    )
    masked = wrong & ~batch.mask
    if bool(masked.any()):
        yield f"{int(masked.sum())} of them are masked: the function reads tokens that do not count"
        return
    yield from _common(wrong, ~wrong & batch.mask, batch)


def _factor(
    mine: Mapping[str, Tensor], yours: Mapping[str, Tensor], tolerance: float
) -> float | None:
    """Return c if the value and all gradients of the function are c times those of the loss."""
    if not float(mine["value"]):
        return None
    factor = float(yours["value"]) / float(mine["value"])
    equal = all(_apart(factor * mine[name], yours[name]) <= tolerance for name in mine)
    return factor if equal and math.isfinite(factor) and factor else None


def _meaning(factor: float, batch: Batch) -> str:
    """Explain a factor between two losses, if it is a count of the batch; else return ""."""
    count, width = batch.mask.shape
    tokens, sequences = int(batch.mask.sum()), int(batch.mask.any(1).sum())
    known = {
        -1.0: "another sign: the function is maximized",
        float(tokens): "a sum over tokens in place of a mean",
        float(sequences): "a sum over sequences in place of a mean",
        tokens / sequences: "it divides by sequences, the loss by tokens",
        sequences / tokens: "it divides by tokens, the loss by sequences",
        tokens / (count * width): "it divides by all positions, masked ones too",
        1 / width: "it divides by the width of the batch",
    }
    for number, text in known.items():
        if number != 1 and math.isclose(factor, number, rel_tol=1e-6):
            return f": {text}"
    return ""


def _by_length(mine: Tensor, yours: Tensor, mask: Tensor, tolerance: float) -> str:
    """Return a sentence if each sequence differs by a factor that its length explains."""
    kept = mask & (mine.abs() > 0)
    if not bool(kept.any()) or bool((yours[~mask].abs() > 0).any()):
        return ""
    lengths = mask.sum(1, keepdim=True).double().expand_as(mine)[kept]
    ratio = yours[kept] / mine[kept]
    for text, power in (
        ("the function gives each token the same weight, the loss each sequence", 1),
        ("the function gives each sequence the same weight, the loss each token", -1),
    ):
        level = ratio / lengths**power
        if float(level.max() - level.min()) <= 1e3 * tolerance * float(level.abs().max()):
            return f"{text}: gradients differ by a factor that depends only on the length"
    return ""


def _common(wrong: Tensor, right: Tensor, batch: Batch) -> Iterator[str]:
    """Yield what the tokens with different gradients have in common, but not with the others."""
    adv = batch.inputs.get("adv")
    if adv is None or adv.dim() != 1 or len(adv) != len(wrong):
        if text := _ratio(wrong, right, batch):
            yield f"all of them have {text}"
        return
    sign = adv.sign()[:, None].expand_as(wrong)
    sides = [
        (f"a {word} advantage", sign == number)
        for number, word in ((1, "positive"), (-1, "negative"), (0, "zero"))
        if bool((wrong & (sign == number)).any())
    ]
    told = []
    for text, side in sides:
        ratio = _ratio(wrong & side, right & side, batch)
        alone = len(sides) == 1 and bool((right & ~side).any())
        if ratio or alone:
            told.append(f"{text} and {ratio}" if ratio else text)
    if told and len(told) == len(sides):
        yield f"all of them have {', or '.join(told)}"


def _ratio(wrong: Tensor, right: Tensor, batch: Batch) -> str:
    """Return a range of ratios that has all the wrong tokens and no right one; "" if none."""
    for other in LOGPROBS:
        if "logprob" not in batch.statistics or other not in batch.inputs:
            continue
        ratio = (batch.statistics["logprob"] - batch.inputs[other]).exp()
        low, high, inside = float(ratio[wrong].min()), float(ratio[wrong].max()), ratio[right]
        below, above = inside[inside < low], inside[inside > high]
        if len(below) + len(above) < len(inside) or not len(inside):
            continue
        first = _between(float(below.max()), low) if len(below) else ""
        last = _between(high, float(above.min())) if len(above) else ""
        bounds = f"between {first} and {last}" if first and last else ""
        return f"a ratio to `{other}` {bounds or (f'above {first}' if first else f'below {last}')}"
    return ""


def _between(low: float, high: float) -> str:
    """Return the number with the fewest decimals between `low` and `high`."""
    for digits in range(6):
        number = round((low + high) / 2, digits)
        if low <= number <= high:
            return f"{number:.{digits}f}"
    return f"{(low + high) / 2:.6g}"
