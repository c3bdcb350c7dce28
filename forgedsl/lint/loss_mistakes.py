"""Tests for mistakes of a loss that several rules use: one rule reports the mistake, others then
stay silent.

LossView -> the value, advantage or bounds that show the mistake; None or () without a mistake
"""

import math
from collections.abc import Callable

from forgedsl.lint.losses import LossView
from forgedsl.losses.forward_mode import Point
from forgedsl.losses.tree import Tree, reachable

OTHER_RATIOS = 0.25, 4.0
"""ratios at which a loss is probed besides 1"""
LOG_RATIOS = 0.0, 1.5, -1.5
WIDEST, WIDEST_OF_SEQUENCE, LOWEST = 20.0, 0.05, 0.1
WRONG_WAY = ((1.0, 0.5), (1.0, 0.25), (-1.0, 1.5), (-1.0, 2.5))
"""(advantage, ratio) of tokens that moved against the advantage, not so far that dual clip acts"""
CLIPS = ("clamp", "min", "max")
STEP = 1e-5
DISTINCT_RATIOS = 1.0, 50.0
"""A value that equals the ratio at each of these ratios is the ratio itself."""
SCALES = ("neg", "expand", "stop", "float")


def wrong_sign_advantage(loss: LossView) -> float | None:
    """Return the advantage, 1 or -1, at which the gradient has the wrong sign; None if it never
    has."""
    if "logprob" not in loss.read:
        return None
    gain = loss.gain()
    if gain > 1e-9 or (loss.is_pairs and gain > -1e-9 and loss.slope(side="rejected") < 1e-9):
        return 1.0
    if loss.is_pairs:
        at = [loss.slope(side="rejected", distance=distance) for distance in LOG_RATIOS]
        alone = bool(loss.fields("reference")) and max(map(abs, at)) < 1e-9
        return -1.0 if alone or loss.slope(side="rejected") < -1e-9 else None
    if not any(name in loss.read for name in loss.fields("weight")):
        alone = not loss.fields("weight") and not loss.older and not loss.fields("reference")
        at = [loss.slope(logprob=logprob) for logprob in (-0.5, -1.0, -3.0)]
        return 1.0 if alone and max(map(abs, at)) < 1e-12 else None
    bad = loss.gain(weight=-1.0)
    for adv, here in ((1.0, gain), (-1.0, bad)):
        learns = any(abs(loss.gain(weight=adv, ratio=ratio)) > 1e-12 for ratio in OTHER_RATIOS)
        if max(abs(here), abs(loss.gain(weight=adv, logprob=-0.5))) < 1e-12 and learns:
            return adv  # no gradient on policy, but a gradient at other ratios
    if loss.slope(weight=-1.0) < 0.5 * loss.slope() < 0.0 and abs(bad) < 1e-9 < abs(gain):
        return -1.0  # all tokens are made likelier; the advantage only changes by how much
    return -1.0 if bad < -1e-9 else None


def turns_at(loss: LossView, test: Callable[[int], bool]) -> int | None:
    """Return the last update at which a test is false, if it is false at the first update and true
    at the last one of the run; None without such an update, or if the loss has no `num_steps`."""
    end = loss.updates_of_run
    if end < 2 or "num_steps" not in loss.read or loss.is_pairs or test(1) or not test(end):
        return None
    low, high = 1, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if test(middle) else (middle, high)
    return low


def wrong_clip_bounds(loss: LossView) -> tuple[tuple[int, float, float, str], ...]:
    """Return the clips of a ratio with wrong bounds: node, bounds, and what is wrong."""
    values, found = loss.tree.values, []
    if loss.is_pairs or not loss.fields("sampler"):
        return ()
    for node in sorted(loss.objective):
        value = values[node]
        bounds = [values[arg].attr for arg in value.args[1:]]
        if value.op != "clamp" or not all(isinstance(b, int | float) for b in bounds):
            continue
        low, high = float(bounds[0] or 0.0), float(bounds[1] or 0.0)
        at = [loss.point(ratio=ratio)(value.args[0]) for ratio in (1.0, 1.5)]
        if any(abs(x.value - r) > 1e-9 for x, r in zip(at, (1.0, 1.5), strict=True)):
            continue  # the clipped value is no ratio: a log-ratio, for example
        what = ""
        if not low <= 1.0 <= high:
            what = "an unchanged policy has ratio 1, which lies outside"
        elif low < 0.0 or high > WIDEST:
            what = "a ratio is never outside, so nothing is clipped"
        elif node in loss.live and value.type.diff and low < LOWEST and high <= 2.0:
            what = "nothing limits how much less likely bad tokens become"
        elif value.type.diff and value.type.tokens is None and high - 1.0 > WIDEST_OF_SEQUENCE:
            what = "the ratio of a sequence hardly ever leaves this range"
        elif value.type.tokens is None and high - 1.0 < WIDEST_OF_SEQUENCE and _sums(loss, node):
            what = (
                "a sum over the tokens leaves this range at the first update, their mean does not"
            )
        if what:
            found.append((node, low, high, what))
    return tuple(found)


