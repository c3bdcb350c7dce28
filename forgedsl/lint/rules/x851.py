"""X851 right-unpaid: no form of the right answer is rewarded more than a wrong answer.

    return abs(float(tag(response)) - float(target))  # fires: the right answer gets least
    return float(tag(response) == target)             # silent

`lint --deep` calls the reward on rows of the data. The right answer is written in the forms that
the prompt, the tags and the patterns of the reward name, and wrong answers in the same forms. The
rule fires if in every form a wrong answer gets at least as much as the right one, and more in one
of them: the policy learns to be wrong. In that form an empty answer must also get more than the
right one, or a number nearby less than one far away. Otherwise the task may be one in which the
answer must not name the target. The rule is silent where the score adds another reward.
"""

from __future__ import annotations

from forgedsl.lint.call_results import EMPTY, RIGHT, SAME, WRONG, CalledRow, shorten
from forgedsl.lint.deep_calls import target_rewards
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.rubrics import positive_rewards
from forgedsl.lint.view import View

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    alone = len(positive_rewards(view)) == 1  # others may reward right answers
    for reward, calls in target_rewards(view) if alone else ():
        if calls.rows and all(map(_is_farther_better, calls.rows)):
            row = calls.rows[0]
            right, near, far = (row.calls[kind] for kind in (RIGHT, "near", WRONG))
            yield finding(
                f"`{reward.reward.name}` gives {right.score:.4g} to the right answer, "
                f"{near.score:.4g} to a number nearby, and {far.score:.4g} to one far away",
                place_of(reward.reward, view),
                notes=(
                    f"{row.place}, target {row.target}: right `{shorten(right.text)}`, far "
                    f"`{shorten(far.text)}`",
                ),
                help="let the score fall with the distance: `1 / (1 + distance)`",
            )
            continue
        scores = [call.score for call in calls.all if call.score is not None]
        empty = calls.rows[0].score(EMPTY) if calls.rows else None
        if calls.form or calls.note or empty is None or max(scores) - min(scores) <= SAME:
            continue
        pairs = list(zip(calls.tried[::2], calls.tried[1::2], strict=True))
        worse = [
            (right, wrong) for right, wrong in pairs
            if (right.kind, wrong.kind) == (RIGHT, WRONG)
            and right.score is not None and wrong.score is not None
            and right.score < min(wrong.score, empty) - SAME
        ]  # fmt: skip
        if not worse or any(r.score is not None and w.score is None for r, w in pairs):
            continue
        right, wrong = worse[0]
        yield finding(
            f"`{reward.reward.name}` gives {right.score:.4g} to the right answer, and "
            f"{wrong.score:.4g} to a wrong one",
            place_of(reward.reward, view),
            notes=(
                f"{calls.rows[0].place}, target {calls.rows[0].target}: right "
                f"`{shorten(right.text)}`, wrong `{shorten(wrong.text)}`",
            ),
            help="let the right answer have the highest score; if a reward measures something bad, "
            "give it a negative weight in the rubric",
        )


def _is_farther_better(row: CalledRow) -> bool:
    """True if the score of a number rises with its distance to the target."""
    right, near, far = (row.score(kind) for kind in (RIGHT, "near", WRONG))
    if right is None or near is None or far is None:
        return False
    return right + SAME < near and near + SAME < far
