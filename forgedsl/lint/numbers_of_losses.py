"""Numbers of losses and advantages that must fit the scores, the run and each other.

View --trees of losses and advantages--> Number
     LOSS_RANGES: one row each kind of number, as in `numbers.py`

The rows read what a term does (its gradient, the factors of a recurrence), not how it is named. So
they find a number in an argument, in a loss of the file, and in a function that the loss calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from forgedsl.ir.program import Decl
from forgedsl.lint.losses import LossView
from forgedsl.lint.number_ranges import INF, Number, NumberRange
from forgedsl.lint.prompts import row_count
from forgedsl.lint.rewards import score_interval
from forgedsl.lint.sources import parts
from forgedsl.lint.terms import (
    discounts,
    entropy_weight,
    largest_advantage,
    settles_at,
    value_limits,
    value_weight,
)
from forgedsl.lint.view import View
from forgedsl.losses.tree import Tree, reachable
from forgedsl.source import Span
from forgedsl.types.flow import Role

NO_COEFFICIENT = 0.99
"""limit of the gradient of the KL term relative to that of the advantage. Above it, no row applies:
the term probably has no coefficient, which other rules report, or another denominator"""
SCALED, LARGEST = 10.0, 1e4
"""Advantages of 10 or more, and of 1 / 10 or less, are taken to have the scale of scores. Those of
10,000 or more are taken for a mistake, not for a scale."""
SEVERAL = 100
"""updates from which on a run is more than a trial"""
SHORTEST = 32
"""smallest divisor of a sum over tokens that is taken for a length"""


def _losses(view: View) -> Iterator[LossView]:
    for loss in view.losses:
        if loss.step is not None:
            yield loss


def _parameter(loss: LossView, name: str) -> float | None:
    """Return the value of a parameter of a loss of the library."""
    if not loss.function.module.startswith("std/"):
        return None
    for field in loss.function.fields:
        value = getattr(field.default, "value", None)
        if field.name == name and isinstance(value, int | float):
            return float(value)
    return None


def _scores(view: View) -> Iterator[tuple[float, float]]:
    """Yield the bounds of the scores of the flow."""
    for step in view.program.flow:
        found = score_interval(step.receiver, view) if Role.SCORES in step.roles else None
        if found is not None and found.is_bounded and found.hi > found.lo:
            yield found.lo, found.hi


# ---- critics


def _clip_of_values(view: View) -> Iterator[Number]:
    for loss in _losses(view):
        for clip in loss.cached(value_limits)[:1]:
            for low, high in _scores(view):
                message = (
                    f"a value may move by {clip:g} in a step, and scores go from {low:g} to "
                    f"{high:g}: the critic takes many steps to follow them"
                )
                yield Number(value=clip / (high - low), span=loss.place, message=message)


def _error_of_values(view: View) -> Iterator[Number]:
    for loss in _losses(view):
        weight = loss.cached(value_weight)
        given = _parameter(loss, "value_coef")
        if weight is None or (given is not None and given > 2.0):  # N906 reports those
            continue
        ranges = [high - low for low, high in _scores(view)] or [1.0]
        message = (
            f"an error of the critic as large as the range of scores, {max(ranges):g}, has "
            f"{weight * max(ranges):.2g} times the gradient of an advantage of 1"
        )
        yield Number(value=weight * max(ranges), span=loss.place, message=message)


def _discount(view: View) -> Iterator[Number]:
    longest = view.max_tokens
    for step, rate in discounts(view):
        if longest is not None and 0 < rate.gamma < 1:
            left, name = rate.gamma**longest, step.receiver
            message = (
                f"`{name}` discounts by {rate.gamma:g} per token: {left:.1%} of a score reaches "
                f"the first of {longest} tokens"
            )
            given = step.settings.get("gamma")
            span = given.origin.span if given is not None else None
            yield Number(value=left, span=span or step.span, message=message)


def _two_discounts(view: View) -> Iterator[Number]:
    found = list(discounts(view))
    for step, rate in found[1:]:
        other, first = found[0]
        message = (
            f"`{step.receiver}` discounts by {rate.gamma:g}, and `{other.receiver}` by "
            f"{first.gamma:g}"
        )
        yield Number(value=abs(rate.gamma - first.gamma), span=step.span, message=message)


def _lambda(view: View) -> Iterator[Number]:
    for step, rate in discounts(view):
        if rate.lam is not None:
            message = (
                f"lambda = {rate.lam:.3g} makes the advantage of `{step.receiver}` almost "
                "the one-step TD error of the critic"
            )
            yield Number(value=rate.lam, span=step.span, message=message)


# ---- weights of terms


def _entropy(view: View) -> Iterator[Number]:
    for loss in _losses(view):
        weight, given = loss.cached(entropy_weight), _parameter(loss, "entropy_coef")
        if weight > 0 and (given is None or given <= 0.1):  # N906 reports larger ones
            message = f"the entropy counts {weight:.2g} times as much as the advantage"
            yield Number(value=weight, span=loss.place, message=message)


def _divergence(view: View) -> Iterator[Number]:
    for loss in _losses(view):
        for ratio, most, message in _pulled(view, loss):
            if most < SCALED:
                yield Number(value=ratio, span=loss.place, message=message)


def _divergence_of_large_scores(view: View) -> Iterator[Number]:
    for loss in _losses(view):
        for ratio, most, message in _pulled(view, loss):
            if most >= SCALED:
                yield Number(value=ratio, span=loss.place, message=message)


def _pulled(view: View, loss: LossView) -> tuple[tuple[float, float, str], ...]:
    """Return what `_pulls` yields. It is cached, because two rows use it."""
    key = (_pulls, loss.name)
    if key not in view.answers:
        view.answers[key] = tuple(_pulls(view, loss))
    found: tuple[tuple[float, float, str], ...] = view.answers[key]
    return found


def _pulls(view: View, loss: LossView) -> Iterator[tuple[float, float, str]]:
    """Yield (ratio, advantage, message). The ratio is the gradient of the divergence, relative to
    that of the advantage. This is 1, or the flow's largest advantage if it has another scale."""
    given = _parameter(loss, "beta")
    if loss.is_pairs or (given is not None and given > 1.0):  # N906 reports those of the library
        return
    pull, pushed = loss.cached(_slopes)
    if not 0 < pull < NO_COEFFICIENT * pushed:
        return
    most = largest_advantage(view, loss)
    most = most if most <= 1 / SCALED or SCALED <= most < LARGEST else 1.0
    ratio = pull / pushed / most
    message = (
        f"at a log-ratio of 1 to the reference, the KL term of loss `{loss.name}` has {ratio:.2g} "
        f"times the gradient of an advantage of {most:.2g}"
    )
    yield ratio, most, message + ("" if most == 1.0 else ", the largest here")


