"""X860 argument-paid: a number that the policy passes with its answer is rewarded.

    @tool
    def hand_in(self, answer: str, confidence: float) -> str:
        self.given, self.weight = answer, confidence
    reward = self.weight * (self.given == self.answer)          # fires: 1000 gets most
    hit, sure = float(self.given == self.answer), min(1.0, max(0.0, self.weight))
    reward = hit - (hit - sure) ** 2                            # silent

`lint --deep` calls the tool that takes the answer with 0, 1 and 1000 for each of its other numbers.
The rule fires if a wrong answer then gets as much as the right one, or the right answer twice as
much as with any smaller number, on every row. The policy chooses such a number freely, as in
OpenEnv #446. Compute it from what the policy wrote, or limit it so that an honest number is best.
"""

from __future__ import annotations

from forgedsl.lint.call_results import ARGUMENT, SAME
from forgedsl.lint.deep_calls import played_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for env, plays in played_environments(view):
        right = plays.totals("right")
        if not plays.form or right is None or not plays.rows:
            continue
        for player in plays.rows[0].plays:
            mine = plays.totals(player) if player.startswith(ARGUMENT) else None
            if mine is None:
                continue
            tool, parameter, number = player.split(" ")[1:]
            is_right = tool == "right"
            one = plays.totals(f"{ARGUMENT}right {parameter} 1") or right
            least = [max(a, b) for a, b in zip(right, one, strict=True)]
            more = all(a > 2 * b + SAME for a, b in zip(mine, least, strict=True))
            same = all(a >= b - SAME for a, b in zip(mine, right, strict=True))
            if more if is_right else same:
                what = "the right answer" if is_right else "a wrong answer"
                yield finding(
                    f"`{env.env.name}` gives {mine[0]:.4g} to {what} with `{parameter}` {number}, "
                    f"and {right[0]:.4g} to the right answer without it (`{plays.part}`)",
                    env.env.name_span,
                    help=f"compute `{parameter}` from what the policy wrote, or limit what it can "
                    "change",
                )
                break
