"""L428 ratio-off-one: a ratio that is not 1 for equal policies.

A ratio of probabilities is the exponential of a difference of log-probs. With a sum, or a single
log-prob, it is tiny for every token: clips do not work, and gradients vanish with the length of a
completion. Subtract the log-probs.

    ratio = exp(clamp(logprob + behavior, -10.0, 10.0))                      # fires
    ratio = exp(clamp(logprob - behavior, -10.0, 10.0))                      # silent
    chosen = sum(logprob.chosen + ref.chosen, T, mask.chosen)                # fires: of a pair

The rule evaluates each exponential that reads log-probs of the policy and of older weights, with
both equal.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.loss_mistakes import ratio_not_one, read_inside
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View
from forgedsl.losses.fields import KNOWN
from forgedsl.losses.tree import ROW_STATISTICS

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for loss in view.losses:
        node = loss.cached(ratio_not_one)
        if node is not None and not _unfed(loss, node):
            yield finding(
                "this ratio is not 1 where both policies are the same",
                loss.spot(node),
                help="a ratio is `exp(logprob - behavior)`: a difference",
            )


def _unfed(loss: LossView, node: int) -> bool:
    """True if the loss reads a field that the batch does not have, which is F111."""
    given = {*loss.bound, *KNOWN, *ROW_STATISTICS}
    return loss.step is not None and not read_inside(loss, node) <= given