def _sums(loss: LossView, node: int) -> bool:
    """True if a clipped ratio is the exponential of a sum of log-ratios, not of their mean."""
    values = loss.tree.values
    while values[node].op in ("clamp", "exp", "expand", *CLIPS):
        node = values[node].args[0]
    inside = {values[n].op for n in reachable(values, [node])}
    return "seq_sum" in inside and "seq_count" not in inside


def ratio_not_one(loss: LossView) -> int | None:
    """Return an exponential used as a ratio that is not 1 when policy and older weights agree."""
    if loss.is_pairs:
        added = any(_moves(loss, side) for side in ("chosen", "rejected"))
        return loss.tree.output("loss") if added and loss.fields("reference") else None
    roles = {name: role for name, role in loss.roles.items() if role != "count"}
    for node in sorted(loss.objective):
        if loss.tree.values[node].op != "exp":
            continue
        read = [roles[name] for name in read_inside(loss, node) if name in roles]
        if len(read) < 2 or not {"sampler", "reference", "weight"} & {*read}:
            continue
        at = [loss.point(logprob=logprob)(node).value for logprob in (-0.5, -2.0)]
        if any(abs(value - 1.0) > 1e-9 for value in at):
            return node
    return None


def _moves(loss: LossView, side: str) -> bool:
    """True if the slope with respect to an answer's log-prob changes with this log-prob, at a point
    where policy and reference agree."""
    slopes = [loss.slope(side=side, logprob=logprob) for logprob in (-0.5, -2.0, -30.0)]
    return max(slopes) - min(slopes) > 1e-9


def read_inside(loss: LossView, node: int) -> set[str]:
    """Return the fields that an exponential reads, except through another exponential."""
    values, found, pending = loss.tree.values, set(), [*loss.tree.values[node].args]
    while pending:
        value = values[pending.pop()]
        if value.op == "input":
            found.add(str(value.attr))
        elif value.op != "exp":
            pending += value.args
    return found


def one_sided_clip(loss: LossView) -> int | None:
    """Return the clip that alone zeroes the gradient of a token that moved the wrong way."""
    if loss.cached(wrong_sign_advantage) is not None:
        return None  # one mistake, one message
    if not loss.fields("sampler") or not loss.fields("weight") or "logprob" not in loss.read:
        return None
    clips = (_cut(loss, adv, ratio) for adv, ratio in WRONG_WAY)
    end = loss.tree.output("loss")
    learns = [abs(loss.gain(weight=adv, ratio=ratio)) > 1e-12 for adv, ratio in WRONG_WAY]
    stopped = not any(learns) and abs(loss.gain()) > 1e-12 and not _left_out(loss)
    return next((clip for clip in clips if clip is not None), end if stopped else None)


def _left_out(loss: LossView) -> bool:
    """True if tokens outside of a range are masked out on purpose: on both sides, for any
    advantage, they add nothing to the loss. (A clip would add a constant.)"""
    end = loss.tree.output("loss")
    outside = ((adv, ratio) for adv, wrong in WRONG_WAY for ratio in (wrong, 1 / wrong))
    return all(
        abs(loss.point(weight=adv, ratio=r)(end).value - loss.point(weight=0.0, ratio=r)(end).value)
        < 1e-12
        for adv, r in outside
    )


def _cut(loss: LossView, adv: float, ratio: float) -> int | None:
    """Return the clip that alone zeroes the gradient at this point, if one does."""
    end = loss.tree.output("loss")
    point = loss.point(weight=adv, ratio=ratio)
    if abs(point(end).slope) > 1e-12 or abs(loss.slope(weight=adv)) < 1e-12:
        return None
    for node in sorted(loss.objective):
        value = loss.tree.values[node]
        if value.op not in CLIPS or not value.type.diff:
            continue
        free = next((arg for arg in value.args if loss.tree.values[arg].type.diff), None)
        bounded = value.op == "clamp" or any(loss.tree.values[a].op == "const" for a in value.args)
        if free is None or not bounded or point(free).slope == 0 or point(node).slope != 0:
            continue
        if abs(_unclipped(point, node, free, end)) > 1e-12:
            return node
    return None


def _unclipped(point: Point, node: int, free: int, end: int) -> float:
    """Return the slope of the loss with the gradient passed straight through one clip."""
    return point.bypassing(node, free)(end).slope


