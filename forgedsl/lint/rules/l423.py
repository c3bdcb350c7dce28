"""L423 squared-ratio: the importance ratio is applied twice.

One ratio turns samples of the sampler into samples of the policy. A second one, as a detached
weight beside the clipped term or times it, gives its square: the variance explodes, and what has
become twice as likely counts four times (open-instruct #1269, slime #179).

    minimize token_mean(-ratio * min(ratio * adv, clip(ratio, 0.8, 1.2) * adv), mask)       # fires
    weight = stop(min(exp(clamp(logprob - behavior, -9.0, 9.0)), 2.0))
    minimize token_mean(-weight * ratio * adv, mask)                                        # fires
    minimize token_mean(-stop(1.0 / ratio) * adv * logprob, mask)                 # fires: inverted
    minimize token_mean(-ratio * adv, mask)                                                 # silent

Truncated importance sampling weighs by `proximal - behavior` and clips `logprob - proximal`: two
ratios whose product is one. Decided on how the derivative for a token grows with the ratio.
"""

import math

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.losses import LossView
from forgedsl.lint.rules import l410, l428
from forgedsl.lint.view import View

finding = rule(__doc__, "D")
STEP = 1e-5


def check(view: View) -> Findings:
    for loss in view.losses:
        node = loss.once(_inverted)
        if node is not None:
            yield finding(
                "the importance ratio is applied upside down",
                loss.spot(node),
                notes=("d loss / d logprob falls as the ratio grows",),
                help="what the sampler found rare has to count more: `ratio * adv`",
            )
        node = loss.once(twice)
        if node is not None:
            yield finding(
                "the importance ratio is applied twice",
                loss.spot(node),
                notes=("d loss / d logprob grows with the square of the ratio",),
                help="leave one of them out, or take the first from `proximal` to `behavior`",
            )


def twice(loss: LossView) -> int | None:
    """The value that has the ratio twice."""
    if loss.is_pairs or not loss.fields("sampler") or not loss.fields("weight"):
        return None
    end = loss.tree.output("loss")
    if "logprob" not in loss.read or _power(loss, end) < 1.5:
        return None
    values = loss.tree.values
    within = (n for n in sorted(loss.objective) if values[n].type.diff and _power(loss, n) > 1.5)
    return next(within, end)


def _inverted(loss: LossView) -> int | None:
    """The loss, where it divides by the ratio."""
    if any(loss.once(question) is not None for question in (l410.wrong_at, l428.off_one)):
        return None  # one mistake, one message
    end = loss.tree.output("loss")
    weighs = not loss.is_pairs and loss.fields("sampler") and loss.fields("weight")
    return end if weighs and "logprob" in loss.read and -1.5 < _power(loss, end) < -0.5 else None


def _power(loss: LossView, node: int) -> float:
    """The power of the ratio that the derivative of a value has at ratio 1."""
    up, down = (
        abs(loss.point(ratio=ratio)(node).slope - loss.point(ratio=ratio, weight=0.0)(node).slope)
        for ratio in (math.exp(STEP), math.exp(-STEP))
    )
    return math.log(up / down) / (2 * STEP) if up > 0 and down > 0 else 0.0
