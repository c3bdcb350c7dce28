"""L409 one-sided-clip: the ratio is clipped without the pessimistic minimum.

PPO takes the minimum of the clipped and the unclipped term, so that the clip only removes the gain
of moving further. With the clipped term alone, a token whose ratio has moved the wrong way (down at
a positive advantage, up at a negative one) has gradient 0 and can never come back. The minimum was
missing in tensorforce #106.

    minimize token_mean(-clip(ratio, 0.8, 1.2) * adv, mask)                              # fires
    minimize token_mean(-min(ratio * adv, clip(ratio, 0.8, 1.2) * adv), mask)            # silent

Take the minimum with the unclipped term. The rule evaluates the derivative for a token whose ratio
has moved against its advantage: it must not be 0 because of the clip alone. A detached weight,
`stop(clip(ratio, ...)) * logprob` (CISPO), keeps its gradient and is silent.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.loss_mistakes import one_sided_clip
from forgedsl.lint.view import View

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for loss in view.losses:
        clip = loss.cached(one_sided_clip)
        if clip is not None:
            yield finding(
                "the clip stops the gradient of tokens that moved the wrong way",
                loss.spot(clip),
                notes=("they can never come back: nothing pulls them while they are outside",),
                help="take the minimum with the plain term: "
                "`min(ratio * adv, clip(ratio, lo, hi) * adv)`",
            )
