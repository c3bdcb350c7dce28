"""R534 mistakes-paid: a judge counts mistakes, and the score rises with its grade.

    reward faults = judge.score(prompt = "How many mistakes has {response}?", scale = [0, 9])
    rubric grade { score = faults, on_truncated = 0.0 }                      # fires
    rubric grade { score = 1.0 - faults, on_truncated = 0.0 }                # silent

A grade is divided by its scale, and a higher one is better. If the judge counts what is wrong, the
policy is trained to make mistakes, as in TRL #117, where the score of the wrong class of a
classifier was the reward. Subtract the reward, or ask for what is right. The rule reads questions
that begin with `how many` or `count`, and go on with mistakes, errors or what is wrong.
"""

import re

from forgedsl.diagnostics import Label
from forgedsl.hir.judges import judge_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of
from forgedsl.lint.rubrics import positive_rewards
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
COUNTED = re.compile(
    r"\b(how many|the number of|count)\b[^.?!:{}]*"
    r"\b(mistakes?|errors?|faults?|flaws?|typos?|wrong|incorrect|false|broken|missing|violat\w+"
    r"|do not|does not|another)\b",
    re.IGNORECASE,
)


def check(view: View) -> Findings:
    raises = positive_rewards(view)
    for reward in view.program.rewards.values():
        judge = judge_of(reward)
        found = COUNTED.search(judge.args["prompt"]) if judge is not None else None
        if found is not None and reward.name in raises:
            yield finding(
                f"`{reward.name}` grades `{found[0]}`, and the score rises with it",
                place_of(reward, view),
                related=(Label(text="counts as good", span=raises[reward.name]),),
                help=f"`1.0 - {reward.name}`, or ask how many are right",
            )
