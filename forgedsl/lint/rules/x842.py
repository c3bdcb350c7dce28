"""X842 absence-paid: tests count as passed because none is reported as failed.

    solved = not any(state == "FAILED" for state in outcome.values())          # fires
    solved = "FAILED" not in output                                            # fires
    solved = all(outcome.get(test) == "PASSED" for test in self.tests)         # silent

A program with a syntax error, or one that ends at once, reports no test at all, and is paid like
one that passes all (SWE-smith #24). Ask for each wanted test that it has passed. The rule is silent
in a file that compares something with `PASSED` too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.follow.files import File

finding = rule(__doc__, "W")
FAILED = ("failed", "fail", "failures", "failure")
PASSED = ("pass", "ok", "success")


def check(view: View) -> Findings:
    if not (python_rewards(view) or python_environments(view)):
        return
    from forgedsl.lint.follow.programs import files_of, label

    named = {
        env.env.body.module: (f"{env.what} `{env.env.name}`", env.env.name_span)
        for env in python_environments(view)
    }
    named |= {
        one.function.module: (f"reward `{one.reward.name}`", place_of(one.reward, view))
        for one in python_rewards(view)
    }
    for module, (what, span) in named.items():
        key = (_absent, module)
        if key not in view.shared.answers:
            view.shared.answers[key] = _absent(files_of(view).read(module))
        file, node = view.shared.answers[key]
        if node is not None:
            yield finding(
                f"{what} counts tests as passed if none is reported as failed",
                span,
                related=(label(view, "here", file, node),),
                help='ask for each test: `all(outcome.get(test) == "PASSED" for test in tests)`',
            )


def _absent(file: File | None) -> tuple[File | None, python.AST | None]:
    """Return a test for the absence of failures, in a file without one for passed tests."""
    import ast as python

    if file is None or "fail" not in file.text.lower():
        return file, None
    compared = [
        text.value.lower()
        for node in python.walk(file.module)
        if isinstance(node, python.Compare | python.Call)
        for text in (
            [node.left, *node.comparators] if isinstance(node, python.Compare) else node.args
        )
        if isinstance(text, python.Constant) and isinstance(text.value, str)
    ]
    if any(word in text for text in compared for word in PASSED):
        return file, None
    return file, next((n for n in python.walk(file.module) if _is_absence(n)), None)


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
