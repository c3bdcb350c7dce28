"""R535 calls-paid: calling tools, or taking turns, earns about as much as the right answer.

    given = {"lookups": names.count("lookup")}           # a part of the environment counts calls
    reward lookups(r: Rollout) -> f32 = clamp(r.rewards.lookups, 0.0, 4.0)
    rubric grade { score = right + 0.5 * lookups }       # fires: four calls earn 2, the answer 1
    rubric grade { score = right + 0.1 * lookups }       # silent
    rubric grade { score = right * (0.9 + 0.1 * lookups) }               # silent
    Step(seen, {"effort": 0.2 * len(turn.calls)})        # the same for a sum, and for a counter
    reward effort(r: Rollout) -> f32 = clamp(r.rewards.effort, 0.0, 1.0)
    rubric grade { score = right + effort }              # fires: five calls earn 1
    reward patience(r: Rollout) -> f32 = clamp(r.turns / 8, 0.0, 1.0)
    rubric grade { score = right + 0.5 * patience }      # fires: turns earn 0.44

To call a tool is easier than to be right, and it is rewarded whatever the answer is: the policy
calls as often as it may, and answers anything (DeepEyes #83). Give all calls together less weight
than the answer, or multiply. Turns cost the policy nothing at all, so for turns the rule already
fires at two fifths of the reward for the answer.
"""

from __future__ import annotations

from forgedsl.diagnostics import Label
from forgedsl.lint.calls_paid import paid_without_limit, part_of, parts_paid_by_calls
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, score_of, slope_in_turns
from forgedsl.lint.rubrics import positive_rewards
from forgedsl.lint.view import View
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    if not view.program.environments:
        return
    used = {step.receiver for step in view.program.flow if Role.SCORES in step.roles}
    counted = parts_paid_by_calls(view)
    yield from _without_limit(view)
    for rubric in view.program.rubrics.values():
        score = score_of(view, rubric)
        if rubric.name not in used or not score.is_known:
            continue
        calls = [name for name, reward in score.rewards.items() if part_of(reward) in counted]
        calls += [name for name, r in score.rewards.items() if slope_in_turns(r, view)]
        others = [name for name in score.rewards if name not in calls]
        if not calls or not others:
            continue
        earned = {name: max(score.change_by(name), default=0.0) for name in others}
        right = max(others, key=earned.__getitem__)
        answer = earned[right]
        for name in calls:
            pay = max(score.change_by(name, least=others), default=0.0)
            are_turns = slope_in_turns(score.rewards[name], view)
            if pay >= (0.4 * answer if are_turns else answer) > 0:
                what = "turns" if are_turns else "calls"
                yield finding(
                    f"{'turns' if are_turns else 'tool calls'} can earn {pay:g} through `{name}`, "
                    f"and a right answer earns {answer:g}",
                    score.score.expr.span,
                    related=(Label(text=f"counts {what}",
                                   span=place_of(score.rewards[name], view)),),
                    help=f"give `{name}` a smaller weight, or pay for {what} only if the answer is "
                    f"right: `{right} * (0.9 + 0.1 * {name})`",
                )  # fmt: skip


def _without_limit(view: View) -> Findings:
    """Yield rewards without a bound that a score adds, and that rise with each call of a tool."""
    positive = positive_rewards(view)
    for reward in paid_without_limit(view):
        name = reward.name
        yield finding(
            f"`{name}` pays for each call of a tool, without limit: calls can earn more than a "
            "right answer",
            positive[name],
            related=(Label(text="counts calls", span=place_of(reward, view)),),
            help="limit what all calls together can earn: `clamp(..., 0.0, 0.2)`",
        )
