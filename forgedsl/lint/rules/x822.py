"""X822 first-number: the first number of a response is taken for its answer.

    found = re.search(r"-?\\d+", response)                          # fires
    found = re.search(r"<answer>(-?\\d+)</answer>", response)       # silent
    found = re.findall(r"-?\\d+", response)[-1:]                    # silent

A response that reasons has many numbers, and the first is one of the question. The reward is then
nearly always 0, and rewards an answer without reasoning (verifiers #1336). Look for the tags that
the prompt asks for. The rule is silent if the prompt asks neither for tags nor for reasoning.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import asked_to_reason, drawn_from, said_to
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.rewards import PythonReward

finding = rule(__doc__, "W")
BARE = re.compile(r"(?:\\[ds.b+-]|\[(?:\\[ds.]|[-+0-9.,])*\]|\(\?:|[-+?*().,|]|\{[\d,]+\})+")
"""a pattern of digits, signs and separators alone"""
DIGIT = re.compile(r"\\d|0-9")


def check(view: View) -> Findings:
    asked = None
    for found in python_rewards(view):
        node = found.once(_first)
        if node is not None and asked is None:
            tags = any("<answer>" in said_to(dataset) for dataset in drawn_from(view))
            asked = tags or asked_to_reason(view)
        if node is not None and asked:
            yield finding(
                f"reward `{found.reward.name}` takes the first number of a response for its answer",
                place_of(found.reward, view),
                related=(Label(text="here", span=found.at(node)),),
                help='look for what the prompt asks for, `r"<answer>(-?\\d+)</answer>"`, or take '
                "the last number",
            )


def _first(found: PythonReward) -> python.AST | None:
    """Return a search for a bare number in the whole response, whose result meets the target."""
    from forgedsl.lint.python_bodies import body_of, name_of, parameters, texts_of

    texts, targets = texts_of(found), parameters(found, "target")
    body = body_of(found)
    if not any(targets & body.names(value) for value in body.returned):
        return None
    for search in body.searches:
        is_bare = BARE.fullmatch(search.pattern) and DIGIT.search(search.pattern)
        if search.method == "search" and is_bare and name_of(search.subject) in texts:
            return search.call
    return None
