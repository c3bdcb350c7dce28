"""R525 characters-for-tokens: a length in characters is compared with a limit in tokens.

`len(r.response)` counts characters, about four per token. A bonus for brevity that should reach to
`max_tokens` is already 0 at a quarter of it (ms-swift #3353). Use `r.num_tokens`.

    reward short(r: Rollout) -> f32 = clamp(1.0 - len(r.response) / max_new, 0.0, 1.0)     # fires
    reward short(r: Rollout) -> f32 = clamp(1.0 - r.num_tokens / max_new, 0.0, 1.0)        # silent

The rule also reads rewards in Python, where `len(response)` is compared with the number of
`max_tokens`, or divided by it, also under another name: a length that a method returns, a limit
that the class keeps.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from forgedsl.diagnostics import Edit, Fix, Label
from forgedsl.ir.program import Constant, Function, Scope
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import PythonReward, place_of, python_rewards
from forgedsl.lint.view import View
from forgedsl.syntax import ast
from forgedsl.syntax.walk import walk

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Iterator

    from forgedsl.lint.follow.values import Event

finding = rule(__doc__, "W")
LONG = 64
"""limits below this may be a number of characters by chance"""


def check(view: View) -> Findings:
    for found, here in _in_python(view):
        yield finding(
            f"reward `{found.reward.name}` compares a length in characters with "
            f"{view.max_tokens}, the limit in tokens",
            place_of(found.reward, view),
            related=(here,),
            help="take the rollout, `def short(r)`, and count tokens by `r.num_tokens`",
        )
    for reward in view.program.rewards.values():
        body = reward.body
        if not isinstance(body, Function) or view.max_tokens is None:
            continue
        for node in walk(body.statements):
            if not isinstance(node, ast.Binary):
                continue
            for one, other in ((node.left, node.right), (node.right, node.left)):
                length = _length(one)
                if length is not None and _number(other, body.scope) == view.max_tokens:
                    edit = Edit(text=f"{length}.num_tokens", span=one.span)
                    yield finding(
                        f"a length in characters is compared with {view.max_tokens}, the limit in "
                        "tokens",
                        node.span,
                        help=f"count tokens: `{length}.num_tokens`",
                        fix=Fix(message="count tokens", edits=(edit,), safe=False),
                    )


def _limited(view: View, found: PythonReward) -> Iterator[Event]:
    """Yield where a number of characters is compared with the limit of tokens, or divided by it,
    under whatever name."""
    from forgedsl.lint.follow.programs import reward_flow
    from forgedsl.lint.follow.values import CHARACTERS

    flow = reward_flow(view, found)
    for event in flow.events if flow is not None else ():
        is_pair = event.kind in ("compare", "difference", "quotient") or (
            event.kind == "call" and event.name in ("min", "max")
        )
        for one, other in (event.values, event.values[::-1]) if len(event.values) == 2 else ():
            if is_pair and CHARACTERS in one.labels and other.const == view.max_tokens:
                yield event


def _in_python(view: View) -> Iterator[tuple[PythonReward, Label]]:
    """Yield the comparisons of a length of the response with the limit of the sampler."""
    rewards = python_rewards(view) if (view.max_tokens or 0) >= LONG else []
    if not rewards:
        return
    from forgedsl.lint.follow.programs import label

    for found in rewards:
        given = found.function.args
        own = (
            Label(text="here", span=found.at(node))
            for node, number, name in found.once(_lengths)
            if (given.get(name) if number is None else number) == view.max_tokens
        )
        followed = (label(view, "here", each.file, each.node) for each in _limited(view, found))
        here = next(itertools.chain(own, followed), None)
        if here is not None:
            yield found, here


def _lengths(found: PythonReward) -> list[tuple[python.AST, float | None, str]]:
    """Return the comparisons of a length of the response, with the number on the other side, or
    with the parameter that is there: `limit` in `def brief(r, *, limit)`, and `self.limit`."""
    import ast as python  # imported late: most programs have no Python

    from forgedsl.lint.python_bodies import body_of, texts_of
    from forgedsl.types.effects import nodes_of

    body, texts = body_of(found), texts_of(found)
    places: list[tuple[python.AST, float | None, str]] = []
    for node in nodes_of(found.definition):
        match node:
            case python.BinOp(left=one, op=python.Div(), right=other):
                pass
            case python.Compare(left=one, comparators=[other]):
                pass
            case _:
                continue
        length = body.value(one)
        is_length = isinstance(length, python.Call) and getattr(length.func, "id", "") == "len"
        if is_length and _is_text(length, texts):
            far = body.value(other)
            if isinstance(far, python.Call) and len(far.args) == 1:  # float(limit)
                far = far.args[0]
            name = getattr(far, "attr", getattr(far, "id", ""))
            places.append((node, body.number(other), name))
    return places


def _is_text(length: python.expr, texts: set[str]) -> bool:
    """True for `len(response)` and `len(r.response)`."""
    import ast as python

    inner = length.args[0] if isinstance(length, python.Call) and length.args else None
    if isinstance(inner, python.Attribute) and inner.attr == "response":
        inner = inner.value
    return isinstance(inner, python.Name) and inner.id in texts


def _length(node: ast.Expr) -> str | None:
    """Return the rollout whose response length is measured."""
    if not isinstance(node, ast.Call) or node.function.text != "len" or len(node.args) != 1:
        return None
    text = node.args[0].value
    is_response = isinstance(text, ast.Path) and text.parts[1:] == ("response",)
    return text.parts[0] if is_response and isinstance(text, ast.Path) else None


def _number(node: ast.Expr, scope: Scope) -> object:
    if isinstance(node, ast.Integer):
        return node.value
    found = scope.lookup(node.parts) if isinstance(node, ast.Path) else None
    return found.value if isinstance(found, Constant) else None
