"""R541 partial-baseline: an advantage subtracts only a part of the scores' level.

    advantage loo(r: [G] f32) -> [G] f32 = r - (sum(r, G) - r) / count(r, G)          # fires
    advantage loo(r: [G] f32) -> [G] f32 = r - (sum(r, G) - r) / (count(r, G) - 1)    # silent
    advantage plain(r: [G] f32) -> [G] f32 = r                                        # silent

A baseline removes the level of the scores: if all scores of a group are higher by 1, its
advantages stay the same. The sum of the others (RLOO, 2402.14740) has one score less than the
group, so its mean divides by one less. With the wrong divisor a part of the level stays in every
advantage: if scores are positive, wrong answers are made likelier too. The rule raises all scores
of a group, then only one of them, and looks at the advantage of this one. With a whole baseline it
does not change in the first case. Without a baseline it changes by as much in both. The rule fires
in between.
"""

import math

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.groups import Probe, probe
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
LEAST, MOST = 0.01, 0.95
"""shares of the level that stay: below, rounding; above, no baseline"""
STEP = 0.25


def check(view: View) -> Findings:
    for group in view.groups:
        function = group.function
        tokens = any(field.type.tokens for field in group.located.tree.fields)
        if function.kind != "advantage" or function.module.startswith("std/") or tokens:
            continue
        advantage = probe(view, group)
        key = (_level, view.identity(function), advantage.size, advantage.scores)
        if key not in view.shared.answers:
            view.shared.answers[key] = _level(advantage)
        rise = view.shared.answers[key]
        if rise is not None:
            yield finding(
                f"advantage `{function.name.rpartition('.')[2]}` subtracts only a part of the "
                f"mean: if all scores of a group rise by 1, its advantages rise by {rise:.2g}",
                function.span,
                help="subtract the whole mean, `r - mean(r, G)`, or the mean of the others, "
                "`r - (sum(r, G) - r) / (count(r, G) - 1)`",
            )


def _level(of_group: Probe) -> float | None:
    """Return by how much advantages rise if all scores of a group rise by 1, if this is a part of
    what an advantage rises by if only its own score does. None if it is all of it, or nothing, or
    not the same for all groups and completions."""
    found = set[tuple[float, float]]()
    for scores in (*of_group.mixed.values(), *of_group.others.values()):
        at, up = of_group(scores), of_group([score + STEP for score in scores])
        for score in {*scores}:  # completions with equal scores get equal advantages
            index = scores.index(score)
            alone = of_group([*scores[:index], score + STEP, *scores[index + 1 :]])
            own, level = alone[index] - at[index], up[index] - at[index]
            if not math.isfinite(own) or not math.isfinite(level) or own <= 0:
                return None
            found.add((round(level / STEP, 6), round(level / own, 6)))
    rise, share = found.pop() if len(found) == 1 else (0.0, 0.0)
    return rise if LEAST < share < MOST else None
