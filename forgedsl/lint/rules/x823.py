"""X823 messages-measured: the length of a completion counts its messages.

    def size(completions, **kwargs):
        return [-abs(300 - len(c)) / 300 for c in completions]                  # fires
        return [-abs(300 - len(c[0]["content"])) / 300 for c in completions]    # silent

As in TRL, a completion of a chat prompt is a list of one message: its length is 1 for every answer,
so the reward is a constant (TRL #4202). Measure the text of the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.rewards import PythonReward

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    from forgedsl.lint.prompts import drawn_from, form_of

    for found in python_rewards(view):
        node = _measured(found)
        if node is not None and any(form_of(view, d) == "chat" for d in drawn_from(view)):
            yield finding(
                f"reward `{found.reward.name}` measures a list of messages, whose length is 1",
                place_of(found.reward, view),
                related=(Label(text="here", span=found.at(node)),),
                help='measure its text: `len(completion[0]["content"])`',
            )


def _measured(found: PythonReward) -> python.AST | None:
    """Return `len(completion)` in a function in TRL's style that never looks into a completion."""
    import ast as python

    from forgedsl.hir.pycalls import Inputs, inputs_of

    inputs = inputs_of(found.function)
    if not isinstance(inputs, Inputs) or not inputs.lists or "completions" not in inputs.by_name:
        return None
    nodes = list(python.walk(found.definition))
    each = {
        node.target.id
        for node in nodes
        if isinstance(node, python.comprehension | python.For)
        if isinstance(node.target, python.Name)
        if isinstance(node.iter, python.Name) and node.iter.id == "completions"
    }
    looked = {
        inner.id
        for node in nodes
        if isinstance(node, python.Subscript)
        or (isinstance(node, python.Call) and getattr(node.func, "id", "") != "len")
        for inner in python.walk(node)
        if isinstance(inner, python.Name) and not _is_length(node, inner)
    }
    for node in nodes:
        match node:
            case python.Call(func=python.Name(id="len"), args=[python.Name(id=name)]):
                if name in each - looked:
                    return node
    return None


def _is_length(node: python.AST, name: python.Name) -> bool:
    """True if a name stands inside of a node only as the argument of `len`."""
    import ast as python

    return any(
        isinstance(inner, python.Call)
        and getattr(inner.func, "id", "") == "len"
        and name in inner.args
        for inner in python.walk(node)
    )
