"""L425 leaking-clip: gradient continues outside of the clip range.

PPO limits a step in both directions: a token whose ratio has left the range in the direction of its
advantage gets no more gradient. If the advantage is not a factor of both terms, the minimum takes
the unclipped term for negative advantages, which are then pushed down without bound. (takuseno/ppo
#3 took the minimum before the multiplication.) Multiply both terms by the advantage.

    gain = min(ratio * adv, clip(ratio, 0.8, 1.2))                           # fires
    gain = min(ratio * adv, clip(ratio, 0.8, 1.2) + adv)                     # fires
    gain = min(ratio * adv, clip(ratio, 0.8, 1.2) * adv)                     # silent

The rule evaluates the derivative for a token outside of the written range.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.loss_mistakes import one_sided_clip, squared_ratio, wrong_sign_advantage
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View

finding = rule(__doc__, "D")
ACTS = 0.5
"""fraction of the unclipped gradient; a clip that leaks less does so on purpose"""


def check(view: View) -> Findings:
    for loss in view.losses:
        found = loss.cached(_leaking)
        if found is not None:
            node, sign = found
            yield finding(
                "this clip lets the gradient through outside of its range",
                loss.spot(node),
                notes=(f"for a token of {sign} advantage it does not bound the step",),
                help="`min(ratio * adv, clip(ratio, lo, hi) * adv)`: the advantage in both",
            )


def _leaking(loss: LossView) -> tuple[int, str] | None:
    """Return the clip of a ratio that does not act, and the sign of the advantage."""
    if loss.is_pairs or not loss.fields("sampler") or not loss.fields("weight"):
        return None
    reported = (wrong_sign_advantage, one_sided_clip, squared_ratio)
    if any(loss.cached(question) is not None for question in reported):
        return None
    values = loss.tree.values
    for node in sorted(loss.live):
        value = values[node]
        bounds = [values[arg].attr for arg in value.args[1:]]
        if value.op != "clamp" or not all(isinstance(b, int | float) for b in bounds):
            continue
        low, high = float(bounds[0] or 0.0), float(bounds[1] or 0.0)
        at = [loss.point(ratio=r)(value.args[0]).value for r in (1.0, 1.5)]
        if not value.type.diff or not 0 < low < 1 < high or abs(at[1] - 1.5 * at[0]) > 1e-9:
            continue
        for adv, ratio in ((1.0, 1.5 * high), (-1.0, low / 1.5)):
            free = ratio * abs(loss.gain(weight=adv))
            if free > 1e-9 and abs(loss.gain(weight=adv, ratio=ratio)) > ACTS * free:
                return node, "positive" if adv > 0 else "negative"
    return None
