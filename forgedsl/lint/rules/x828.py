"""X828 success-repeated: an environment rewards a right answer and goes on.

    if int(found[1]) == self.answer:
        return Step("right", rewards={"solved": 1.0})                    # fires
        return Step("right", rewards={"solved": 1.0}, done=True)         # silent

Parts are summed over the turns of a trajectory. If no step of the class ends it, the policy is
rewarded for the same right answer in every turn that is left (verifiers #22). End the trajectory
with the step that gives the reward. In a class in which some step has `done`, the rule fires only
where each turn is rewarded in which the state equals what `reset` has set, and the game goes on:

    return Step(rewards={"match": float(self.cells == self.goal)})       # fires
    return Step(rewards={"match": float(right and not self.paid)})       # silent

Then the policy leaves the state as it is, and never ends the game (arcle #1).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.environments import PythonClass, argument, pairs, python_environments, steps_in
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Iterator

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for env in python_environments(view) if view.turns.hi > 1 else ():
        node = None if env.env.body.agent else _repeated(env)
        if node is not None:
            yield finding(
                f"`{env.env.name}` rewards a right answer and goes on, so each turn can repeat it",
                env.env.name_span,
                related=(Label(text="rewards", span=env.at(node)),),
                help="end the trajectory: `Step(rewards=..., done=True)`",
            )


def _repeated(env: PythonClass) -> python.AST | None:
    """Return the step that rewards equality, in a class where no step ends a trajectory."""
    import ast as python

    from forgedsl.lint.environments import _numbers

    step = env.methods.get("step")
    if step is None:
        return None
    if any(map(_ends, python.walk(env.module))):
        return next(_kept(env, step), None)
    for node in python.walk(step):
        if not isinstance(node, python.If) or not _is_equality(node.test):
            continue
        for made in (s for statement in node.body for s in steps_in(statement)):
            rewards = argument(made, "rewards", 1)
            if rewards is not None and any(number > 0 for number in _numbers(rewards)):
                return made
    return None


def _kept(env: PythonClass, step: python.AST) -> Iterator[python.AST]:
    """Yield the steps that go on, and reward a state that equals a goal of `reset`. `step` must
    neither change the goal, nor look at the comparison elsewhere."""
    import ast as python

    given: dict[str, list[python.expr]] = {}
    for node in python.walk(step):
        if isinstance(node, python.Assign):
            for to, value in pairs(node):
                given.setdefault(python.unparse(to), []).append(value)
    uses = Counter(n.id for n in python.walk(step) if isinstance(n, python.Name))
    for made in steps_in(step):
        rewards = argument(made, "rewards", 1)
        if argument(made, "done", 2) is not None or not isinstance(rewards, python.Dict):
            continue
        for value in rewards.values:
            match value:
                case python.Call(func=python.Name(id="float" | "int"), args=[inner]):
                    name = inner.id if isinstance(inner, python.Name) else ""
                case _:
                    continue
            if name and len(given.get(name, ())) == 1:
                inner = given[name][0]
            match inner:
                case python.Compare(left=left, ops=[python.Eq()], comparators=[right]):
                    sides = [left, right]
                case _:
                    continue
            names = [python.unparse(side) for side in sides if isinstance(side, python.Attribute)]
            own = [each for each in names if each.startswith("self.")]
            is_fixed = any(_set_once(env, each) for each in own)
            if len(own) == 2 and is_fixed and (not name or uses[name] == 2):
                yield made


def _set_once(env: PythonClass, attribute: str) -> bool:
    """True if only `reset` and `__init__` assign to an attribute, and no method changes it."""
    import ast as python

    for name, method in env.methods.items():
        if name in ("reset", "__init__"):
            continue
        for node in python.walk(method):
            is_read = isinstance(getattr(node, "ctx", None), python.Load)
            changed: python.expr | None = None
            if isinstance(node, python.Attribute) and not is_read:
                changed = node
            if isinstance(node, python.Subscript) and not is_read:
                changed = node.value
            elif isinstance(node, python.Call) and isinstance(node.func, python.Attribute):
                changed = node.func.value
            if changed is not None and python.unparse(changed) == attribute:
                return False
    return True


def _ends(node: python.AST) -> bool:
    """True if a node may end a trajectory: it names `done`, or gives it by position."""
    import ast as python

    if isinstance(node, python.Attribute | python.keyword):
        return "done" in (getattr(node, "attr", ""), getattr(node, "arg", ""))
    is_step = isinstance(node, python.Call) and getattr(node.func, "id", "") == "Step"
    return is_step and isinstance(node, python.Call) and len(node.args) > 2


def _is_equality(test: python.expr) -> bool:
    import ast as python

    return any(
        isinstance(node, python.Compare)
        and isinstance(node.ops[0], python.Eq)
        and any(isinstance(side, python.Attribute) for side in (node.left, *node.comparators))
        for node in python.walk(test)
    )
