"""L414 wide-mask: a mask that includes tokens which the policy did not sample.

The rollout's `mask` is true for tokens that the policy sampled with a finite log-prob. A mask that
can be true elsewhere trains on prompts and on results of tools (TRL #3279, open-r1 #652,
open-instruct #1041), and a log-prob of -inf there makes the loss NaN. Combine your mask with
`mask`.

    minimize token_mean(-ratio * adv, not mask)                              # fires
    minimize token_mean(-ratio * adv, is_finite(behavior))                   # fires
    minimize token_mean(-ratio * adv, mask and behavior > -9.0)              # silent

The rule evaluates the mask for tokens where `mask` is false.
"""

from itertools import product

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View
from forgedsl.losses.intervals import MASKED

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for loss in view.losses:
        node = loss.cached(_wide)
        if node is not None:
            yield finding(
                "this mask holds for tokens that the policy did not write",
                loss.spot(node),
                notes=("prompts, and what tools answered, would be trained on",),
                help="use the rollout's `mask`, or add it to this one: `mask and ...`",
            )


def _wide(loss: LossView) -> int | None:
    """Return the first reduction over tokens whose mask does not imply the rollout's mask."""
    values = loss.tree.values
    for node in sorted(loss.objective):
        value = values[node]
        over_tokens = value.op in MASKED and values[value.args[-1]].type.tokens
        if over_tokens and _lets_in(loss, value.args[-1]):
            return node
    return None


def _lets_in(loss: LossView, mask: int) -> bool:
    """True if a mask can be true where `mask` is false."""
    value = loss.tree.values[mask]
    if value.attr == "mask" or value.type.dtype != "bool":
        return False
    places = product((-1.0, 1.0), (0.5, 1.0, 2.0), (-1.0, 1.0), (-1.0, -3.0))
    return any(
        loss.point(masked=True, weight=w, ratio=r, distance=d, logprob=logprob)(mask).value
        for w, r, d, logprob in places
    )
