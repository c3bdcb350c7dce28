"""R523 failure-pays: a cut or failed answer scores more than a finished wrong one.

Whatever scores above a wrong answer is what the policy does when it does not know: it rambles to
the limit, or writes what makes the reward fail (TRL #3248 and #3229, open-r1 #159, NeMo-RL #431).

    rubric grade { score = 2.0 * correct - 1.0, on_truncated = 0.0 }        # fires: wrong is -1
    rubric grade { score = correct, on_truncated = 0.0, on_error = 1.0 }    # fires
    rubric grade { score = 2.0 * correct - 1.0, on_truncated = -1.0 }       # silent

An answer that is wrong and pays no penalty is the measure. It fires from a quarter of the way to
the best on, so that a small difference is no reason; a reward in Python counts as one from 0 to 1.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import Score, inverted, score_of
from forgedsl.lint.view import View, place

finding = rule(__doc__, "D")
PART = 0.25
WHAT = {"on_truncated": "a cut answer", "on_error": "an answer whose reward failed"}


def check(view: View) -> Findings:
    for rubric in view.program.rubrics.values():
        score = score_of(view, rubric)
        found = None if inverted(score) else score.interval
        for key, what in WHAT.items():
            value = rubric.settings[key].value
            if found is None or not isinstance(value, int | float):
                continue
            wrong = _wrong(score)
            if found.hi > found.lo and value >= wrong + PART * (found.hi - wrong):
                yield finding(
                    f"{what} scores {value:g}, a finished answer that is wrong {wrong:g}",
                    place(rubric.settings[key], rubric),
                    notes=(f"finished answers score from {found.lo:g} to {found.hi:g}",),
                    help=f"`{key} = {found.lo:g}`, so that it is never better than to finish",
                )


def _wrong(score: Score) -> float:
    """The score of a finished answer that wins nothing and pays no penalty."""
    at = {}
    for name, found in score.ranges.items():
        at[name] = 0.0 if found is None else found.hi if found.hi <= 0 else found.lo
    return score.at(at)
