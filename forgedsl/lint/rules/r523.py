"""R523 failure-pays: a truncated or failed completion scores higher than a finished wrong one.

When the policy does not know the answer, it then learns to ramble to the limit, or to write
something that makes the reward fail (TRL #3248 and #3229, open-r1 #159, NeMo-RL #431). Set
`on_truncated` and `on_error` to at most the score of a wrong answer.

    rubric grade { score = 2.0 * correct - 1.0, on_truncated = 0.0 }        # fires: wrong is -1
    rubric grade { score = correct, on_truncated = 0.0, on_error = 1.0 }    # fires
    rubric grade { score = 2.0 * correct - 1.0, on_truncated = -1.0 }       # silent

    environment shop = game.Game { on_error = 1.0 }                         # fires
    reward patience(r: Rollout) -> f32 = 0.3 if r.ended == "turns" else 0.0 # fires, if it is added

The comparison is with a wrong answer without penalties. The rule fires if the difference is at
least a quarter of the distance to the best score. It assumes that rewards in Python are between 0
and 1.
"""

from collections.abc import Iterator

from forgedsl.ir.program import Decl, EnvironmentDecl
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import (
    Score,
    ending_scores,
    inverted,
    penalizes_all,
    place_of,
    score_of,
)
from forgedsl.lint.view import View, place
from forgedsl.types.flow import Role

finding = rule(__doc__, "D")
PART = 0.25
WHAT = {"on_truncated": "a cut answer", "on_error": "an answer whose reward failed"}


def check(view: View) -> Findings:
    for rubric in view.program.rubrics.values():
        score = score_of(view, rubric)
        told = inverted(score) or any(penalizes_all(r, view) for r in score.rewards.values())
        found = None if told else score.interval  # R522 reports what lowers the score
        for key, what, decl in _given(view, rubric):
            value = decl.settings[key].value
            if found is None or not isinstance(value, int | float):
                continue
            wrong = _wrong(score)
            if found.hi > found.lo and value >= wrong + PART * (found.hi - wrong):
                yield finding(
                    f"{what} scores {value:g}, but a finished wrong answer scores {wrong:g}",
                    place(decl.settings[key], decl),
                    notes=(f"finished answers score from {found.lo:g} to {found.hi:g}",),
                    help=f"`{key} = {found.lo:g}`, so that a finished answer is never worse",
                )

    for name in dict.fromkeys(s.receiver for s in view.program.flow if Role.SCORES in s.roles):
        for end, (at_end, finished, reward) in ending_scores(name, view).items():
            yield finding(
                f'a trajectory that ends as "{end}" scores {at_end:g} without a right answer, and '
                f"a finished wrong one {finished:g}",
                place_of(view.program.rewards[reward], view),
                help="give an unfinished trajectory at most what a wrong answer gets",
            )
            break


def _given(view: View, rubric: Decl) -> Iterator[tuple[str, str, Decl | EnvironmentDecl]]:
    """Yield the settings that score failures: those of a rubric, and of the environments whose
    trajectories it scores."""
    for key, what in WHAT.items():
        yield key, what, rubric
    flow = view.program.flow
    played = {step.name: step.settings["env"].value for step in flow if "env" in step.settings}
    for step in flow if played else ():
        scored = Role.SCORES in step.roles and step.receiver == rubric.name
        for read in step.inputs if scored else ():
            env = view.program.environments.get(getattr(played.get(read.edge), "name", ""))
            if env is not None:
                yield "on_error", "a trajectory whose environment failed", env


def _wrong(score: Score) -> float:
    """Return the score of a finished answer without any reward or penalty."""
    at = {}
    for name, found in score.ranges.items():
        at[name] = 0.0 if found is None else found.hi if found.hi <= 0 else found.lo
    return score.at(at)
