"""X861 paid-again: the same right answer is rewarded in several turns of a game.

    self.best = max(self.best, float(said == self.answer))
    return Step("go on", {"solved": self.best})                          # fires: in each turn
    return Step("go on", {"solved": self.best}, done=bool(self.best))    # silent
    def hand_in(self, answer): self.marks += answer == self.answer       # fires: for each call

Parts are summed over the turns of a trajectory. `lint --deep` plays with the right answer in every
turn, and calls the tool that takes it several times. The rule fires if the right answer is then
rewarded twice or more, on every row: the policy learns to repeat it. A game that never ends is
reported as X828 without a play (verifiers #22).
"""

from __future__ import annotations

from forgedsl.lint.call_results import SAME, PlayedRow
from forgedsl.lint.deep_calls import played_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for env, plays in played_environments(view):
        found = [_paid(row, plays.part) for row in plays.rows] if plays.form else []
        if found and all(once > SAME and total >= 2 * once - SAME for once, total in found):
            once, total = found[0]
            yield finding(
                f"`{env.env.name}` gives {once:.4g} for the right answer, and {total:.4g} if it is "
                f"given several times (`{plays.part}`)",
                env.env.name_span,
                help="reward a right answer once: end the trajectory with it (`done=True`), or "
                "remember that it was rewarded",
            )


def _paid(row: PlayedRow, part: str) -> tuple[float, float]:
    """Return the reward of one right answer, and of the same answer in several turns or calls."""
    again = row.plays.get("again")
    if again is not None and not again.error:
        return row.plays["right"].total(part), again.total(part)
    turns = [turn.get(part, 0.0) for turn in row.plays["right"].rewards]
    paid = [reward for reward in turns if reward > SAME]
    return (paid[0] if paid else 0.0), sum(paid)
