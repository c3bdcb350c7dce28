"""R528 length-pays: a term that is named for brevity makes the score rise with length.

    reward brevity(r: Rollout) -> f32 = clamp(r.num_tokens / max_new, 0.0, 1.0)
    rubric grade { score = correct + 0.05 * brevity, on_truncated = 0.0 }      # fires
    reward brevity(r: Rollout) -> f32 = clamp(1.0 - r.num_tokens / max_new, 0.0, 1.0)   # silent
    reward penalty(r: Rollout) -> f32 = clamp(0.0 - r.num_tokens / max_new, -1.0, 0.0)
    rubric grade { score = correct - 0.05 * penalty, on_truncated = 0.0 }      # fires: twice minus

Length is the easiest thing to produce: the policy pads its answers up to the limit, and the score
rises without better answers (CoursIA #10380; the signs in open-r1 #360 are easily confused, too).
Change the sign. The rule looks at rewards whose names suggest brevity or a penalty: `brevity`,
`short`, `concise`, `length_penalty`, `too_long`. For a reward in Python it also looks at the name
of the function. It does not report a score that subtracts `brevity`: this can be meant.
"""

from forgedsl.ir.program import PythonFunction, RewardDecl
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import length_slope, place_of, python_rewards, score_of
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
PENALTY = ("penal", "toolong", "too_long", "overlong", "over_long")
NAMED = ("brev", "short", "concis", "terse", "efficien", *PENALTY)
"""parts of names in small letters"""


def check(view: View) -> Findings:
    for rubric in view.program.rubrics.values():
        score = score_of(view, rubric)
        for name, reward in score.rewards.items():
            words = f"{name} {getattr(reward.body, 'name', '')}".lower()
            slope = _slope(reward, view) if any(part in words for part in NAMED) else 0
            effects = score.change_by(name) if slope > 0 or _is_penalty(words) else []
            if slope and effects and min(slope * effect for effect in effects) > 0:
                does = "does" if slope > 0 else "falls with it, and is subtracted"
                yield finding(
                    f"`{rubric.name}` rises with the length of an answer, because `{name}` {does}",
                    place_of(reward, view),
                    help="`clamp(1.0 - r.num_tokens / 1024, 0.0, 1.0)` rewards short answers; give "
                    "a penalty that rises with length a negative weight",
                )


def _is_penalty(words: str) -> bool:
    return any(part in words for part in PENALTY)


def _slope(reward: RewardDecl, view: View) -> int:
    """Return 1 if a reward rises with the length of an answer, -1 if it falls, else 0."""
    if not isinstance(reward.body, PythonFunction):
        return length_slope(reward, view)
    from forgedsl.lint.python_bodies import length_slope as slope_of  # most programs have no Python

    return next((slope_of(found) for found in python_rewards(view) if found.reward is reward), 0)
