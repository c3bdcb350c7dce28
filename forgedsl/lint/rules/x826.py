"""X826 best-so-far-summed: a reward part that keeps its best value is added up over the turns.

    self.close = max(self.close, nearness)
    return Step(said, rewards={"solved": self.close})                # fires
    return Step(said, rewards={"solved": self.close - before})       # silent: what this turn added

`r.rewards.solved` is the sum of the part over all turns. The best value so far counts again in
every turn, so a long game without success scores more than a short one with it (flatland-rl #282).
Give what the turn added to the best, or the best at the end alone.
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
        node, name = _summed(env)
        if node is not None:
            yield finding(
                f"`{env.env.name}` gives its best `{name}` so far in every turn, but the rewards "
                "of turns are summed",
                env.env.name_span,
                related=(Label(text="given here", span=env.at(node)),),
                help="give what the turn added: the best now minus the best before",
            )


def _summed(env: PythonClass) -> tuple[python.AST | None, str]:
    """Return a step that goes on and gives a running maximum as reward."""
    import ast as python

    best = {
        node.targets[0].attr
        for method in env.methods.values()
        for node in python.walk(method)
        if isinstance(node, python.Assign) and isinstance(node.targets[0], python.Attribute)
        if isinstance(node.value, python.Call) and getattr(node.value.func, "id", "") == "max"
        if python.unparse(node.targets[0]) in map(python.unparse, node.value.args)
    }
    step = env.methods.get("step")
    for made in steps_in(step) if step is not None and best else ():
        rewards = argument(made, "rewards", 1)
        if rewards is None or argument(made, "done", 2) is not None:
            continue
        inside = list(python.walk(rewards))
        if any(isinstance(node, python.Sub) for node in inside):
            continue
        for node in inside:
            if isinstance(node, python.Attribute) and node.attr in best:
                return made, node.attr
    return None, ""
