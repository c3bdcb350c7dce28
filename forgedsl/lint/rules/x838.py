"""X838 coroutine-unawaited: a coroutine is used where its result is meant.

    async def pages(self, words): ...
    return Step(f"<manual>{self.pages(words)}</manual>")           # fires
    return Step(f"<manual>{await self.pages(words)}</manual>")     # silent
    pages = await asyncio.gather(*(self.pages(w) for w in words))  # silent

A call of an `async def` gives a coroutine, which does nothing until it is awaited: the policy reads
`<coroutine object Docs.pages at 0x7f...>`, or a test of it is always true (SkyRL #188). Write
`await` before the call. The rule looks at calls in texts, tests, comparisons and conversions, and
at calls whose value nobody takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Iterator

    from forgedsl.lint.follow.reached import Part

finding = rule(__doc__, "W")
USES = (
    "Step", "Start", "float", "int", "str", "bool", "len", "repr", "sum", "max", "min", "sorted",
    "print", "list", "set", "any", "all", "isinstance", "json.dumps", "round", "abs",
)  # fmt: skip
"""functions whose arguments must be values: a coroutine there is a mistake"""
DECORATORS = ("tool", "staticmethod", "classmethod", "override", "typing.override")
"""decorators that leave a coroutine function a coroutine function"""


def check(view: View) -> Findings:
    if not (python_rewards(view) or python_environments(view)):
        return
    import ast as python

    from forgedsl.lint.follow.programs import label
    from forgedsl.lint.follow.reached import found_in

    for part, node in found_in(view, _unawaited):
        yield finding(
            f"{part.what} uses the coroutine `{python.unparse(node.func)}(...)` in place of its "
            "result",
            part.span,
            related=(label(view, "here", part.file, node),),
            help="write `await` before the call",
        )


def _unawaited(part: Part) -> python.Call | None:
    return next(_used(part), None) if "async def" in part.file.text else None


def _used(part: Part) -> Iterator[python.Call]:
    """Yield calls of coroutines of the file whose result is used at once."""
    import ast as python

    module = part.file.module
    functions = {n.name for n in module.body if _is_coroutine(n)}  # type: ignore[attr-defined]
    for root in part.roots:
        inside = root.body if isinstance(root, python.ClassDef) else []
        methods = {n.name for n in inside if _is_coroutine(n)}  # type: ignore[attr-defined]
        for node in python.walk(root):
            for used in _operands(node):
                match used:
                    case python.Call(func=python.Name(id=name)) if name in functions:
                        yield used
                    case python.Call(
                        func=python.Attribute(value=python.Name(id="self"), attr=name)
                    ) if name in methods:
                        yield used


def _is_coroutine(node: python.AST) -> bool:
    """True for an `async def` whose call gives a coroutine: it is not a generator, and has no
    decorator that may wrap it."""
    import ast as python

    return (
        isinstance(node, python.AsyncFunctionDef)
        and all(python.unparse(each) in DECORATORS for each in node.decorator_list)
        and not any(isinstance(each, python.Yield) for each in python.walk(node))
    )


def _operands(node: python.AST) -> list[python.expr]:
    """Return the expressions whose value a node uses, or drops."""
    import ast as python

    match node:
        case python.FormattedValue(value=inner) | python.Expr(value=inner):
            return [inner]
        case python.Attribute(value=inner) | python.Subscript(value=inner):
            return [inner]
        case python.BinOp(left=left, right=right):
            return [left, right]
        case python.Compare(left=left, comparators=others):
            return [left, *others]
        case python.BoolOp(values=values):
            return values
        case python.If(test=test) | python.IfExp(test=test) | python.While(test=test):
            return [test]
        case python.UnaryOp(operand=inner) | python.For(iter=inner):
            return [inner]
        case python.Call(args=args, keywords=words) if python.unparse(node.func) in USES:
            return [*args, *(word.value for word in words)]
    return []
