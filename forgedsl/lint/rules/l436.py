"""L436 weight-without-ceiling: an importance weight has a lower bound where an upper one is meant.

    weight = stop(max(ratio, 2.0))          # fires: it is 2 or more for every token
    weight = stop(min(ratio, 2.0))          # silent: truncated importance sampling

A truncated weight is at most some number, so that rare tokens do not dominate a step. With `max`
the bound is on the other side. On-policy tokens, whose ratio is 1, then get the bound as their
weight, and the largest weights are not reduced. In OpenRLHF #1295 a weight without ceiling made
updates infinite. Write `min`.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.loss_mistakes import lower_bounded_ratio
from forgedsl.lint.view import View

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for loss in view.losses:
        found = loss.cached(lower_bounded_ratio)
        if found is not None:
            node, bound = found
            yield finding(
                f"this weight is at least {bound:g}, even for on-policy tokens",
                loss.spot(node),
                help=f"`min(..., {bound:g})` truncates it from above",
            )
