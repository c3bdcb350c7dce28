"""L409 one-sided-clip: the ratio is clipped without the pessimistic minimum.

PPO takes the minimum of the clipped and the plain term, so that the clip only ever takes away
reward for moving further. With the clipped term alone, a token whose ratio has gone the wrong
way, down at a positive advantage or up at a negative one, has gradient 0 and can never come back.
The minimum was left out in tensorforce #106.

    minimize token_mean(-clip(ratio, 0.8, 1.2) * adv, mask)                              # fires
    minimize token_mean(-min(ratio * adv, clip(ratio, 0.8, 1.2) * adv), mask)            # silent

Decided on the derivative of the loss for a token: it vanishes there, and does not without the clip.
A detached weight, `stop(clip(ratio, ...)) * logprob` (CISPO), keeps its gradient and is silent.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.losses import LossView
from forgedsl.lint.rules import l410
from forgedsl.lint.view import View
from forgedsl.losses.points import Point

finding = rule(__doc__, "D")
WRONG_WAY = ((1.0, 0.5), (1.0, 0.25), (-1.0, 1.5), (-1.0, 2.5))
"""(advantage, ratio): moved against the advantage, within the reach of dual clip"""
CLIPS = ("clamp", "min", "max")


def check(view: View) -> Findings:
    for loss in view.losses:
        clip = loss.once(one_sided)
        if clip is not None:
            yield finding(
                "the clip stops the gradient of tokens that moved the wrong way",
                loss.spot(clip),
                notes=("they can never come back: nothing pulls them while they are outside",),
                help="take the minimum with the plain term: "
                "`min(ratio * adv, clip(ratio, lo, hi) * adv)`",
            )


def one_sided(loss: LossView) -> int | None:
    """The clip that alone stops the gradient of a token that moved the wrong way."""
    if loss.once(l410.wrong_at) is not None:
        return None  # one mistake, one message
    if not loss.fields("sampler") or not loss.fields("weight") or "logprob" not in loss.read:
        return None
    clips = (_cut(loss, adv, ratio) for adv, ratio in WRONG_WAY)
    end = loss.tree.output("loss")
    learns = [abs(loss.gain(weight=adv, ratio=ratio)) > 1e-12 for adv, ratio in WRONG_WAY]
    stopped = not any(learns) and abs(loss.gain()) > 1e-12
    return next((clip for clip in clips if clip is not None), end if stopped else None)


def _cut(loss: LossView, adv: float, ratio: float) -> int | None:
    """The clip that alone stops the gradient at this point, if one does."""
    end = loss.tree.output("loss")
    point = loss.point(weight=adv, ratio=ratio)
    if abs(point(end).slope) > 1e-12 or abs(loss.slope(weight=adv)) < 1e-12:
        return None
    for node in sorted(loss.objective):
        value = loss.tree.values[node]
        if value.op not in CLIPS or not value.type.diff:
            continue
        free = next((arg for arg in value.args if loss.tree.values[arg].type.diff), None)
        bounded = value.op == "clamp" or any(loss.tree.values[a].op == "const" for a in value.args)
        if free is None or not bounded or point(free).slope == 0 or point(node).slope != 0:
            continue
        if abs(_unclipped(point, node, free, end)) > 1e-12:
            return node
    return None


def _unclipped(point: Point, node: int, free: int, end: int) -> float:
    """The slope of the loss with the gradient let through one clip."""
    return point.bypassing(node, free)(end).slope
