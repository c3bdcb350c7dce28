"""R520 advantage-direction: an advantage does not rise with the score.

The better of two completions must not have the lower advantage; a group of equal scores must not
get advantages; and scores between 0 and 1 should not give advantages of hundreds. Otherwise the
policy is trained against the reward, or on rounding errors (Alpamayo #29, NeMo-RL #1518 and #4161).

    advantage norm(r: [G] f32) -> [G] f32 = (mean(r, G) - r) / (std(r, G) + 1e-6)        # fires
    advantage norm(r: [G] f32) -> [G] f32 = abs(r - mean(r, G))                          # fires
    advantage loo(r: [G] f32) -> [G] f32 = (r - others) / (spread_of_the_others + 1e-6)  # fires
    advantage norm(r: [G] f32) -> [G] f32 = (r - mean(r, G)) / (std(r, G) + 1e-6)        # silent

The rule evaluates the advantage on groups: one completion right, half of them, all but one, equal
scores, graded scores.
"""

import math

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.groups import Probe, probe
from forgedsl.lint.losses import STANDARD
from forgedsl.lint.view import View
from forgedsl.losses.reductions import field_axes

finding = rule(__doc__, "D")
HUGE = 100.0


def check(view: View) -> Findings:
    for group in view.groups:
        if group.function.kind != "advantage" or group.located.tree.span.file.startswith(STANDARD):
            continue
        if "T" in field_axes(group.function):  # an advantage per token: its inputs are unknown here
            continue
        advantage = probe(view, group)
        key = ("R520", group.located, advantage.size, advantage.scores)
        if key not in view.shared.answers:
            view.shared.answers[key] = _wrong(advantage)
        what = view.shared.answers[key]
        if what:
            yield finding(
                what,
                view.program.spans.get(group.function.name, group.function.span),
                help="`(r - mean(r, G)) / (std(r, G) + 1e-6)`: above 0 for completions that are "
                "better than the mean of their group",
            )


def _wrong(advantage: Probe) -> str:
    """Return the problem of an advantage; "" if there is none."""
    if advantage.size < 2:
        return ""
    follows = False
    for name, scores in advantage.mixed.items():
        found = advantage(scores)
        good = found[scores.index(1.0)]
        bad = found[scores.index(0.0)]
        if good < bad - 1e-9:
            return f"where {name}, the better answer has the lower advantage: {good:.3g}, {bad:.3g}"
        follows = follows or good > bad + 1e-9
    if not follows:
        return "this advantage is the same for good and bad answers"
    for name, scores in {**advantage.mixed, **advantage.others}.items():
        largest = max(map(abs, filter(math.isfinite, advantage(scores))), default=0.0)
        if largest > HUGE:
            return f"where {name}, an advantage is {largest:.3g}"
    return ""
