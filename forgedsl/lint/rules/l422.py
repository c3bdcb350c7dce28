"""L422 live-weight: an importance weight is not detached: it carries gradient.

In `weight * adv * logprob` the weight should only scale a token. If gradient flows into it too,
d loss / d logprob is weight * adv * (1 + logprob). That has the wrong sign for every token less
likely than 1 / e, and grows the rarer the token is (open-instruct #1269). Detach the weight with
`stop`.

    minimize token_mean(-min(ratio, 5.0) * adv * logprob, mask)              # fires
    minimize token_mean(-stop(min(ratio, 5.0)) * adv * logprob, mask)        # silent
    minimize token_mean(-exp(logprob) * logprob, mask)                # fires: DFT detaches exp(...)
    gain = min(ratio * adv, clip(ratio, 0.8, 1.2) * logprob)                 # fires: adv is missing

The rule evaluates the derivative for tokens of different probability at ratio 1: its sign must not
depend on the probability.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.loss_mistakes import wrong_sign_advantage
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View

finding = rule(__doc__, "D")
LOGPROBS = (-0.1, -0.5, -3.0, -6.0)


def check(view: View) -> Findings:
    for loss in view.losses:
        node = loss.cached(_live)
        if node is not None:
            yield finding(
                "this weight carries gradient: what is learned depends on the sign of 1 + logprob",
                loss.spot(node),
                notes=("d loss / d logprob changes its sign with the log-prob itself",),
                help="detach the weight: `stop(weight) * adv * logprob`",
            )


def _live(loss: LossView) -> int | None:
    """Return the product of a weight with gradient and a log-prob."""
    if loss.is_pairs or "logprob" not in loss.read or loss.cached(wrong_sign_advantage) is not None:
        return None
    found = [[loss.gain(logprob=logprob) for logprob in LOGPROBS]]
    if not {"reference", "entropy"} & {*loss.roles.values(), *loss.read}:
        found.append([loss.slope(weight=0.0, logprob=logprob) for logprob in LOGPROBS])
    if not any(max(slopes) > 1e-9 and min(slopes) < -1e-9 for slopes in found):
        return None
    values = loss.tree.values
    products = (
        node
        for node in sorted(loss.objective)
        if values[node].op == "mul" and all(values[arg].type.diff for arg in values[node].args)
    )
    return next(products, loss.tree.output("loss"))
