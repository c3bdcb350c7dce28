"""X852 same-score: a reward gives all answers the same score, so nothing is learned from it.

    return float("<answer>" in prompt + response)     # fires: the prompt has the tag
    return float(lowered(response) == target)         # fires: no answer can equal `Paris`
    return float(tag(response) == target)             # silent

`lint --deep` calls the reward on rows of the data: with right and wrong answers in the forms that
the prompt, the tags and the patterns of the reward name, and with none. The rule fires if all of
them get one score: advantages are 0 then, and the run costs time for nothing (trl #3452). It also
fires if the right and the wrong answer get one score in each form, and this is 1 or more in one of
them: then only the form counts.
"""

from __future__ import annotations

from forgedsl.lint.call_results import SAME, Call, RewardCalls, shorten
from forgedsl.lint.deep_calls import target_rewards
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.rubrics import positive_rewards
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
RUNS_CODE = ("sandbox", "exec(", "eval(")
"""parts of the text of a reward that may run the answer; no constructed answer is a program"""
LEAST = 20
"""answers that must have a score"""


def check(view: View) -> Findings:
    alone = len(positive_rewards(view)) == 1  # others may reward right answers
    for reward, calls in target_rewards(view):
        if any(word in reward.source.text for word in RUNS_CODE):
            continue
        made = list(calls.all)
        scores = [call.score for call in made if call.score is not None]
        wrong = _all_right(calls) if alone else None
        if wrong is not None:
            yield finding(
                f"`{reward.reward.name}` gives {wrong.score:.4g} to a wrong answer, and in each of "
                f"{len(calls.tried) // 2} forms the same to the right one",
                place_of(reward.reward, view),
                notes=(
                    f"{calls.rows[0].place}, target {calls.rows[0].target!r}: wrong "
                    f"`{shorten(wrong.text)}`",
                ),
                help="let the score depend on a comparison of the answer with the target",
            )
            continue
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


def _all_right(calls: RewardCalls) -> Call | None:
    """Return a wrong answer with a score of 1 or more, if in each form the right answer gets what
    the wrong one gets."""
    pairs = list(zip(calls.tried[::2], calls.tried[1::2], strict=False))
    if calls.form or calls.note or len(calls.tried) < LEAST:
        return None
    best: Call | None = None
    for right, wrong in pairs:
        if right.score is None or wrong.score is None or abs(right.score - wrong.score) > SAME:
            return None
        if best is None or best.score is None or wrong.score > best.score:
            best = wrong
    empty = calls.rows[0].score("empty")
    paid = best is not None and best.score is not None and best.score >= 1 - SAME
    return best if paid and empty is not None and empty < 1 - SAME else None