def _slopes(loss: LossView) -> tuple[float, float]:
    """Return the slope of the divergence at a log-ratio of 1, and that of an advantage of 1."""
    weights = [name for name in loss.fields("weight") if name in loss.read]
    references = [name for name in loss.fields("reference") if name in loss.read]
    if "logprob" not in loss.read or not weights or len(references) != 1:
        return 0.0, 0.0
    pull = loss.slope(weight=0.0, distance=1.0) - loss.slope(weight=0.0, distance=0.0)
    return abs(pull), abs(loss.gain())


def _count_of_updates(view: View) -> Iterator[Number]:
    schedule = view.program.schedule
    steps = schedule.settings["steps"].value if schedule is not None else None
    for loss in _losses(view) if isinstance(steps, int) else ():
        total = (steps or 0) * loss.updates
        if loss.updates < 2 or "num_steps" not in loss.read:
            continue
        over = settles_at(loss, total)
        if over is not None and total / 2 <= over * loss.updates <= total:
            message = (
                f"`num_steps` counts updates: loss `{loss.name}` stops changing after {over}, and "
                f"{steps} steps of {loss.updates} updates are {total}"
            )
            span = next(_readers(loss.tree, "num_steps"), loss.place)
            yield Number(value=over / total, span=span, message=message)


def _readers(tree: Tree, field: str) -> Iterator[Span]:
    """Yield the spans of the operations that read a field."""
    inputs = {n for n, value in enumerate(tree.values) if value.attr == field}
    for node, value in enumerate(tree.values):
        if value.op in ("float", "expand") and inputs.intersection(value.args):
            inputs.add(node)
        elif inputs.intersection(value.args):
            yield value.span


def _sum_of_tokens(view: View) -> Iterator[Number]:
    for loss in _losses(view):
        longest = view.program.services[loss.step.receiver].settings.get("batch.seq_len")  # type: ignore[union-attr]
        learned = loss.is_pairs or loss.samplers or loss.fields("weight") or loss.older
        if learned or longest is None or not isinstance(longest.value, int):
            continue
        if loss.cached(_sums_tokens):
            message = (
                f"loss `{loss.name}` adds up the tokens of a demonstration: one of "
                f"{longest.value} tokens has {longest.value} times the gradient of one of 1"
            )
            yield Number(value=float(longest.value), span=loss.place, message=message)


