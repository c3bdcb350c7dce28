"""Environment classes for rules: the methods of a class, read from its file, never run.

View -> one PythonClass for each environment that is declared
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forgedsl.ir.program import EnvironmentDecl
from forgedsl.lint.rewards import first_line
from forgedsl.lint.view import View
from forgedsl.records import dataclass
from forgedsl.source import SourceFile, Span

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Callable, Iterator

    from forgedsl.lint.follow.values import Event

    Method = python.FunctionDef | python.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonClass:
    """The class of an environment. `items` are the definitions in it and in its bases of the same
    file."""

    env: EnvironmentDecl
    module: python.Module
    items: dict[str, python.stmt]
    source: SourceFile

    @property
    def what(self) -> str:
        """Word for the class in messages."""
        return "agent" if self.env.body.agent else "environment"

    @property
    def methods(self) -> dict[str, Method]:
        """Its methods by name."""
        import ast as python

        kinds = (python.FunctionDef, python.AsyncFunctionDef)
        return {name: item for name, item in self.items.items() if isinstance(item, kinds)}

    @property
    def tools(self) -> frozenset[str]:
        """The names of its methods that the policy can call."""
        return frozenset(tool.name for tool in self.env.body.tools)

    def names(self, method: Method) -> Callable[[python.AST], str]:
        """Function that gives an expression its full dotted name, by the imports of the file."""
        from forgedsl.types.effects import names_in

        return names_in(self.module, method)

    def at(self, node: python.AST) -> Span:
        """Return the span of a node's first line."""
        return first_line(self.source, node)


def python_environments(view: View) -> list[PythonClass]:
    """Return the environments whose classes are in Python files of the program. Each file is read
    once for all profiles."""
    found = []
    for env in view.program.environments.values():
        if view.folder is None or not env.body.module or env.body.is_gymnasium:
            continue
        key = ("environment", env.body.module)
        if key not in view.shared.answers:
            view.shared.answers[key] = _read((view.folder / env.body.module).read_text("utf-8"))
        module, by_name, text = view.shared.answers[key]
        source = view.sources.setdefault(env.body.module, SourceFile(env.body.module, text))
        items = by_name.get(env.body.name, {})
        found.append(PythonClass(env=env, module=module, items=items, source=source))
    return found


def _read(text: str) -> tuple[Any, dict[str, dict[str, python.stmt]], str]:
    from forgedsl.hir.pyclass import classes
    from forgedsl.hir.pyimport import parsed

    module = parsed(text)
    return module, {name: items for name, _, items in classes(module)}, text


def steps_in(node: python.AST) -> Iterator[python.Call]:
    """Yield the calls of `Step` inside a node."""
    import ast as python

    for each in python.walk(node):
        if isinstance(each, python.Call):
            name = getattr(each.func, "attr", getattr(each.func, "id", ""))
            if name == "Step":
                yield each


def scores_by_return(env: PythonClass, method: Method) -> bool:
    """True if the return value of a method is a reward, as for `run` of an agent."""
    return env.env.body.agent and method.name == "run"


def scored_in(node: python.AST) -> Iterator[tuple[python.AST, list[float]]]:
    """Yield the rewards that a class gives inside a node, with their numbers: `Step`s with rewards
    (environment), returned numbers and dicts (agent)."""
    import ast as python

    for step in steps_in(node):
        rewards = argument(step, "rewards", 1)
        if rewards is not None:
            yield step, _numbers(rewards)
    for each in python.walk(node):
        if isinstance(each, python.Return) and each.value is not None and _numbers(each.value):
            yield each, _numbers(each.value)


def _numbers(value: python.expr) -> list[float]:
    """Return the constant numbers of a value, or of the values of a dict."""
    import ast as python

    found = []
    for each in value.values if isinstance(value, python.Dict) else [value]:
        sign = isinstance(each, python.UnaryOp) and isinstance(each.op, python.USub)
        number = getattr(each.operand if isinstance(each, python.UnaryOp) else each, "value", None)
        if isinstance(number, int | float) and not isinstance(number, bool):
            found.append(-number if sign else number)
    return found


def argument(call: python.Call, name: str, place: int) -> python.expr | None:
    """Return an argument of a call, given by name or by position."""
    given = {word.arg: word.value for word in call.keywords}
    positional = call.args[place] if len(call.args) > place else None
    return given.get(name, positional)


def rewards_of(event: Event) -> list[Any]:
    """Return the rewards of a call of `Step`, as constants where they are known."""
    if event.kind != "call" or event.name.rpartition(".")[2] != "Step":
        return []
    given = event.argument("rewards", 1)
    return [value.const for value in ((given.fields or {}) if given is not None else {}).values()]


def pairs(node: python.Assign) -> Iterator[tuple[python.expr, python.expr]]:
    """Split `a, b = 1, 2` into pairs."""
    import ast as python

    for to in node.targets:
        if isinstance(to, python.Tuple) and isinstance(node.value, python.Tuple):
            yield from zip(to.elts, node.value.elts, strict=False)
        else:
            yield to, node.value
