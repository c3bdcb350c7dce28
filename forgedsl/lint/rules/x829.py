"""X829 one-digit-grade: a pattern takes one digit of a grade that may have two.

    return int(re.search(r"Score: (\\d)", reply)[1]) / 10            # fires: 10 is read as 1
    return int(re.search(r"Score: (\\d+)", reply)[1]) / 10           # silent

A grade of 10 is read as 1, so that the best answers get the worst grade (ms-swift #10163). Take all
digits. The rule fires if a single digit is divided by 10 or more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.rewards import PythonReward

finding = rule(__doc__, "W")
DIGIT = r"(?:\\d|\[[01]-9\])"
ONE = re.compile(rf"\({DIGIT}\)(?!\.|\\\.)|^[^()]*{DIGIT}$|^{DIGIT}[^()+*?{{.\\\[]*$")
"""a group of a single digit, or such a pattern without a group, not before a decimal point"""


def check(view: View) -> Findings:
    for found in python_rewards(view):
        node = _one_digit(found)
        if node is not None:
            yield finding(
                f"reward `{found.reward.name}` reads one digit of a grade: 10 becomes 1",
                place_of(found.reward, view),
                related=(Label(text="here", span=found.at(node)),),
                help='`r"Score: (\\d+)"` takes all digits',
            )


def _one_digit(found: PythonReward) -> python.AST | None:
    """Return a division by 10 or more of what such a pattern finds."""
    import ast as python

    from forgedsl.lint.python_bodies import body_of

    body = body_of(found)
    wrong = {search.call for search in body.searches if ONE.search(search.pattern)}
    for node in python.walk(found.definition) if wrong else ():
        if isinstance(node, python.BinOp) and isinstance(node.op, python.Div):
            whole = body.number(node.right)
            if whole is not None and whole >= 10 and wrong & {*body.nodes(node.left)}:
                return node
    return None
