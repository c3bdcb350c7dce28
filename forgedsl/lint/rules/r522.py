"""R522 inverted-reward: the score falls when a reward of the library rises.

`math_equal`, `exact`, `contains` a target and `think_tags` are 1 for good completions. `overlong`
is already a penalty (at most 0), so it is added. With the other sign the policy learns the
opposite, with a rising score (Alpamayo #29, open-r1 #312, verl #2107). Correct the sign.

    score = 1.0 - correct                                        # fires
    score = correct - overlong                                   # fires: rewards length
    reward overlong = rl.overlong(soft = max_new - 4096, hard = max_new)      # fires: soft below 0
    score = correct + overlong                                   # silent

The rule evaluates the score at the bounds of all its rewards, and a length penalty of the file for
an answer without tokens: if that is below 0, each answer pays.
"""

from forgedsl.ir.program import Constructor
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import (
    at_no_tokens,
    inverted,
    penalizes_all,
    place_of,
    score_of,
)
from forgedsl.lint.view import View

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for rubric in view.program.rubrics.values():
        score = score_of(view, rubric)
        for name in inverted(score):
            yield finding(
                f"the score falls as `{name}` rises",
                score.score.expr.span,
                help="`overlong` is negative already: add it"
                if getattr(score.rewards[name].body, "name", "") == "overlong"
                else f"`{name}` is 1 for what is wanted: give it a positive weight",
            )
    for reward in view.program.rewards.values():
        body = reward.body
        if penalizes_all(reward, view):
            yield finding(
                f"the length penalty `{reward.name}` is {at_no_tokens(reward, view):.3g} for an "
                "empty answer, so every answer is penalized",
                place_of(reward, view),
                help="let the penalty start at a length between 0 and `max_tokens`",
            )
        if isinstance(body, Constructor) and body.name == "overlong" and body.args["soft"] <= 0:
            yield finding(
                f"the length penalty `{reward.name}` starts at {body.args['soft']} tokens, so "
                "every answer is penalized",
                place_of(reward, view),
                help="`soft` is the length from which on an answer is too long",
            )