def squared_ratio(loss: LossView) -> int | None:
    """Return the value whose derivative has the ratio squared."""
    if loss.is_pairs or not loss.fields("sampler") or not loss.fields("weight"):
        return None
    end = loss.tree.output("loss")
    if "logprob" not in loss.read or power_of_ratio(loss, end) < 1.5:
        return None
    values = loss.tree.values
    within = (
        n for n in sorted(loss.objective) if values[n].type.diff and power_of_ratio(loss, n) > 1.5
    )
    return next(within, end)


def power_of_ratio(loss: LossView, node: int) -> float:
    """Return the exponent with which the derivative of a value grows with the ratio, at ratio 1."""
    up, down = (
        abs(loss.point(ratio=ratio)(node).slope - loss.point(ratio=ratio, weight=0.0)(node).slope)
        for ratio in (math.exp(STEP), math.exp(-STEP))
    )
    return math.log(up / down) / (2 * STEP) if up > 0 and down > 0 else 0.0


def power_of_older(loss: LossView) -> float:
    """Return the exponent with which the derivative grows with the ratio of the weights before the
    step to those of the sampler; 1 if the loss does not read both."""
    if loss.is_pairs or "behavior" not in loss.read or len(loss.older) < 2:
        return 1.0
    up, down = (abs(loss.gain(older=ratio)) for ratio in (math.exp(STEP), math.exp(-STEP)))
    return math.log(up / down) / (2 * STEP) if up > 0 and down > 0 else 1.0


def hand_written(loss: LossView) -> tuple[int, ...]:
    """Return the divisions that are means written by hand."""
    values = loss.tree.values
    divisions = (node for node, value in enumerate(values) if value.op == "div")
    return tuple(node for node in divisions if is_hand_written(loss.tree, node))


def is_hand_written(tree: Tree, node: int) -> bool:
    """True if a sum over tokens is divided by a count that can be 0 or counts other tokens."""
    numerator, divisor = tree.values[node].args
    masks = _summed_under(tree, numerator)
    if not masks:
        return False
    divisor = _bare(tree, divisor)
    value = tree.values[divisor]
    if value.op == "max" and _is_one(tree, value.args[1]):
        counted = tree.values[_bare(tree, value.args[0])]
        return counted.op == "seq_count" and counted.args[0] not in masks
    if value.op == "input" and value.attr == "num_tokens":
        return True
    return value.op == "seq_count" or (value.op == "seq_sum" and _counts(tree, value.args[0]))


def _summed_under(tree: Tree, node: int) -> set[int]:
    """Return the masks of a value that is a sum, ignoring factors."""
    value = tree.values[node]
    if value.op == "seq_sum":
        return {value.args[1]}
    if value.op in SCALES:
        return _summed_under(tree, value.args[0])
    if value.op == "mul":
        return _summed_under(tree, value.args[0]) | _summed_under(tree, value.args[1])
    return set()


def _bare(tree: Tree, node: int) -> int:
    while tree.values[node].op in ("expand", "float", "stop"):
        node = tree.values[node].args[0]
    return node


def _is_one(tree: Tree, node: int) -> bool:
    value = tree.values[node]
    return value.op == "const" and value.attr == 1.0


def _counts(tree: Tree, node: int) -> bool:
    """True if a sum of this value is a count: it is 1 or boolean."""
    value = tree.values[_bare(tree, node)]
    return (value.op == "const" and value.attr == 1.0) or value.type.dtype == "bool"


def lower_bounded_ratio(loss: LossView) -> tuple[int, float] | None:
    """Return (node, bound) of a weight `max(ratio, bound)` with a bound above 1: it is the ratio
    only where the ratio is large. The ratio is that of the policy, or of `proximal` to
    `behavior`."""
    if loss.is_pairs or not loss.fields("sampler"):
        return None
    ratios = (0.5, *DISTINCT_RATIOS)
    for node in sorted(loss.objective):
        if loss.tree.values[node].op not in ("max", "where"):
            continue
        newer = [loss.point(ratio=ratio)(node).value for ratio in ratios]
        older = [loss.point(older=ratio)(node).value for ratio in ratios]
        for low, same, high in (newer, older):
            if low == same > 1.0 and math.isclose(high, ratios[-1], rel_tol=1e-6):
                return node, same
    return None


def number_of(loss: LossView, node: int) -> float | None:
    """Return the number of a constant of a loss; None if the value is not a constant."""
    value = loss.tree.values[node]
    is_number = value.op == "const" and isinstance(value.attr, int | float)
    return float(value.attr or 0.0) if is_number else None