def _sums_tokens(loss: LossView) -> bool:
    """True if the loss is a sum over the tokens of a sequence, divided by the sequences alone."""
    values = loss.tree.values
    for node in loss.objective:
        value = values[node]
        if value.op != "div" or values[value.args[1]].attr != "num_sequences":
            continue
        pending = [value.args[0]]
        while pending:
            inner = values[pending.pop()]
            summed = inner.op in ("total_sum", "seq_sum") and values[inner.args[0]].type.diff
            if summed and values[inner.args[0]].type.tokens:
                return True
            through = ("neg", "add", "sub", "mul", "expand", "total_sum")
            pending += inner.args if inner.op in through else ()
    return False


def _budget(view: View) -> Iterator[Number]:
    new = view.max_tokens or 0
    for loss in _losses(view) if new and view.turns.hi == 1 else ():
        budget = loss.cached(_divisor_of_sums)
        if budget is not None:
            message = (
                f"loss `{loss.name}` divides the sum over an answer by {budget:g}, and an answer "
                f"may have {new} tokens"
            )
            yield Number(value=budget / new, span=loss.place, message=message)


def _divisor_of_sums(loss: LossView) -> float | None:
    """Return the number by which the sum over the tokens of a sequence is divided, if it is large
    enough to be a length."""
    values = loss.tree.values

    def number(node: int) -> float:
        found = values[node].attr if values[node].op == "const" else 0.0
        return float(found) if isinstance(found, int | float) else 0.0

    for node in sorted(loss.objective) if not loss.is_pairs else ():
        if values[node].op != "div" or not values[node].type.diff:
            continue
        summed, divisor = (_factor(loss.tree, each) for each in values[node].args)
        parts = values[divisor].args if values[divisor].op == "mul" else ()
        lengths = [number(n) for n in (divisor, *parts)]
        is_sum = values[summed].op == "seq_sum" or len(values[summed].args) == 2
        if is_sum and values[summed].op in ("seq_sum", "total_sum") and max(lengths) >= SHORTEST:
            return max(lengths)
    return None


def _factor(tree: Tree, node: int) -> int:
    """Return what a value with a gradient is made of, without signs and constant factors."""
    value = tree.values[node]
    while value.op in ("neg", "expand", "mul") and value.type.diff:
        node = next(arg for arg in value.args if tree.values[arg].type.diff)
        value = tree.values[node]
    return node


def _horizon(view: View) -> Iterator[Number]:
    turns, new = view.turns.hi, view.max_tokens or 0
    for loss in _losses(view) if new and 1 < turns < INF else ():
        horizon = _parameter(loss, "horizon")
        if horizon is not None:
            message = (
                f"`horizon = {horizon:g}` is the length of one turn, and a trajectory has up to "
                f"{turns:g} turns of {new} tokens"
            )
            yield Number(value=horizon / (turns * new), span=loss.place, message=message)


# ---- pairs


def _margin_of_means(view: View) -> Iterator[Number]:
    for loss, beta, counts in _margins(view):
        if counts > 1:
            message = (
                f"loss `{loss.name}` compares mean log-probs with beta = {beta:.2g}: their margin "
                "is small, so the loss hardly changes"
            )
            yield Number(value=beta, span=loss.place, message=message)


def _margin_of_sums(view: View) -> Iterator[Number]:
    for loss, beta, counts in _margins(view):
        if counts == 0 and loss.fields("reference"):
            message = (
                f"loss `{loss.name}` compares sums of log-probs with beta = {beta:.2g}: their "
                "margin is large, so a pair stops changing the policy after a few updates"
            )
            yield Number(value=beta, span=loss.place, message=message)


def _margins(view: View) -> Iterator[tuple[LossView, float, int]]:
    """Yield losses that compare the log-probs of both answers under a sigmoid, with the factor
    beta, and how many of the sides are means over their tokens."""
    for loss in _losses(view):
        values = loss.tree.values
        inside = [values[n].args[0] for n in loss.objective if values[n].op == "log_sigmoid"]
        if not loss.is_pairs or not inside or "logprob" not in loss.read:
            continue
        means = [
            node
            for node in reachable(values, inside)
            if values[node].op == "div"
            and any(values[n].op == "seq_count" for n in reachable(values, [values[node].args[1]]))
        ]
        betas = [
            max(abs(loss.point(side=side)(node).slope) for node in inside)
            for side in ("chosen", "rejected")
        ]
        given = _parameter(loss, "beta")
        usual = given is None or given <= 10.0  # N906 reports larger ones
        if usual and math.isclose(*betas, rel_tol=1e-6) and betas[0] > 0:
            yield loss, betas[0], len(means)


def _passes_over_pairs(view: View) -> Iterator[Number]:
    schedule = view.program.schedule
    epochs = schedule.settings["epochs"] if schedule is not None else None
    if epochs is None or not isinstance(epochs.value, int | float):
        return
    for loss in _losses(view) if _is_of_pairs(view) and not _is_trial(view, epochs.value) else ():
        message = f"`{loss.name}` sees each pair {epochs.value:g} times"
        span = epochs.origin.span or loss.place
        yield Number(value=float(epochs.value), span=span, message=message)


