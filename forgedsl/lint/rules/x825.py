"""X825 reward-after-the-end: an environment gives rewards only in a turn that is never played.

    environment game = sums.Guess(guesses = 6)
    if turn.number == self.guesses - 1: return Step(rewards={"solved": 1.0}, done=True)
    rollout = generator.play(prompt, env = game, max_turns = 3)      # fires: turns 0, 1 and 2
    rollout = generator.play(prompt, env = game, max_turns = 6)      # silent

`turn.number` counts from 0. If every reward stands behind a number that `max_turns` does not reach,
no trajectory is ever rewarded (gem #38). Give the class the number of turns that the flow plays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.environments import PythonClass, argument, python_environments, steps_in
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    most = view.turns.hi
    for env in python_environments(view):
        node, turn = (None, 0.0) if env.env.body.agent else _late(env)
        if node is not None and turn >= most:
            yield finding(
                f"`{env.env.name}` gives rewards from turn {turn:g} on, but the last turn is "
                f"{most - 1:g}",
                env.env.name_span,
                related=(Label(text="counts from 0", span=env.at(node)),),
                help=f"`max_turns = {turn + 1:g}`, or fewer turns for the class",
            )


def _late(env: PythonClass) -> tuple[python.AST | None, float]:
    """Return the test of `turn.number` behind which every reward stands, and the first turn that
    passes it."""
    import ast as python

    step = env.methods.get("step")
    rewarded = [s for s in steps_in(step) if _pays(s)] if step is not None else []
    for node in python.walk(step) if step is not None and rewarded else ():
        if not isinstance(node, python.If) or not isinstance(node.test, python.Compare):
            continue
        inside = {s for statement in node.body for s in steps_in(statement)}
        test = node.test
        if not {*rewarded} <= inside or python.unparse(test.left) != "turn.number":
            continue
        bound = _number(env, test.comparators[0])
        if bound is not None and len(test.ops) == 1:
            if isinstance(test.ops[0], python.Eq | python.GtE):
                return node.test, bound
            if isinstance(test.ops[0], python.Gt):
                return node.test, bound + 1
    return None, 0.0


def _pays(step: python.Call) -> bool:
    return argument(step, "rewards", 1) is not None


def _number(env: PythonClass, node: python.expr) -> float | None:
    """Return a number made of constants and of arguments of the class."""
    import ast as python

    match node:
        case python.Constant(value=int() | float() as value):
            return float(value)
        case python.BinOp(left=left, op=python.Add() | python.Sub() as op, right=right):
            one, two = _number(env, left), _number(env, right)
            if one is None or two is None:
                return None
            return one + two if isinstance(op, python.Add) else one - two
        case python.Attribute(value=python.Name(id="self"), attr=name):
            return _argument_of(env, name)
    return None


def _argument_of(env: PythonClass, attribute: str) -> float | None:
    """Return the argument that `__init__` keeps under a name, if nothing else assigns to it."""
    import ast as python

    from forgedsl.lint.environments import pairs

    init = env.methods.get("__init__")
    stored = [
        value
        for method in env.methods.values()
        for node in python.walk(method)
        if isinstance(node, python.Assign)
        for to, value in pairs(node)
        if python.unparse(to) == f"self.{attribute}"
    ]
    if init is None or len(stored) != 1 or not isinstance(stored[0], python.Name):
        return None
    name = stored[0].id
    given = env.env.body.args.get(name)
    if given is None:
        arguments = init.args
        defaults = dict(zip([a.arg for a in arguments.kwonlyargs], arguments.kw_defaults,
                            strict=True))  # fmt: skip
        places = arguments.args[len(arguments.args) - len(arguments.defaults) :]
        defaults |= dict(zip([a.arg for a in places], arguments.defaults, strict=True))
        given = getattr(defaults.get(name), "value", None)
    given = getattr(given, "value", given)
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(given)
    return None
