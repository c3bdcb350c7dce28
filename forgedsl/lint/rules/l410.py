"""L410 inverted-objective: training would make good tokens less likely, or bad tokens more likely.

At ratio 1, a higher log-prob of a token must lower the loss if the advantage is 1, and raise it if
the advantage is -1. With a missing minus sign, the policy learns to avoid rewards, while metrics
look plausible for a while (OPTIMATE #250).

    minimize token_mean(ratio * adv, mask)            # fires
    minimize token_mean(-ratio * abs(adv), mask)      # fires: bad answers are pushed up too
    minimize token_mean(-ratio * adv, mask)           # silent
    minimize token_mean(-ratio * min(adv, 0.0), mask) # silent: bad answers alone (2506.01347)
    minimize token_mean(logprob, mask)                # fires: shown answers become less likely
    minimize pair_mean(-log_sigmoid(margin) - log_sigmoid(-margin))      # fires: prefers neither
    minimize pair_mean(-log_sigmoid(beta * chosen))   # fires: the rejected answer does nothing

    minimize token_mean(-(1.0 - num_steps / 100) * gain, mask)         # fires in a run of 500 steps

Check the sign. The rule evaluates the derivative of the loss for a token. If you want to unlearn by
gradient ascent, write `# forge: allow[L410] unlearning`.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.loss_mistakes import turns_at, wrong_clip_bounds, wrong_sign_advantage
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for loss in view.losses:
        advantage = loss.cached(wrong_sign_advantage)
        late = turns_at(loss, lambda update: _rises(loss, update)) if advantage is None else None  # noqa: B023
        if late is not None:
            yield finding(
                f"after {late} of {loss.updates_of_run} updates, this loss grows with the log-prob "
                "of a token with a positive advantage",
                loss.spot(loss.tree.output("loss")),
                notes=("`num_steps` counts updates, and a weight that reads it becomes negative",),
                help="stop before 0: `max(0.1, ...)` around what falls",
            )
        if advantage is None or loss.cached(wrong_clip_bounds):
            continue
        what, at = "a chosen token" if loss.is_pairs else "a token to be learned", ""
        if not loss.is_pairs and loss.fields("weight"):
            sign = "positive" if advantage > 0 else "negative"
            what, at = f"a token with a {sign} advantage", f" and advantage {advantage:g}"
        flat = abs(_gain(loss, advantage)) <= 1e-9
        if loss.is_pairs and advantage < 0:
            what = "a rejected token"
        verb, slope = (
            (f"does not {'fall' if advantage > 0 else 'grow'}", "0")
            if flat
            else ("grows", "positive")
            if advantage > 0
            else ("falls", "negative")
        )
        yield finding(
            f"this loss {verb} with the log-prob of {what}",
            loss.spot(loss.tree.output("loss")),
            notes=(f"d loss / d logprob is {slope} at ratio 1{at or ' and advantage 1'}",),
            help="its terms cancel out: `-logprob` alone is what demonstrations need"
            if flat and "a token to be learned" in what
            else "a loss is minimized: is a minus sign missing?"
            if advantage > 0
            else "the sign of the advantage must reach the gradient",
        )


def _gain(loss: LossView, advantage: float) -> float:
    if loss.is_pairs:
        return loss.slope(side="chosen" if advantage > 0 else "rejected")
    return loss.gain(weight=advantage)


def _rises(loss: LossView, update: int) -> bool:
    """True if at an update good tokens are made less likely."""
    return loss.gain(num_steps=float(update)) > 1e-9
