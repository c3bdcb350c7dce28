"""X852 same-score: a reward gives all answers the same score, so nothing is learned from it.

    return float("<answer>" in prompt + response)     # fires: the prompt has the tag
    return float(lowered(response) == target)         # fires: no answer can equal `Paris`
    return float(tag(response) == target)             # silent

`lint --deep` calls the reward on rows of the data: with right and wrong answers in the forms that
the prompt, the tags and the patterns of the reward name, and with none. The rule fires if all of
them get one score: advantages are 0 then, and the run costs time for nothing (trl #3452).
"""

from __future__ import annotations

from forgedsl.lint.call_results import SAME
from forgedsl.lint.deep_calls import target_rewards
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
RUNS_CODE = ("sandbox", "exec(", "eval(")
"""parts of the text of a reward that may run the answer; no constructed answer is a program"""
LEAST = 20
"""answers that must have a score"""


def check(view: View) -> Findings:
    for reward, calls in target_rewards(view):
        if any(word in reward.source.text for word in RUNS_CODE):
            continue
        made = list(calls.all)
        scores = [call.score for call in made if call.score is not None]
        if calls.form or calls.note or len(scores) < LEAST or len(scores) < len(made):
            continue
        if max(scores) - min(scores) <= SAME:
            yield finding(
                f"`{reward.reward.name}` gives {scores[0]:.4g} to each of {len(scores)} answers, "
                "right, wrong and empty ones",
                place_of(reward.reward, view),
                notes=(
                    f"{calls.rows[0].place}, target {calls.rows[0].target!r}: the right answer was "
                    "written in each form that the prompt and the reward name",
                ),
                help="print what the reward reads from `response` and from `target` for this row, "
                "and compare both in one spelling",
            )
