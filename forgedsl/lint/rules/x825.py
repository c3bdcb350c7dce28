"""X825 reward-after-the-end: an environment gives rewards only in a turn that is never played.

    environment game = sums.Guess(guesses = 6)
    if turn.number == self.guesses - 1: return Step(rewards={"solved": 1.0}, done=True)
    rollout = generator.play(prompt, env = game, max_turns = 3)      # fires: turns 0, 1 and 2
    rollout = generator.play(prompt, env = game, max_turns = 6)      # silent

`turn.number` counts from 0. If every reward stands behind a number that `max_turns` does not reach,
no trajectory is ever rewarded (gem #38, verifiers #465). Give the class the number of turns that
the flow plays. The rule also knows a counter that `step` raises by 1 in every turn. It follows the
class once for each turn, and fires if some part of the reward is given in none of them. It also
fires for a class with reward parts whose `step` is misspelt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.environments import PythonClass, argument, python_environments, steps_in
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.follow.programs import MethodFlow
    from forgedsl.lint.follow.values import Event

finding = rule(__doc__, "W")
MOST_TURNS = 16
"""turns up to which a class is run once for each"""


def check(view: View) -> Findings:
    most = view.turns.hi
    for env in python_environments(view):
        misspelt = _misspelt_step(env)
        if misspelt:
            parts = ", ".join(f"`{part}`" for part in env.env.body.parts)
            yield finding(
                f"`{env.env.name}` has the reward parts {parts}, but no `step`, so no turn gives "
                "them",
                env.env.name_span,
                help=f"rename `{misspelt}` to `step`",
            )
            continue
        node, turn = (None, 0.0) if env.env.body.agent else _late(env)
        if node is not None and turn >= most:
            yield finding(
                f"`{env.env.name}` gives rewards from turn {turn:g} on, but the last turn is "
                f"{most - 1:g}",
                env.env.name_span,
                related=(Label(text="counts from 0", span=env.at(node)),),
                help=f"set `max_turns = {turn + 1:g}`, or give the reward in an earlier turn",
            )
            continue
        unpaid = None if env.env.body.agent or most > MOST_TURNS else _unpaid(view, env, int(most))
        if unpaid is not None:
            part, here = unpaid
            yield finding(
                f"`{env.env.name}` gives `{part}` only in a turn that is never played: turns "
                f"are counted from 0 to {most - 1:g}",
                env.env.name_span,
                related=(here,),
                help=f"compare with {most - 1:g}, the number of the last turn",
            )


def _misspelt_step(env: PythonClass) -> str:
    """Return the method of a class with reward parts whose name is nearly `step`, if it has no
    method that could give them (the `step` of `Environment` gives none); else ""."""
    from forgedsl.hir.pyclass import classes
    from forgedsl.mistakes.suggest import nearest

    gives = {"step", "call_tools", "__getattr__"} & env.items.keys()
    if env.env.body.agent or gives or not env.env.body.parts:
        return ""
    found = {name: bases for name, bases, _ in classes(env.module)}
    if found.get(env.env.body.name, set()) - found.keys() != {"Environment"}:
        return ""
    return next(iter(nearest("step", [n for n in env.methods if n not in env.tools])), "")


def _unpaid(view: View, env: PythonClass, most: int) -> tuple[str, Label] | None:
    """Return a part of the reward that `step` gives in none of the turns, and where it would. The
    class is run once for each turn."""
    from forgedsl.lint.follow.programs import environment_flows, label, turns_of_environment

    if "turn.number" not in env.source.text.replace("self.", ""):
        return None
    always = _given(environment_flows(view, env))
    played: set[str] = set()
    for methods in turns_of_environment(view, env, most) if len(always) > 1 else ():
        played |= _given(methods).keys()
    for part, event in always.items():
        if played and part not in played:
            return part, label(view, "never reached", event.file, event.node)
    return None


def _given(methods: list[MethodFlow]) -> dict[str, Event]:
    """Return the parts of the reward that steps give, with the call of `Step` that gives each."""
    found: dict[str, Event] = {}
    for event in (event for method in methods for event in method.flow.events):
        if event.kind == "call" and event.name.rpartition(".")[2] == "Step":
            rewards = event.argument("rewards", 1)
            for part in (rewards.fields or {}) if rewards is not None else {}:
                found.setdefault(part, event)
    return found


def _late(env: PythonClass) -> tuple[python.AST | None, float]:
    """Return the test of the turn behind which every reward stands, and the first turn that passes
    it."""
    import ast as python

    step = env.methods.get("step")
    if step is None:
        return None, 0.0
    rewarded = {s for s in steps_in(step) if _pays(s)}
    for node in python.walk(step) if rewarded else ():
        if not isinstance(node, python.If | python.FunctionDef | python.AsyncFunctionDef):
            continue
        blocks = [node.body, node.orelse] if isinstance(node, python.If) else [node.body]
        tests = [(each, body) for body in blocks for each in body if isinstance(each, python.If)]
        for each, body in tests:
            after = [*body[body.index(each) + 1 :], *each.orelse]
            leaves = isinstance(each.body[-1], python.Return)
            for block, is_true in ((each.body, True), (after if leaves else each.orelse, False)):
                if not rewarded <= {s for statement in block for s in steps_in(statement)}:
                    continue
                first = _first_turn(env, step, each.test, is_true)
                if first is not None:
                    return each.test, first
    return None, 0.0


def _first_turn(
    env: PythonClass, step: python.AST, test: python.expr, is_true: bool
) -> float | None:
    """Return the first turn in which a test of the turn is true, or false; None if it is another
    test."""
    import ast as python

    match _assigned(step, test):
        case python.Compare(left=left, ops=[op], comparators=[right]):
            pass
        case _:
            return None
    kind = type(op)
    turn, bound = _counted(env, step, left), _number(env, right)
    if turn is None or bound is None:
        turn, bound, kind = _counted(env, step, right), _number(env, left), _turned(kind)
    if turn is None or bound is None:
        return None
    first = bound - turn
    if not is_true:
        return {python.Lt: first, python.LtE: first + 1, python.NotEq: first}.get(kind)
    return {python.Gt: first + 1, python.GtE: first, python.Eq: first}.get(kind)


def _turned(kind: type[python.cmpop]) -> type[python.cmpop]:
    """Return the comparison with its sides exchanged."""
    import ast as python

    sides: dict[type[python.cmpop], type[python.cmpop]] = {
        python.Lt: python.Gt, python.LtE: python.GtE, python.Gt: python.Lt, python.GtE: python.LtE,
    }  # fmt: skip
    return sides.get(kind, kind)


def _counted(env: PythonClass, step: python.AST, node: python.expr, depth: int = 4) -> float | None:
    """Return what an expression adds to the number of the turn: 1 for `turn.number + 1`. An
    attribute counts turns if `reset` sets it, and `step` begins with `+= 1` in every turn. Names
    are followed `depth` times: two can be assigned from each other."""
    import ast as python

    if not depth:
        return None
    match _assigned(step, node):
        case python.Attribute(value=python.Name(id="turn"), attr="number"):
            return 0.0
        case python.BinOp(left=left, op=python.Add() | python.Sub() as op, right=right):
            one, two = _counted(env, step, left, depth - 1), _number(env, right)
            if one is None or two is None:
                return None
            return one + two if isinstance(op, python.Add) else one - two
        case python.Attribute(value=python.Name(id="self")) as counter:
            return _begins_with(env, python.unparse(counter))
    return None


def _begins_with(env: PythonClass, counter: str) -> float | None:
    """Return the value of a counter in the first turn, behind the line that raises it."""
    import ast as python

    from forgedsl.lint.environments import pairs

    started, raised = list[python.expr](), list[python.AugAssign]()
    for method in env.methods.values():
        for node in python.walk(method):
            match node:
                case python.Assign():
                    each = pairs(node)
                    started += [value for to, value in each if python.unparse(to) == counter]
                case python.AugAssign(target=to) if python.unparse(to) == counter:
                    raised.append(node)
    step = env.methods["step"]
    match raised, started:
        case [python.AugAssign(op=python.Add(), value=python.Constant(value=1)) as up], [
            python.Constant(value=int() as begin)
        ]:
            before = step.body[: step.body.index(up)] if up in step.body else [step]
            simple = python.Assign | python.AnnAssign | python.AugAssign | python.Expr
            return begin + 1.0 if all(isinstance(each, simple) for each in before) else None
    return None


def _assigned(step: python.AST, node: python.expr) -> python.expr:
    """Return the value of a local name that is assigned once; other expressions as they are."""
    import ast as python

    if not isinstance(node, python.Name):
        return node
    stored = [
        each for each in python.walk(step)
        if isinstance(each, python.Name) and each.id == node.id
        and not isinstance(each.ctx, python.Load)
    ]  # fmt: skip
    values = [
        each.value for each in python.walk(step)
        if isinstance(each, python.Assign) and each.targets == stored
    ]  # fmt: skip
    return values[0] if len(stored) == 1 and values else node


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
        case python.Name(id=name):
            return _constant_of(env.module, name)
    return None


def _constant_of(module: python.Module, name: str) -> float | None:
    """Return a number that a file assigns to a name, at its top and nowhere else."""
    import ast as python

    stored = [
        each for each in python.walk(module)
        if isinstance(each, python.Name) and each.id == name
        and not isinstance(each.ctx, python.Load)
    ]  # fmt: skip
    for node in module.body:
        match node:
            case python.Assign(targets=[to], value=python.Constant(value=int() as value)):
                if stored == [to]:
                    return float(value)
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
