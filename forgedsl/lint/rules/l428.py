"""L428 ratio-off-one: a ratio that is not 1 where the policy is what it is compared with.

A ratio of probabilities is the exponential of a difference of log-probs. With a sum in its place,
or one log-prob alone, it is tiny for every token, no clip ever acts on it as it should, and
gradients vanish with the length of an answer.

    ratio = exp(clamp(logprob + behavior, -10.0, 10.0))                      # fires
    ratio = exp(clamp(logprob - behavior, -10.0, 10.0))                      # silent
    chosen = sum(logprob.chosen + ref.chosen, T, mask.chosen)                # fires: of a pair

Decided by evaluating each exponential that reads the policy and older weights where both are equal.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.loss_mistakes import off_one, read_inside
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View
from forgedsl.losses.fields import KNOWN
from forgedsl.losses.tree import ROW_STATISTICS

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for loss in view.losses:
        node = loss.once(off_one)
        if node is not None and not _unfed(loss, node):
            yield finding(
                "this ratio is not 1 where both policies are the same",
                loss.spot(node),
                help="a ratio is `exp(logprob - behavior)`: a difference",
            )


def _unfed(loss: LossView, node: int) -> bool:
    """True if it reads what the batch does not have, which F111 tells."""
    given = {*loss.bound, *KNOWN, *ROW_STATISTICS}
    return loss.step is not None and not read_inside(loss, node) <= given
