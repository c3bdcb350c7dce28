"""R502 unbounded-reward: a reward has no finite range.

One completion can outweigh all others of its group, and a non-finite score is an error at run
time. A judge's total came out as 3.85 of 1 (pinchbench #73).

    reward depth(r: Rollout) -> f32 = len(r.response) / 100              # fires
    reward depth(r: Rollout) -> f32 = clamp(len(r.response) / 100, 0.0, 1.0)     # silent

    rubric grade { score = 1.0 / correct, on_truncated = 0.0 }           # fires: it may divide by 0

Clamp the reward.
"""

from forgedsl.lint.calls_paid import paid_without_limit
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, reward_interval, score_of
from forgedsl.lint.view import View

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    told = paid_without_limit(view)  # R535 reports these
    for reward in view.program.rewards.values():
        found = reward_interval(reward, view)
        if found is not None and not found.is_bounded and reward not in told:
            bounds = "may be infinite" if not found.finite else f"is in {found}"
            yield finding(
                f"reward `{reward.name}` {bounds}",
                place_of(reward, view),
                help="bound it: `clamp(x, 0.0, 1.0)`",
            )
    for rubric in view.program.rubrics.values():
        score = score_of(view, rubric)
        if score.divides_by_zero:
            yield finding(
                f"the score of `{rubric.name}` divides by a reward that may be 0",
                score.score.expr.span,
                help="multiply by a weight instead",
            )
