"""L403 local-denominator: a mean written by hand, whose denominator counts only part of the step.

Losses of microbatches and ranks are added up, so a denominator must count the whole optimizer step.
A sum divided by a sum is right for one microbatch and wrong for two: gradients were wrong by
factors of 0.5 to 4 in verl #906, open-instruct #1161 and TRL #3021. The rule also fires, within a
sequence, for a division by a count of other tokens than those summed, or by a count that can be 0.

    minimize seq_sum(pg, mask) / seq_sum(valid, mask)                    # fires
    minimize seq_mean(sum(pg, T, mask) / num_tokens)                     # fires
    minimize seq_mean(mean(pg, T, mask))                                 # silent

Use an aggregator, `token_mean(pg, mask)`, or `mean(pg, T, mask)` within a sequence.
"""

from forgedsl.diagnostics import Edit, Fix
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.loss_mistakes import hand_written
from forgedsl.lint.losses import LossView, Spot
from forgedsl.lint.view import View
from forgedsl.syntax import ast

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for loss in view.losses:
        for node in loss.cached(hand_written):
            spot = loss.spot(node)
            yield finding(
                "this mean divides by its own count, which differs between microbatches",
                spot,
                help="use an aggregator such as token_mean, or `mean(x, T, mask)` within a "
                "sequence",
                fix=_mean(loss, spot),
            )


def _mean(loss: LossView, spot: Spot) -> Fix | None:
    """Return the fix `sum(x, T, m) / anything` -> `mean(x, T, m)`, if the loss is written like
    that."""
    node = spot.node
    if not isinstance(node, ast.Binary) or not isinstance(node.left, ast.Call):
        return None
    function = node.left.function
    if function.text != "sum":
        return None
    start = Edit(text="mean", span=function.span)
    end = type(node.span)(node.span.file, node.left.span.end, node.span.end)
    return Fix(message="write `mean`", edits=(start, Edit(text="", span=end)), safe=False)
