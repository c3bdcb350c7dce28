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


def off_one(loss: LossView) -> int | None:
    """The exponential of a log-prob and of something that does not cancel it."""
    if loss.is_pairs:
        added = any(_moves(loss, side) for side in ("chosen", "rejected"))
        return loss.tree.output("loss") if added and loss.fields("reference") else None
    roles = {name: role for name, role in loss.roles.items() if role != "count"}
    for node in sorted(loss.objective):
        if loss.tree.values[node].op != "exp":
            continue
        read = [roles[name] for name in _inside(loss, node) if name in roles]
        if len(read) < 2 or not {"sampler", "reference", "weight"} & {*read}:
            continue
        at = [loss.point(level=level)(node).value for level in (-0.5, -2.0)]
        if any(abs(value - 1.0) > 1e-9 for value in at):
            return node
    return None


def _unfed(loss: LossView, node: int) -> bool:
    """Whether it reads what the batch does not have, which F111 tells."""
    given = {*loss.bound, *KNOWN, *ROW_STATISTICS}
    return loss.step is not None and not _inside(loss, node) <= given


def _moves(loss: LossView, side: str) -> bool:
    """Whether the pull on an answer depends on how likely both policies alike find it."""
    slopes = [loss.slope(side=side, level=level) for level in (-0.5, -2.0, -30.0)]
    return max(slopes) - min(slopes) > 1e-9


def _inside(loss: LossView, node: int) -> set[str]:
    """The fields that an exponential reads, not by way of another one."""
    values, found, pending = loss.tree.values, set(), [*loss.tree.values[node].args]
    while pending:
        value = values[pending.pop()]
        if value.op == "input":
            found.add(str(value.attr))
        elif value.op != "exp":
            pending += value.args
    return found
