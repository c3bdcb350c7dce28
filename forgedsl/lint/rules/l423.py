"""L423 squared-ratio: the importance ratio is applied twice.

One ratio turns samples of the sampler into samples of the policy. A second one, as a detached
weight beside the clipped term or times it, gives its square: the variance explodes, and what has
become twice as likely counts four times (open-instruct #1269, slime #179).

    minimize token_mean(-ratio * min(ratio * adv, clip(ratio, 0.8, 1.2) * adv), mask)       # fires
    weight = stop(min(exp(clamp(logprob - behavior, -9.0, 9.0)), 2.0))
    minimize token_mean(-weight * ratio * adv, mask)                                        # fires
    minimize token_mean(-ratio * adv, mask)                                                 # silent

Truncated importance sampling weighs by `proximal - behavior` and clips `logprob - proximal`: two
ratios whose product is one. Decided on how the derivative for a token grows with the ratio.
"""

import math

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View

finding = rule(__doc__, "D")
STEP = 1e-5


def check(view: View) -> Findings:
    for loss in view.losses:
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


def _power(loss: LossView, node: int) -> float:
    """The power of the ratio that the derivative of a value has at ratio 1."""
    up, down = (
        abs(loss.point(ratio=ratio)(node).slope - loss.point(ratio=ratio, weight=0.0)(node).slope)
        for ratio in (math.exp(STEP), math.exp(-STEP))
    )
    return math.log(up / down) / (2 * STEP) if up > 0 and down > 0 else 0.0
