"""X820 repeats-paid: a reward rises with each copy of a text in the response.

    return sum(0.1 * response.count(tag) for tag in TAGS)            # fires
    return sum(0.1 * (response.count(tag) == 1) for tag in TAGS)     # silent
    return min(0.5, 0.1 * response.count("therefore"))               # silent
    return 0.1 * len(STEP.findall(response))                         # fires
    return 1.0 - len(set(lines)) / len(lines)                        # fires: the share of repeats
    return right + 0.01 * math.sqrt(len(response.split()))           # fires

Nothing bounds the number of copies: a policy that writes a tag a hundred times gets more than a
right answer gets (open-r1 #359). The same holds for the length of
the response. A share of repeated words or lines is a cost: with a positive weight the policy writes
one line over and over. Reward a text that occurs once, bound the sum by `min`, subtract repeats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.rubrics import positive_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.python_bodies import Body
    from forgedsl.lint.rewards import PythonReward

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    raises = positive_rewards(view)
    for found in python_rewards(view):
        for question, what, help_ in QUESTIONS if found.reward.name in raises else ():
            node = found.once(question)
            if node is not None:
                yield finding(
                    f"reward `{found.reward.name}` rises with {what}",
                    place_of(found.reward, view),
                    related=(Label(text="here", span=found.at(node)),),
                    help=help_,
                )
                break


def _counted(found: PythonReward) -> python.AST | None:
    """Return the call of `count` with which the score rises without bound."""
    import ast as python

    from forgedsl.lint.python_bodies import body_of, texts_of

    body, texts = body_of(found), texts_of(found)
    for term in body.terms():
        node = term.node
        is_count = isinstance(node, python.Call) and getattr(node.func, "attr", "") == "count"
        if (
            (is_count or _is_length(body, node))
            and term.sign > 0
            and not term.is_capped
            and body.names(node) & texts
        ):
            return node
    return None


def _repeats(found: PythonReward) -> python.AST | None:
    """Return a number of different parts of the response that lowers the score:
    `1 - len(set(words)) / len(words)`, or `(len(words) - len(set(words))) / len(words)`."""
    import ast as python

    from forgedsl.lint.python_bodies import body_of, texts_of

    body, texts = body_of(found), texts_of(found)

    def is_distinct(node: python.expr) -> bool:
        match body.value(node):
            case python.Call(func=python.Name(id="len"), args=[inner]):
                made = body.value(inner)
                called = getattr(made, "func", None)
                is_set = isinstance(made, python.Set | python.SetComp) or getattr(
                    called, "id", getattr(called, "attr", "")
                ) in ("set", "frozenset", "Counter")
                return is_set and bool(body.names(made) & texts)
        return False

    for term in body.terms():
        node = body.value(term.node)
        left = body.value(node.left) if isinstance(node, python.BinOp) else node
        if isinstance(node, python.BinOp) and not isinstance(node.op, python.Div):
            continue
        if term.sign < 0 and is_distinct(left):
            return node
        match left:
            case python.BinOp(op=python.Sub(), right=less) if term.sign > 0 and is_distinct(less):
                return node
    return None


def _longer(found: PythonReward) -> python.AST | None:
    """Return the length of the response with which the score rises without bound."""
    from forgedsl.lint.python_bodies import body_of, is_length, texts_of

    body, texts = body_of(found), texts_of(found)
    for term in body.terms():
        if term.sign > 0 and not term.is_capped and is_length(body, term.node, texts):
            return term.node
    return None


def _is_length(body: Body, node: python.expr) -> bool:
    """True for the number of matches of a pattern: `len(STEP.findall(response))`."""
    import ast as python

    match body.value(node):
        case python.Call(func=python.Name(id="len"), args=[inner]):
            found = body.value(inner)
            name = getattr(found.func, "attr", "") if isinstance(found, python.Call) else ""
            return name in ("findall", "finditer")
    return False


QUESTIONS = (
    (
        _counted,
        "each repetition of a text",
        'reward one copy, `response.count("<answer>") == 1`, or use `min(1.0, ...)`',
    ),
    (
        _repeats,
        "the share of the response that is repeated",
        "subtract it, `- 0.5 * repeats`, or reward the share that is not repeated",
    ),
    (
        _longer,
        "the length of the response, without end",
        "limit it, `min(1.0, len(response) / 2000)`; leave it out if long answers are not wanted",
    ),
)
"""(what a score may rise with, how it is called, help); the first that is found is reported"""
