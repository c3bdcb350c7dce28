"""L438 advantage-as-return: a critic is trained on advantages.

    ret = rl.gae(score, values, rollout.mask)                                # fires
    ret = rl.returns(score, values, rollout.mask)                            # silent
    batch = replay(rollout, adv = adv, ret = ret, old = values)
    wrong = (value - adv) ** 2                       # fires in a loss that has `adv` as advantage

The target of a critic is the advantage plus the value before the step. Trained on advantages alone,
which are 0 on average, its values go to 0, and it is no baseline any more (TRL #19). Compute the
targets with `rl.returns`.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.losses import LossView
from forgedsl.lint.terms import lacks_values
from forgedsl.lint.view import View
from forgedsl.losses.tree import reachable
from forgedsl.types.flow import Role

finding = rule(__doc__, "D")
TARGETS = ("ret", "returns", "value_target")
"""names of fields that hold what a critic learns"""


def check(view: View) -> Findings:
    for loss in view.losses:
        critic = loss.step is not None and "value" in loss.read
        compared = loss.cached(_compared) if critic else ()
        for name in dict.fromkeys((*TARGETS, *compared)) if critic else ():
            source = loss.bound.get(name) if name in loss.read else None
            if source is None or Role.COMPUTES not in source.roles:
                continue
            function = view.located.get(source.receiver)
            if function is not None and lacks_values(function.tree):
                yield finding(
                    f"the critic is trained on `{name}`, which holds advantages instead of returns",
                    source.span,
                    help="train it on `rl.returns(score, values, rollout.mask)`, the advantage "
                    "plus the value",
                )


def _compared(loss: LossView) -> tuple[str, ...]:
    """Return the fields that are subtracted from values of the critic, or the reverse."""
    values, found = loss.tree.values, list[str]()
    weights = {*loss.fields("weight")}
    for node in sorted(loss.objective & loss.live):
        if values[node].op != "sub":
            continue
        sides = [
            {str(values[n].attr) for n in reachable(values, [arg]) if values[n].op == "input"}
            for arg in values[node].args
        ]
        for one, other in (sides, sides[::-1]):
            if "value" in one and len(other) == 1:
                found += sorted(other & weights)
    return tuple(found)