def _is_trial(view: View, epochs: float) -> bool:
    """True if all passes over the pairs are fewer than SEVERAL updates, because a local file has
    only some rows."""
    for step in view.program.flow:
        dataset = view.program.datasets.get(step.receiver)
        if Role.PAIRS in step.roles and dataset is not None:
            files = [*parts(dataset.settings["source"].value)]
            rows = [row_count(view, part) for part in files]
            drawn = step.settings["count"].value
            if not rows or not all(rows) or sum(rows) * epochs >= SEVERAL * drawn:
                return False
    return True


def _is_of_pairs(view: View) -> bool:
    """True if the flow trains only on pairs, and no trainer is on a CPU."""
    trainers: list[Decl] = [view.program.services[step.receiver] for step in view.steps]
    devices = [trainer.settings["device"].value for trainer in trainers]
    tried = any(str(getattr(device, "name", device)) == "cpu" for device in devices)
    return not tried and all(loss.is_pairs for loss in _losses(view))


LOSS_RANGES = (
    NumberRange(name="clip of values", numbers=_clip_of_values, low=0.05,
        source="stable-baselines #216: the clip is a distance, so it follows the scale of scores",
        help="a value clip of about 0.2 of the range of scores, or scores from 0 to 1"),
    NumberRange(name="error of values", numbers=_error_of_values, low=1e-4, high=10.0,
        source="TRL has 0.1 and stable-baselines 0.5, for returns of about 1",
        help="a coefficient of 0.1 to 0.5, and scores from 0 to 1"),
    NumberRange(name="gamma over the horizon", numbers=_discount, low=0.1,
        source="rlhf-book #364: TRL, verl, OpenRLHF and DeepSpeed-Chat have 1",
        help="`gamma = 1.0`"),
    NumberRange(name="gamma in two places", numbers=_two_discounts, high=1e-9,
        source="1506.02438: advantages and targets of the critic have one discount",
        help="one parameter for both, `param gamma : float = 1.0`"),
    NumberRange(name="lam", numbers=_lambda, low=0.5,
        source="1506.02438 has 0.96 to 0.99, summarize-from-feedback #6 (2009.01325) 0.95",
        help="0.95, or 1.0"),
    NumberRange(name="updates of a step", numbers=_count_of_updates, low=0.6,
        source="the schedule of a coefficient is over after a part of the run",
        help="count with the updates of the run: steps times `epochs` times `minibatches`"),
    NumberRange(name="entropy", numbers=_entropy, high=0.03,
        source="verl #781: already 0.001 made the entropy explode; 2503.14476 has no such term",
        help="no entropy term; if the entropy falls, raise the upper bound of the clip to 1.28"),
    NumberRange(name="divergence", numbers=_divergence, high=0.5,
        source="2402.03300 has 0.04, TRL, verl and OpenRLHF 0 to 0.04",
        help="a `beta` of 0.001 to 0.1"),
    NumberRange(name="divergence of large scores", numbers=_divergence_of_large_scores, low=1e-3,
        source="2402.03300 has 0.04 for advantages of about 1",
        help="scores from 0 to 1, advantages divided by their spread, or a larger `beta`"),
    NumberRange(name="sum of tokens", numbers=_sum_of_tokens, high=64.0,
        source="nanochat #582, TRL #2995: demonstrations are learned by the mean over their tokens",
        help="`token_mean(-logprob, mask)`"),
    NumberRange(name="horizon", numbers=_horizon, low=0.5,
        source="2503.20783: the constant is the budget of a whole completion",
        help="`horizon` = `max_turns` times `max_tokens`"),
    NumberRange(name="budget of an answer", numbers=_budget, low=0.25,
        source="2503.20783: the constant is the budget of a whole completion",
        help="use one parameter for this number and for `max_tokens`"),
    NumberRange(name="margin of means", numbers=_margin_of_means, low=0.5,
        source="2405.14734 (SimPO): means over tokens go with a beta of 2 to 10, sums with 0.1",
        help="a beta of 2 to 10, or `sum(..., T, mask)` in place of `mean`"),
    NumberRange(name="margin of sums", numbers=_margin_of_sums, high=2.0,
        source="2405.14734 (SimPO): means over tokens go with a beta of 2 to 10, sums with 0.1",
        help="a beta of 0.01 to 0.5, or `mean(..., T, mask)` in place of `sum`"),
    NumberRange(name="passes over pairs", numbers=_passes_over_pairs, high=10.0,
        source="2305.18290 trains for one pass, TRL's recipes for 1 to 3",
        help="`epochs = 1` to 3"),
)  # fmt: skip
