"""L423 squared-ratio: the importance ratio is applied twice.

One ratio corrects for the difference between sampler and policy. A second one, as a detached weight
of the clipped term, squares it: the variance explodes, and a token that has become twice as likely
counts four times (open-instruct #1269, slime #179). Remove one of them.

    minimize token_mean(-ratio * min(ratio * adv, clip(ratio, 0.8, 1.2) * adv), mask)       # fires
    weight = stop(min(exp(clamp(logprob - behavior, -9.0, 9.0)), 2.0))
    minimize token_mean(-weight * ratio * adv, mask)                                        # fires
    minimize token_mean(-stop(1.0 / ratio) * adv * logprob, mask)                 # fires: inverted
    minimize token_mean(-ratio * adv, mask)                                                 # silent

Truncated importance sampling is silent: it weights by `proximal - behavior` and clips
`logprob - proximal`, two ratios whose product is the ratio. If the first one is inverted, the age
of a sample is corrected the wrong way. If `logprob - behavior` is clipped instead, it is corrected
twice. The rule measures how the derivative for a token grows with each ratio.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.loss_mistakes import (
    power_of_older,
    power_of_ratio,
    ratio_not_one,
    squared_ratio,
    wrong_sign_advantage,
)
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for loss in view.losses:
        node = loss.cached(_inverted)
        if node is not None:
            yield finding(
                "the importance ratio is applied as its reciprocal",
                loss.spot(node),
                notes=("d loss / d logprob falls as the ratio grows",),
                help="a token that the sampler rarely chose has to count more: `ratio * adv`",
            )
        node = loss.cached(squared_ratio)
        if node is not None:
            yield finding(
                "the importance ratio is applied twice",
                loss.spot(node),
                notes=("d loss / d logprob grows with the square of the ratio",),
                help="leave one of them out, or take the first from `proximal` to `behavior`",
            )

        power = loss.cached(power_of_older) if node is None else 1.0
        if power < -0.5 or power > 1.5:
            how = "as its reciprocal" if power < 0 else "twice"
            yield finding(
                f"the ratio of `proximal` to `behavior` is applied {how}",
                loss.spot(loss.tree.output("loss")),
                notes=(f"d loss / d logprob grows with this ratio to the power of {power:.2g}",),
                help="weight by `rl.importance(proximal, behavior)`, and clip "
                "`rl.importance(logprob, proximal)`",
            )


def _inverted(loss: LossView) -> int | None:
    """Return the loss if it divides by the ratio."""
    if any(loss.cached(question) is not None for question in (wrong_sign_advantage, ratio_not_one)):
        return None  # one mistake, one message
    end = loss.tree.output("loss")
    weighs = not loss.is_pairs and loss.fields("sampler") and loss.fields("weight")
    return (
        end
        if weighs and "logprob" in loss.read and -1.5 < power_of_ratio(loss, end) < -0.5
        else None
    )
