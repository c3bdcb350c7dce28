r"""X837 numbers-alike: different numbers are compared as if they were one.

    return float(int(float(said)) == int(float(target)))         # fires: 3.9 equals 3.2
    return float(re.sub(r"\D", "", said) == re.sub(r"\D", "", target))    # fires: -5 equals 5
    return float(math.isclose(float(said), float(target)))       # silent

`int` removes the decimals on both sides, and a pattern for everything that is no digit removes the
sign and the point: wrong answers get the full reward. Compare numbers as numbers (rl #3542). The
rule looks at comparisons with the target, also in helper functions. It does not report comparisons
of digits alone if the target in the first row of a local file is no number, such as a date or a
telephone number.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import first_target
from forgedsl.lint.rewards import python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    from forgedsl.lint.follow.values import Event

finding = rule(__doc__, "W")
DIGITS_ONLY = "without sign and point"
NUMBER = r"[^\w+.,-]*[-+]?[^\w+.,-]*(\d[\d,]*\.?\d*|\.\d+)([eE][-+]?\d+)?[^\d.,+-]*"
"""a number, perhaps with a currency, thousands or a unit"""


def check(view: View) -> Findings:
    if not (python_rewards(view) or python_environments(view)):
        return
    from forgedsl.lint.follow.programs import label
    from forgedsl.lint.follow.scores import scorers

    target = first_target(view)
    is_no_number = target != "" and not re.fullmatch(NUMBER, target.strip())
    for scorer in scorers(view):
        events = [event for flow in scorer.flows for event in flow.events]
        compares = any(map(_is_verdict, events))
        for event in events:
            what = _alike(event) or ("" if compares else _lengths(event))
            if what and not (DIGITS_ONLY in what and is_no_number):
                yield finding(
                    f"{scorer.what} compares {what}",
                    scorer.span,
                    related=(label(view, "here", event.file, event.node),),
                    help="compare the texts themselves by `==`"
                    if "lengths" in what
                    else "`math.isclose(float(said), float(target))`",
                )
                break


def _is_verdict(event: Event) -> bool:
    """True if contents of an answer and of the target are compared."""
    from forgedsl.lint.follow.values import meet

    pair = event.values[:2]
    return event.kind in ("compare", "difference", "any", "call") and len(pair) == 2 and meet(*pair)


def _lengths(event: Event) -> str:
    """Return a message for `len(said) == len(target)`, if nothing else compares their contents."""
    import ast as python

    from forgedsl.lint.follow.values import READS_RESPONSE, READS_TARGET

    node = event.node
    if event.kind != "compare" or not event.is_equality or not isinstance(node, python.Compare):
        return ""
    sides = (node.left, *node.comparators)
    counted = [getattr(getattr(each, "func", None), "id", "") == "len" for each in sides]
    one, two = (value.all for value in event.values[:2])
    both = (READS_RESPONSE in one and READS_TARGET in two) or (
        READS_TARGET in one and READS_RESPONSE in two
    )
    return "only the lengths of answer and target" if both and all(counted) else ""


def _alike(event: Event) -> str:
    """Return what two sides of a comparison have lost; "" if nothing."""
    from forgedsl.lint.follow.values import DIGITS, WHOLE_NUMBER, meet

    if event.kind != "compare" or not event.is_equality or not meet(*event.values[:2]):
        return ""
    common = event.values[0].labels & event.values[1].labels
    if WHOLE_NUMBER in common:
        return "two numbers without their decimals: 3.9 equals 3.2"
    return f"two numbers {DIGITS_ONLY}: -1.5 equals 15" if DIGITS in common else ""
