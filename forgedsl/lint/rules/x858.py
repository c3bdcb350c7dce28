"""X858 answer-told: an environment reveals the answer to a wrong player, and then rewards it.

    return Step(f"No, it is {self.answer}.")                      # fires: the next turn repeats it
    return Step(f"No, it was {self.answer}.", done=True)          # silent: nobody reads it
    return Step("No, try again.")                                 # silent

`lint --deep` plays with a player who answers wrong until an observation names the target, and then
gives it. The rule fires if the prompt did not name it, and this player is rewarded more than one
who stays wrong, on every row. The policy learns to be wrong first, or to copy the answer from what
it was shown.
"""

from __future__ import annotations

from forgedsl.lint.call_results import SAME, shorten
from forgedsl.lint.deep_calls import played_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for env, plays in played_environments(view):
        told, wrong = plays.totals("told"), plays.totals("wrong")
        if not plays.form or told is None or wrong is None:
            continue
        if all(a > b + SAME for a, b in zip(told, wrong, strict=True)):
            row = plays.rows[0]
            read = row.plays["told"].shown
            text = next((each for each in read if str(row.target) in each), read[-1])
            yield finding(
                f"`{env.env.name}` shows the answer to a player who was wrong, and then gives "
                f"{told[0]:.4g} for repeating it (`{plays.part}`)",
                env.env.name_span,
                notes=(f"{row.place}, target {row.target}: it shows `{shorten(text)}`",),
                help="leave the target out of observations, or end the trajectory with them: "
                "`done=True`",
            )
