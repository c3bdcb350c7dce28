"""L440 two-ratios: the clipped and the plain term have ratios to different policies.

    ratio = exp(logprob - behavior)
    near  = exp(logprob - proximal)
    gain  = min(ratio * adv, clip(near, 0.8, 1.2) * adv)                     # fires
    gain  = min(near * adv, clip(near, 0.8, 1.2) * adv)                      # silent
    minimize token_mean(-stop(exp(proximal - behavior)) * gain, mask)

The minimum of PPO chooses between one ratio and the same ratio clipped. Ratios to two policies
differ before the step has changed anything. So tokens are clipped, or left out of the clip, because
of earlier steps. A decoupled loss (AReaL,
2505.24298) has the ratio to the weights before the step in both terms, and the ratio of these to
the sampler as a weight in front of them.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.loss_mistakes import read_inside
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View
from forgedsl.losses.tree import reachable

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for loss in view.losses:
        node = loss.cached(_mixed)
        if node is not None:
            terms = loss.tree.values[node].args
            one, other = sorted(terms, key=lambda term: _clips(loss, term))
            plain, clipped = (_listed(_policies(loss, term)) for term in (one, other))
            yield finding(
                f"the plain term has a ratio to {plain}, and the clipped term one to {clipped}",
                loss.spot(node),
                notes=("the smaller of the two is meant to be the same ratio, with a limit",),
                help="one ratio in both, for example `near = exp(logprob - proximal)`: `min(near * "
                "adv, clip(near, 0.8, 1.2) * adv)`",
            )


def _mixed(loss: LossView) -> int | None:
    """Return a minimum or maximum of a clipped and a plain ratio that read other policies."""
    if loss.is_pairs or len(loss.older) < 2:
        return None
    for node in sorted(loss.objective & loss.live):
        value = loss.tree.values[node]
        if value.op not in ("min", "max") or not value.type.diff:
            continue
        one, other = (_policies(loss, arg) for arg in value.args)
        clips = [_clips(loss, arg) for arg in value.args]
        if one and other and one.isdisjoint(other) and clips[0] != clips[1]:
            return node
    return None


def _listed(names: set[str]) -> str:
    return " and ".join(f"`{name}`" for name in sorted(names))


def _ratios(loss: LossView, node: int) -> list[int]:
    """Return the exponentials with a gradient that a value is made of."""
    values = loss.tree.values
    inside = reachable(values, [node])
    return [n for n in inside if values[n].op == "exp" and values[n].type.diff]


def _policies(loss: LossView, node: int) -> set[str]:
    """Return the fields of older weights that the ratios of a term read."""
    found: set[str] = set()
    for each in _ratios(loss, node):
        found |= read_inside(loss, each) & {*loss.older}
    return found


def _clips(loss: LossView, node: int) -> bool:
    """True if a ratio of a term is clipped, not only its logarithm."""
    values = loss.tree.values
    inside, ratios = reachable(values, [node]), {*_ratios(loss, node)}
    return any(
        values[n].op in ("clamp", "min", "max") and not ratios.isdisjoint(values[n].args)
        for n in inside
    )
