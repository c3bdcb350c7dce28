"""X828 success-repeated: an environment rewards a right answer and goes on.

    if int(found[1]) == self.answer:
        return Step("right", rewards={"solved": 1.0})                    # fires
        return Step("right", rewards={"solved": 1.0}, done=True)         # silent

Parts are summed over the turns of a trajectory. If no step of the class ends it, the policy is
rewarded for the same right answer in every turn that is left (verifiers #22). End the trajectory
with the step that gives the reward. The rule is silent for a class in which some step has `done`.
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
    if step is None or any(map(_ends, python.walk(env.module))):
        return None
    for node in python.walk(step):
        if not isinstance(node, python.If) or not _is_equality(node.test):
            continue
        for made in (s for statement in node.body for s in steps_in(statement)):
            rewards = argument(made, "rewards", 1)
            if rewards is not None and any(number > 0 for number in _numbers(rewards)):
                return made
    return None


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
