"""X857 idle-paid: a player who says nothing, or repeats what it reads, gets as much as a right one.

    solved = float(turn.text in self.answer)     # fires: an empty text is in every text
    solved = float(turn.text == self.answer)     # silent

`lint --deep` plays the environment with a player who gives the right answer and one who gives a
wrong one. Others are silent, repeat the last observation, say that they are not sure, or write open
tags. The rule fires if one of these four gets as much as the right player on every row: the policy
learns to play like that one (trl #6427).
"""

from __future__ import annotations

from forgedsl.lint.call_results import SAME
from forgedsl.lint.deep_calls import played_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
IDLE = {
    "silent": "for silence", "echo": "for repeating what it shows",
    "words": "for `I am not sure`", "tags": "for open tags",
}  # fmt: skip


def check(view: View) -> Findings:
    for env, plays in played_environments(view):
        right = plays.totals("right")
        for player, said in IDLE.items():
            mine = plays.totals(player)
            if not plays.form or right is None or mine is None:
                continue
            if all(a >= b - SAME for a, b in zip(mine, right, strict=True)):
                yield finding(
                    f"`{env.env.name}` gives {mine[0]:.4g} {said}, and {right[0]:.4g} for the "
                    f"right answer (`{plays.part}`)",
                    env.env.name_span,
                    help="reward an answer that equals the target, and nothing else",
                )
                break
