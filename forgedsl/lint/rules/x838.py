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
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Iterator

    from forgedsl.lint.follow.files import File

finding = rule(__doc__, "W")
USES = (
    "Step", "Start", "float", "int", "str", "bool", "len", "repr", "sum", "max", "min", "sorted",
    "print", "list", "set", "any", "all", "isinstance", "json.dumps", "round", "abs",
)  # fmt: skip
"""functions that take a value, and no coroutine"""


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
        key = (_unawaited, module)
        if key not in view.shared.answers:
            view.shared.answers[key] = _unawaited(files_of(view).read(module))
        file, node = view.shared.answers[key]
        if node is not None:
            import ast as python

            yield finding(
                f"the file of {what} uses the coroutine `{python.unparse(node.func)}(...)` in "
                "place of its result",
                span,
                related=(label(view, "here", file, node),),
                help="write `await` before the call",
            )


def _unawaited(file: File | None) -> tuple[File | None, python.Call | None]:
    if file is None or "async def" not in file.text:
        return file, None
    return file, next(_used(file.module), None)


def _used(module: python.Module) -> Iterator[python.Call]:
    """Yield calls of coroutines of the file whose result is used at once."""
    import ast as python

    functions = {n.name for n in module.body if isinstance(n, python.AsyncFunctionDef)}
    for part in module.body:
        inside = part.body if isinstance(part, python.ClassDef) else []
        methods = {n.name for n in inside if isinstance(n, python.AsyncFunctionDef)}
        for node in python.walk(part):
            for used in _operands(node):
                match used:
                    case python.Call(func=python.Name(id=name)) if name in functions:
                        yield used
                    case python.Call(
                        func=python.Attribute(value=python.Name(id="self"), attr=name)
                    ) if name in methods:
                        yield used


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
