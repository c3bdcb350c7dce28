"""X872 share-floored: a share is computed by `//`, so it is 0 unless it is 1.

    return sum(word in response for word in words) // len(words)         # fires
    return sum(word in response for word in words) / len(words)          # silent

Three words of four then score as none. Such a reward differs less within a group, and rewards no
step on the way. The rule follows the quotient through helpers and through `float`, `min` and `max`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    from forgedsl.lint.follow.values import Event

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    if not (python_rewards(view) or python_environments(view)):
        return
    from forgedsl.lint.follow.programs import label
    from forgedsl.lint.follow.scores import scorers
    from forgedsl.lint.follow.values import CHARACTERS, FLOORED, READS_RESPONSE

    for scorer in scorers(view):
        labels = [score.value.labels for score in scorer.scores]
        given = [each for each in labels if {FLOORED, READS_RESPONSE} <= each]
        if not given or any(CHARACTERS in each for each in given):
            continue
        events = (event for flow in scorer.flows for event in flow.events)
        made = next((event for event in events if _is_floored(event)), None)
        if made is not None:
            yield finding(
                f"{scorer.what} divides with `//`, so every share below 1 becomes 0",
                scorer.span,
                related=(label(view, "rounded down", made.file, made.node),),
                help="divide with `/`",
            )


def _is_floored(event: Event) -> bool:
    """True for a `//` whose numerator depends on the response."""
    import ast as python

    from forgedsl.lint.follow.values import READS_RESPONSE

    is_floor = isinstance(getattr(event.node, "op", None), python.FloorDiv)
    return event.kind == "quotient" and is_floor and READS_RESPONSE in event.values[0].all
