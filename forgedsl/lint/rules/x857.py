"""X857 idle-paid: a player who says nothing, or repeats what it reads, gets as much as a right one.

    solved = float(turn.text in self.answer)     # fires: an empty text is in every text
    solved = float(turn.text == self.answer)     # silent

`lint --deep` plays the environment with a player who gives the right answer and one who gives a
wrong one. Others are silent, repeat the last observation, say that they are not sure, or write open
tags. Others give what is not quite the right answer: a part of it, a number that contains it, two
answers. The rule fires if one of these gets as much as the right player on every row: the policy
learns to play like that one. It also fires if silence gets more than a wrong answer (a policy that
is seldom right then stops answering, trl #6427), or if wrong answers in all turns get more than the
right one.
"""

from __future__ import annotations

from forgedsl.lint.call_results import ARGUMENT, CHEATS, SAME
from forgedsl.lint.deep_calls import played_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
IDLE = {
    "silent": "for silence", "echo": "for repeating what it shows",
    "words": "for `I am not sure`", "tags": "for open tags", **CHEATS,
}  # fmt: skip


def check(view: View) -> Findings:
    for env, plays in played_environments(view):
        right = plays.totals("right")
        wrong, silent = plays.totals("wrong"), plays.totals("silent")
        if plays.worse is not None:
            worse = plays.worse
            yield finding(
                f"`{env.env.name}` gives {worse.wrong:.4g} for wrong answers until the end, and "
                f"{worse.right:.4g} for the right one (`{worse.part}`)",
                env.env.name_span,
                help="give a wrong answer less than the right one, also over all turns that a "
                "trajectory may have",
            )
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
        else:
            can_doubt = any(p.startswith(ARGUMENT) for row in plays.rows for p in row.plays)
            known = plays.form and not can_doubt  # a wrong answer may be given with less confidence
            quiet = zip(silent or (), wrong or (), strict=False) if known else ()
            gaps = [(a, b) for a, b in quiet if a > b + SAME]
            if gaps and len(gaps) == len(plays.rows):
                yield finding(
                    f"`{env.env.name}` gives {gaps[0][0]:.4g} for silence, and {gaps[0][1]:.4g} "
                    f"for a wrong answer (`{plays.part}`)",
                    env.env.name_span,
                    help="give silence no more than a wrong answer: a policy that is seldom right "
                    "stops answering",
                )
