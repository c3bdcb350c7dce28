"""L410 inverted-objective: training would make good tokens less likely.

At ratio 1 and advantage 1, raising the log-prob of a token must lower the loss:
d loss / d logprob < 0. A lost minus sign trains the policy away from its rewards, and every metric
looks plausible until it does not.

    minimize token_mean(ratio * adv, mask)            # fires
    minimize token_mean(-ratio * adv, mask)           # silent
    minimize token_mean(logprob, mask)                # fires: supervised, upside down

Decided on the derivative of the loss for a token.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.diagnostics import Diagnostic
from forgedsl.lint.finding import rule
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View

finding = rule(__doc__, "E")


def check(view: View) -> Iterator[Diagnostic]:
    for loss in view.losses:
        if "logprob" in loss.read and loss.once(_slope) > 1e-9:
            what = "a chosen token" if loss.is_pairs else "a token with a positive advantage"
            if not loss.is_pairs and not loss.fields("weight"):
                what = "a token to be learned"
            yield finding(
                f"this loss grows with the log-prob of {what}",
                loss.spot(loss.tree.output("loss")),
                notes=("d loss / d logprob is positive at ratio 1 and advantage 1",),
                help="a loss is minimized: is a minus sign missing?",
            )


def _slope(loss: LossView) -> float:
    """What an advantage of 1, or the data itself, adds to d loss / d logprob."""
    if loss.is_pairs:
        return loss.slope(side="chosen")  # type: ignore[arg-type]
    if any(name in loss.read for name in loss.fields("weight")):
        return loss.slope(weight=1.0) - loss.slope(weight=0.0)
    return 0.0 if loss.fields("reference") else loss.slope()
