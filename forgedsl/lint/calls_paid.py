"""Parts of environments that pay for calls of tools, whatever the calls return.

View -> names of the parts, and the rewards that rise with them without a bound
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from forgedsl.ir.program import Function, RewardDecl
from forgedsl.lint.rewards import reward_interval
from forgedsl.lint.rubrics import positive_rewards
from forgedsl.lint.view import View
from forgedsl.syntax.walk import names
from forgedsl.types.intervals import INF

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.environments import PythonClass

CASTS = ("float", "int", "bool", "min", "max", "round")
"""functions whose result counts what their argument counts"""


def parts_paid_by_calls(view: View) -> frozenset[str]:
    """Return the parts that rise with the number of calls, computed once."""
    if parts_paid_by_calls not in view.answers:
        found = set[str]()
        if view.program.environments:
            from forgedsl.lint.environments import python_environments

            for env in python_environments(view):
                found |= _counted(env) | _paid_by_call(view, env)
        view.answers[parts_paid_by_calls] = frozenset(found)
    known: frozenset[str] = view.answers[parts_paid_by_calls]
    return known


def paid_without_limit(view: View) -> list[RewardDecl]:
    """Return the rewards without an upper bound that a score adds, and that rise with each call of
    a tool."""
    if not view.program.environments:
        return []
    positive, parts = positive_rewards(view), parts_paid_by_calls(view)
    found = []
    for name, reward in view.program.rewards.items():
        if name in positive and part_of(reward) in parts:
            interval = reward_interval(reward, view)
            if interval is not None and interval.hi == INF:
                found.append(reward)
    return found


def part_of(reward: RewardDecl) -> str:
    """Return the part of the environment that a reward reads."""
    body = reward.body
    found = names(body.statements) if isinstance(body, Function) else ()
    return next((parts[2] for parts in found if parts[1:2] == ("rewards",) and parts[2:]), "")


def _paid_by_call(view: View, env: PythonClass) -> set[str]:
    """Return the parts that a step gives as a number of calls, times any number."""
    from forgedsl.lint.follow.programs import environment_flows
    from forgedsl.lint.follow.values import CALLS

    found = set[str]()
    for event in (event for method in environment_flows(view, env) for event in method.flow.events):
        if event.kind == "call" and event.name.rpartition(".")[2] == "Step":
            rewards = event.argument("rewards", 1)
            fields = (rewards.fields or {}) if rewards is not None else {}
            found |= {part for part, value in fields.items() if CALLS in value.labels}
    return found


def _counted(env: PythonClass) -> set[str]:
    """Return the parts that a class gives as a number of calls: `names.count("lookup")`,
    `len(turn.calls)`, `0.2 * self.calls` if each call of a tool adds 1 to `self.calls`."""
    import ast as python

    found, attributes = set[str](), {*_counters(env)}
    for method in env.methods.values():
        counters = attributes | {*_copies(method, attributes)}
        for node in python.walk(method):
            if not isinstance(node, python.Dict):
                continue
            for key, value in zip(node.keys, node.values, strict=True):
                if not isinstance(key, python.Constant):
                    continue
                calls = [n for n in python.walk(value) if isinstance(n, python.Call)]
                if any(_counts(call, env.tools) for call in calls) or _is_count(value, counters):
                    found.add(str(key.value))
    return found


def _counts(call: python.Call, tools: frozenset[str]) -> bool:
    import ast as python

    match call:
        case python.Call(func=python.Attribute(attr="count"), args=[python.Constant(value=name)]):
            return name in tools
        case python.Call(func=python.Name(id="len"), args=[inner]):
            return python.unparse(inner) == "turn.calls"
    return False


def _counters(env: PythonClass) -> Iterator[str]:
    """Yield the attributes to which every call of a tool adds something: `self.calls += 1` in a
    tool, `self.calls += len(turn.calls)` anywhere. What is added under a condition may depend on
    the result of the call."""
    import ast as python

    for name, method in env.methods.items():
        for node in method.body if name in env.tools else python.walk(method):
            match node:
                case python.AugAssign(target=python.Attribute(), op=python.Add(), value=value):
                    is_one = isinstance(value, python.Constant) and name in env.tools
                    if is_one or _adds_calls(value):
                        yield python.unparse(node.target)
                case python.Assign(targets=[python.Attribute() as target], value=value):
                    if _adds_calls(value) and python.unparse(target) in python.unparse(value):
                        yield python.unparse(target)


def _adds_calls(value: python.expr) -> bool:
    """True for a sum, or a number with a limit, that has `len(turn.calls)` and no test."""
    import ast as python

    inside = [*python.walk(value)]
    tests = python.Compare | python.IfExp | python.BoolOp | python.Sub | python.Div
    counts = any(isinstance(n, python.Call) and _counts(n, frozenset()) for n in inside)
    others = {n.id for n in inside if isinstance(n, python.Name)} - {"len", "turn", "self", *CASTS}
    return counts and not others and not any(isinstance(n, tests) for n in inside)


def _copies(method: python.AST, attributes: set[str]) -> Iterator[str]:
    """Yield the names that a method assigns once, and that count what a counter counts."""
    import ast as python

    names = [n for n in python.walk(method) if isinstance(n, python.Name)]
    stored = [n.id for n in names if isinstance(n.ctx, python.Store)]
    for node in python.walk(method):
        match node:
            case python.Assign(targets=[python.Name(id=name)], value=value):
                if stored.count(name) == 1 and _is_count(value, attributes):
                    yield name


def _is_count(value: python.expr, counters: set[str]) -> bool:
    """True for a counter, with a limit or multiplied or divided by what is no counter, too, and for
    a test that it is large enough."""
    import ast as python

    match value:
        case python.Attribute() | python.Name():
            return python.unparse(value) in counters
        case python.Compare(left=left, ops=[python.Gt() | python.GtE()]):
            return _is_count(left, counters)
        case python.Call(func=python.Name(id=name), args=args) if name in CASTS:
            return any(_is_count(arg, counters) for arg in args)
        case python.BinOp(left=left, op=python.Mult(), right=right):
            sides = [left, right]
            if not any(isinstance(side, python.Constant | python.Name) for side in sides):
                return False
            return any(_is_count(side, counters) for side in sides)
        case python.BinOp(left=left, op=python.Div(), right=python.Constant() | python.Name()):
            return _is_count(left, counters)
    return False
