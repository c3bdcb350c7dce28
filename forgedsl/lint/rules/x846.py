r"""X846 never-equal: an answer is compared in a way that cannot find it right.

    self.answer = int(task.target)
    if found[1] == self.answer:                        # fires: a text is never equal to a number
    if int(found[1]) == self.answer:                   # silent
    if int(found[1]) is int(target):                   # fires: two objects, even if they are equal
    if NUMBER.findall(text)[-1][0] == target:          # fires, if targets are longer

    NUMBER = re.compile(r"-?\d+")                      # fires, if targets are written as 1,234
    NUMBER = re.compile(r"-?\d[\d,]*")                 # silent

Every answer then counts as wrong, also the right one, so all advantages are 0. With `is`, CPython
finds small numbers equal, so a test with 7 succeeds and a run with 1024 fails. Read both sides as
numbers, or both as texts, and compare them with `==`. A pattern for a number that knows no comma
takes 234 of 1,234 (rl #3542). The rule fires if the reward removes commas somewhere, or if the
first rows have such targets, but nothing removes them before the search.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import first_target, is_counted
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Iterable

    from forgedsl.lint.follow.values import Event
    from forgedsl.lint.rewards import PythonReward

finding = rule(__doc__, "W")
SAMPLE = "It is 1,234"
THOUSANDS = r"\d,\d{3}"


def check(view: View) -> Findings:
    if not (python_rewards(view) or python_environments(view)):
        return
    from forgedsl.lint.follow.programs import environment_flows, label, reward_flow

    for found in python_rewards(view):
        flow = reward_flow(view, found)
        what, event = _never(flow.events if flow is not None else ())
        if event is not None:
            yield finding(
                f"reward `{found.reward.name}` {what}",
                place_of(found.reward, view),
                related=(label(view, "here", event.file, event.node),),
                help=_help(what),
            )
        letter = _letter(view, flow.events if flow is not None else ())
        if letter is not None and event is None:
            yield finding(
                f"reward `{found.reward.name}` compares one character of the answer with the "
                "target",
                place_of(found.reward, view),
                related=(label(view, "here", letter.file, letter.node),),
                help="write `[-1]` instead of `[-1][0]`: without groups, `findall` returns texts",
            )
        cut = _without_comma(view, found) if event is None else None
        if cut is not None:
            yield finding(
                f"the pattern for a number in reward `{found.reward.name}` ends at the comma of "
                "1,234",
                place_of(found.reward, view),
                related=(Label(text="here", span=found.at(cut)),),
                help=r'allow the comma, `-?\d[\d,]*`, and remove it: `.replace(",", "")`',
            )
    for env in python_environments(view):
        events = (event for method in environment_flows(view, env) for event in method.flow.events)
        what, event = _never(events)
        if event is not None:
            yield finding(
                f"{env.what} `{env.env.name}` {what}",
                env.env.name_span,
                related=(label(view, "here", event.file, event.node),),
                help=_help(what),
            )


def _without_comma(view: View, found: PythonReward) -> python.AST | None:
    """Return a search in the response for a number, whose pattern ends at the comma of 1,234."""
    import ast as python

    from forgedsl.lint.python_bodies import Body
    from forgedsl.types.effects import nodes_of

    functions = (n for n in found.module.body if isinstance(n, python.FunctionDef))
    named = {n.id for n in nodes_of(found.definition) if isinstance(n, python.Name)}
    text = found.source.text
    removes = re.search(r"""replace\(\s*["'],["']""", text) is not None
    if not (removes or re.search(THOUSANDS, first_target(view))):
        return None
    for function in (found.definition, *(f for f in functions if f.name in named)):
        body = Body(function, found.module)
        for search in body.searches:
            subject = " ".join(python.unparse(n) for n in body.nodes(search.subject)
                               if isinstance(n, python.Call))  # fmt: skip
            if search.method not in ("findall", "search", "finditer") or "','" in subject:
                continue
            try:
                taken = [m.group() for m in re.finditer(search.pattern, SAMPLE)]
            except re.error:
                continue
            if taken and all(re.fullmatch(r"[ =]*\d{1,3}", each) for each in taken):
                return search.call
    return None


def _letter(view: View, events: Iterable[Event]) -> Event | None:
    """Return a comparison of one character of the response with a target that has more."""
    from forgedsl.lint.follow.values import LETTER, READS_RESPONSE, TARGET

    if len(first_target(view).strip()) < 2 and not is_counted(view):
        return None
    for event in events:
        pair = event.values if event.kind == "compare" and event.is_equality else ()
        for one, other in (pair, pair[::-1]) if len(pair) == 2 else ():
            said = {LETTER, READS_RESPONSE} <= one.all
            if said and TARGET in other.all and LETTER not in other.labels:
                return event
    return None


def _help(what: str) -> str:
    if "`is`" in what:
        return "compare with `==`"
    return "convert both to numbers, or both to texts, before you compare them"


def _never(events: Iterable[Event]) -> tuple[str, Event | None]:
    """Return what is wrong with the first such comparison of a text or number of the policy."""
    import ast as python

    from forgedsl.lint.follow.values import MEMBER_OF, READS_RESPONSE, kind

    for event in events:
        if event.kind != "compare" or len(event.values) != 2:
            continue
        left, right = map(kind, event.values)
        if isinstance(event.node.ops[0], python.In | python.NotIn):  # type: ignore[attr-defined]
            members = event.values[1].labels & MEMBER_OF.keys()
            right = frozenset(MEMBER_OF[label] for label in members)
        said = any(READS_RESPONSE in value.all for value in event.values)
        if not (said and left and right):
            continue
        is_identity = isinstance(event.node.ops[0], python.Is | python.IsNot)  # type: ignore[attr-defined]
        if is_identity and left == right:
            return "compares values by `is`, which asks for one object", event
        is_in = isinstance(event.node.ops[0], python.In | python.NotIn)  # type: ignore[attr-defined]
        if (event.is_equality or is_in) and left != right:
            return "compares a number with a text, which are never equal", event
    return "", None
