"""X842 absence-paid: tests count as passed because none is reported as failed.

    solved = not any(state == "FAILED" for state in outcome.values())          # fires
    solved = "FAILED" not in output                                            # fires
    solved = all(outcome.get(test) == "PASSED" for test in self.tests)         # silent

A program with a syntax error, or one that ends at once, reports no test at all, and is rewarded
like one that passes all (SWE-smith #24). Ask for each wanted test that it has passed. The rule
reads the reward or environment and what it calls in its file. It is silent if these also look for a
text such as `PASSED`, `ok` or `success`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import python_rewards
from forgedsl.lint.rubrics import positive_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.follow.reached import Part

finding = rule(__doc__, "W")
FAILED = ("failed", "fail", "failures", "failure")
PASSED = ("pass", "ok", "success")


def check(view: View) -> Findings:
    if not (python_rewards(view) or python_environments(view)):
        return
    from forgedsl.lint.follow.programs import label
    from forgedsl.lint.follow.reached import found_in

    raises = positive_rewards(view)
    for part, node in found_in(view, _absent):
        if part.name in raises or not part.is_reward:
            yield finding(
                f"{part.what} counts tests as passed if none is reported as failed",
                part.span,
                related=(label(view, "here", part.file, node),),
                help='ask for each test: `all(outcome.get(test) == "PASSED" for test in tests)`',
            )


def _absent(part: Part) -> python.AST | None:
    """Return a test for the absence of failures, if nothing asks for passed tests."""
    import ast as python

    if "fail" not in part.file.text.lower():
        return None
    compared = [
        text.value.lower()
        for node in part.nodes()
        if isinstance(node, python.Compare | python.Call)
        for text in (
            [node.left, *node.comparators] if isinstance(node, python.Compare) else node.args
        )
        if isinstance(text, python.Constant) and isinstance(text.value, str)
    ]
    if any(word in text for text in compared for word in PASSED):
        return None
    return next((node for node in part.nodes() if _is_absence(node)), None)


def _is_absence(node: python.AST) -> bool:
    """True for `not any(... == "FAILED" ...)`, `all(... != "FAILED" ...)`, `"FAILED" not in x`."""
    import ast as python

    match node:
        case python.UnaryOp(
            op=python.Not(),
            operand=python.Call(func=python.Name(id="any"), args=[python.GeneratorExp(elt=elt)]),
        ):
            return _names_failure(elt, (python.Eq, python.In))
        case python.Call(func=python.Name(id="all"), args=[python.GeneratorExp(elt=elt)]):
            return _names_failure(elt, (python.NotEq, python.NotIn))
        case python.Compare(ops=[python.NotIn()]):
            return _names_failure(node, (python.NotIn,))
    return False


def _names_failure(node: python.expr, kinds: tuple[type, ...]) -> bool:
    import ast as python

    if not isinstance(node, python.Compare) or not isinstance(node.ops[0], kinds):
        return False
    sides = (node.left, node.comparators[0])
    texts = [side.value for side in sides if isinstance(side, python.Constant)]
    return any(isinstance(text, str) and text.strip().lower() in FAILED for text in texts)
