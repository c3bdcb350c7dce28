"""X817 lenient-check: a Python reward accepts answers that are not the target.

    return float(target in response)                 # fires: "3" is in "13", and in every long text
    answer = found.group(1) if found else "0"        # fires: no answer is the answer 0
    return float(answer == target)
    return float(answers(response)[-1:] == [target])                      # silent
    if found is None: return 0.0                     # silent

The policy finds such a text sooner than the answer. In verifiers #763 a substring search rewarded
21 where 1 was right. A default for a missing answer is rewarded whenever the target happens to
equal it. Extract the answer from the response, return 0 if there is none, and compare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.hir.pycalls import Inputs, inputs_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import PythonReward, place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Iterator

finding = rule(__doc__, "W")
SAME = ("str", "strip", "lower", "upper", "casefold", "replace", "int", "float", "rstrip", "lstrip")
"""functions that keep the meaning of a text: they convert or strip it"""


def check(view: View) -> Findings:
    from forgedsl.lint.python_returns import wrong

    for found in python_rewards(view):
        if wrong(found.definition)[1] is not None:
            continue  # one mistake, one message: X811
        inputs = inputs_of(found.function)
        given = inputs.by_name if isinstance(inputs, Inputs) and not inputs.lists else {}
        targets = {name for name, source in given.items() if source == "target"}
        texts = {name for name, source in given.items() if source == "response"}
        for what, node in (*_part(found, targets, texts), *_default(found, targets)):
            yield finding(
                f"reward `{found.reward.name}` {what}",
                place_of(found.reward, view),
                related=(Label(text="here", span=found.at(node)),),
                help="return 0 where there is no answer"
                if "default" in what
                else "take the answer out of the response, and compare it by `==`",
            )
            break


def _part(
    found: PythonReward, targets: set[str], texts: set[str]
) -> Iterator[tuple[str, python.AST]]:
    """Yield substring searches for the target in the whole response."""
    import ast as python

    for node in python.walk(found.definition):
        if not isinstance(node, python.Compare) or not isinstance(node.ops[0], python.In):
            continue
        if _name(node.left) in targets and _name(node.comparators[0]) in texts:
            yield "pays wherever the target is a part of the response", node


def _default(found: PythonReward, targets: set[str]) -> Iterator[tuple[str, python.AST]]:
    """Yield names that are compared with the target and have a constant default if no answer was
    found."""
    import ast as python

    nodes = list(python.walk(found.definition))
    compared = set()
    for node in nodes:
        if isinstance(node, python.Compare) and isinstance(node.ops[0], python.Eq):
            sides = [_name(node.left), _name(node.comparators[0])]
        elif isinstance(node, python.BinOp) and isinstance(node.op, python.Sub):
            sides = [_name(node.left), _name(node.right)]
        else:
            continue
        if {*sides} & targets:
            compared |= {*sides} - targets - {""}
    inside = [
        node
        for handler in nodes
        if isinstance(handler, python.ExceptHandler)
        for node in python.walk(handler)
    ]
    for node in nodes:
        if not isinstance(node, python.Assign) or _name(node.targets[0]) not in compared:
            continue
        value = node.value
        last = value.orelse if isinstance(value, python.IfExp) else value
        if last is value and node not in inside:
            continue
        if _is_answer(last):
            yield f"takes `{python.unparse(last)}` as a default for an answer it cannot read", node


def _is_answer(value: python.expr) -> bool:
    """True if a constant could be an answer: a number, or a text that is not empty."""
    import ast as python

    if isinstance(value, python.UnaryOp):
        value = value.operand
    text = value.value if isinstance(value, python.Constant) else None
    return isinstance(text, int | float | str) and not isinstance(text, bool) and text != ""


def _name(node: python.expr) -> str:
    """Return the name inside conversions: `target` for `str(target).strip().lower()`; "" if there
    is none."""
    import ast as python

    while isinstance(node, python.Call):
        called = node.func
        if getattr(called, "attr", getattr(called, "id", "")) not in SAME:
            return ""
        if isinstance(called, python.Attribute):
            node = called.value
        elif len(node.args) == 1:
            node = node.args[0]
        else:
            return ""
    return node.id if isinstance(node, python.Name) else ""
