"""X847 number-told: a score has a number in it that the policy passes to a tool.

    @tool
    def hand_in(self, answer: str, used: int = 0) -> str:
        self.answer, self.used = answer, used
    return float(self.answer == self.gold) - 0.001 * self.used           # fires: it passes 0
    return float(self.answer == self.gold) - 0.001 * len(turn.text)      # silent

The policy passes the number that gives the best score, whatever it did: a cost of 0, a confidence
of 1. In OpenEnv #446 the length that was charged was one that the policy reported. Count in the
environment. The rule is silent if the number is compared with something that the class knows, or
added up over the turns: then it is a part of the game. `lint --deep` calls tools with such numbers
(X860).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

if TYPE_CHECKING:
    from forgedsl.lint.follow.values import Event

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    if not any(env.tools for env in python_environments(view)):
        return
    from forgedsl.lint.follow.programs import label, tool_numbers
    from forgedsl.lint.follow.scores import scorers
    from forgedsl.lint.follow.values import ARGUMENTS

    names = {
        mark: (tool, name)
        for env in python_environments(view)
        for tool, given in tool_numbers(env.methods, env.tools).items()
        for name, mark in given.items()
    }
    for scorer in scorers(view):
        if scorer.is_reward:
            continue
        checked = {
            mark
            for flow in scorer.flows
            for event in flow.events
            if event.kind == "compare"
            for mark in _compared(event)
        }
        for score in scorer.scores:
            told = sorted((score.value.all & {*ARGUMENTS}) - checked)
            if told:
                tool, name = names[told[0]]
                yield finding(
                    f"the score of {scorer.what} depends on `{name}`, a number that the policy "
                    f"passes to `{tool}`",
                    scorer.span,
                    related=(label(view, "the score", score.file, score.node),),
                    help="count it in the class: the policy passes what pays best",
                )
                break


def _compared(event: Event) -> set[str]:
    """Return the numbers of the policy that are compared with something that is not a constant."""
    from forgedsl.lint.follow.values import ARGUMENTS, UNKNOWN

    found = set[str]()
    for number, value in enumerate(event.values):
        others = (v for place, v in enumerate(event.values) if place != number)
        if any(other.const is UNKNOWN for other in others):
            found |= value.all & {*ARGUMENTS}
    return found
