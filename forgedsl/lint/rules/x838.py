"""X838 coroutine-unawaited: a coroutine is used where its result is meant.

    async def pages(self, words): ...
    return Step(f"<manual>{self.pages(words)}</manual>")           # fires
    return Step(f"<manual>{await self.pages(words)}</manual>")     # silent
    pages = await asyncio.gather(*(self.pages(w) for w in words))  # silent
    async def step(self, turn): return self.call_tools(turn)       # fires
    reply = client.chat.completions.create(...)                    # fires: of an AsyncOpenAI
    return Step(reply.choices[0].message.content)

A call of an `async def` gives a coroutine, which does nothing until it is awaited: the policy reads
`<coroutine object Docs.pages at 0x7f...>`, or a test of it is always true (SkyRL #188). Write
`await` before the call. The rule looks at calls in texts, tests, comparisons and conversions, at
calls whose value nobody takes, and at what the coroutines `reset`, `step`, `run`, tools and rewards
return; also by a name that nothing else is assigned to, and that nothing awaits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Collection, Iterable, Iterator

    from forgedsl.lint.follow.reached import Part

finding = rule(__doc__, "W")
USES = (
    "Step", "Start", "float", "int", "str", "bool", "len", "repr", "sum", "max", "min", "sorted",
    "print", "list", "set", "any", "all", "isinstance", "json.dumps", "round", "abs",
)  # fmt: skip
"""functions whose arguments must be values: a coroutine there is a mistake"""
INHERITED = ("call_tools", "call_tool")
"""coroutines of `Environment`"""
CLIENT = "AsyncOpenAI"
REQUESTS = ("chat.completions.create", "completions.create", "responses.create")
RESULTS = ("reset", "step", "run")
"""methods whose result the run uses"""
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
    return next(_used(part), None) if "async " in part.file.text else None


def _used(part: Part) -> Iterator[python.Call]:
    """Yield calls of coroutines whose result is used at once, or by a name."""
    import ast as python

    module = part.file.module
    functions = {n.name for n in module.body if _is_coroutine(n)}  # type: ignore[attr-defined]
    for root in part.roots:
        is_coroutine = functions | _methods(root) | _requests(root)
        for node in python.walk(root):
            yield from _calls(_operands(node), is_coroutine)
        own = root.body if isinstance(root, python.ClassDef) else [root]
        for function in filter(_is_coroutine, own):
            yield from _by_name(function, is_coroutine)
            if _is_called_by_the_run(function, part):
                yield from _calls(_returned(function), is_coroutine)


def _methods(root: python.stmt) -> set[str]:
    """Return the coroutines of a class, as they are called: `self.pages`."""
    import ast as python

    if not isinstance(root, python.ClassDef):
        return set()
    own = {getattr(node, "name", "") for node in root.body}
    found = {node.name for node in root.body if _is_coroutine(node)}  # type: ignore[attr-defined]
    if any(python.unparse(base).rpartition(".")[2] == "Environment" for base in root.bases):
        found |= {*INHERITED} - own
    return {f"self.{name}" for name in found}


def _requests(root: python.stmt) -> set[str]:
    """Return the requests of asynchronous clients, as they are called."""
    import ast as python

    found = set()
    for node in python.walk(root):
        match node:
            case (
                python.Assign(targets=[target], value=python.Call(func=made))
                | python.withitem(
                    context_expr=python.Call(func=made), optional_vars=python.expr() as target
                )
            ) if python.unparse(made).rpartition(".")[2] == CLIENT:
                found |= {f"{python.unparse(target)}.{verb}" for verb in REQUESTS}
    return found


def _calls(values: Iterable[python.AST], is_coroutine: Collection[str]) -> Iterator[python.Call]:
    """Yield those that are calls of coroutines."""
    import ast as python

    for value in values:
        if isinstance(value, python.Call) and python.unparse(value.func) in is_coroutine:
            yield value


def _is_called_by_the_run(function: python.AST, part: Part) -> bool:
    """True for a reward, and for a method of an environment or agent whose result is used."""
    name = function.name  # type: ignore[attr-defined]
    if part.is_reward:
        return bool(name == part.top)
    return name in RESULTS or bool(function.decorator_list)  # type: ignore[attr-defined]


def _returned(function: python.AST) -> Iterator[python.expr]:
    """Yield what a function returns, without the functions in it."""
    import ast as python

    for node in python.iter_child_nodes(function):
        if isinstance(node, python.Return) and node.value is not None:
            yield node.value
        elif not isinstance(node, python.FunctionDef | python.AsyncFunctionDef | python.Lambda):
            yield from _returned(node)


def _by_name(function: python.AST, is_coroutine: Collection[str]) -> Iterator[python.Call]:
    """Yield calls that are assigned to a name, of which every use is that of a result."""
    import ast as python

    nodes = list(python.walk(function))
    used = {id(each) for node in nodes for each in _operands(node)}
    for node in nodes:
        if not isinstance(node, python.Assign) or not isinstance(node.targets[0], python.Name):
            continue
        named = [n for n in nodes if isinstance(n, python.Name) and n.id == node.targets[0].id]
        reads = [n for n in named if isinstance(n.ctx, python.Load)]
        is_once = len(node.targets) == 1 and len(named) == len(reads) + 1
        if is_once and reads and all(id(each) in used for each in reads):
            yield from _calls([node.value], is_coroutine)


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
