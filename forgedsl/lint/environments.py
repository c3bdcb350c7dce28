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
    """Return the environments of the program. Each is read from its file, once for all profiles."""
    found = []
    for env in view.program.environments.values():
        if view.folder is None or env.body.is_program:
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
    import ast as python

    from forgedsl.hir.pyclass import classes

    module = python.parse(text)
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


# ---- leaks of the target

KEEPS = ("str", "repr", "int", "float", "format", "dumps", "strip", "lower", "upper", "join")
"""functions and methods whose result contains their argument"""
ANSWERS = ("answer", "target", "solution", "label", "gold", "expected", "truth", "ground_truth")
"""keys of a target that hold the answer; other keys may describe the task"""


def first_told(env: PythonClass) -> tuple[str, python.AST] | None:
    """Return how and where the policy is told the target: in an observation, or by a tool."""
    import ast as python

    holds, quoted = _Holds(env), f"`{env.env.name}`"
    for name, method in env.methods.items():
        holds.method = name
        for node in python.walk(method):
            if isinstance(node, python.Call):
                made = getattr(node.func, "attr", getattr(node.func, "id", ""))
                shown = argument(node, "observation", 0) if made in ("Start", "Step") else None
                done = argument(node, "done", 2) if made == "Step" else None
                ends = done is not None and getattr(done, "value", True) is not False
                if shown is not None and not ends and holds.target(shown):
                    what = "the start" if made == "Start" else "a step"
                    return f"{what} of {quoted} tells the target", node
            result = node.value if isinstance(node, python.Return) and name in env.tools else None
            if result is not None and holds.target(result):
                return f"tool `{name}` of {quoted} tells the target", node
        if name in env.tools:
            given = {argument.arg for argument in method.args.args[1:]}
            for node in python.walk(method):
                if isinstance(node, python.Compare) and holds.compares(node, given):
                    return f"tool `{name}` of {quoted} tells whether an answer is right", node
    return None


class _Holds:
    """Decides which expressions of a class contain the target: `task.target`, attributes and names
    assigned from it, and texts made of these."""

    def __init__(self, env: PythonClass) -> None:
        import ast as python

        self.known: set[tuple[str, str]] = set()
        self.method = ""
        """the current method: local names of other methods are different names"""
        assigned = [
            (name, *pair)
            for name, method in env.methods.items()
            for node in python.walk(method)
            if isinstance(node, python.Assign)
            for pair in _pairs(node)
        ]
        for _ in range(3):  # up to three assignments in a chain
            for self.method, to, value in assigned:
                if self.target(value):
                    self.known.add(self._key(to))

    def _key(self, node: python.AST) -> tuple[str, str]:
        """Return a key of a name: attributes are shared by all methods, other names belong to
        one."""
        import ast as python

        return ("" if isinstance(node, python.Attribute) else self.method), python.unparse(node)

    def target(self, node: python.AST) -> bool:
        """True if an expression contains the target."""
        import ast as python

        match node:
            case python.Attribute(attr="target", value=python.Name(id="task")):
                return True
            case python.Name() | python.Attribute():
                return self._key(node) in self.known
            case python.Subscript(value=value, slice=python.Constant(value=str(key))):
                return key in ANSWERS and self.target(value)
            case python.Call(func=func, args=args):
                name = getattr(func, "attr", getattr(func, "id", ""))
                inner = [func.value] if isinstance(func, python.Attribute) else []
                return name in KEEPS and any(map(self.target, [*args, *inner]))
            case python.BinOp(left=left, right=right, op=python.Add() | python.Mod()):
                return self.target(left) or self.target(right)
            case python.IfExp(body=body, orelse=other):
                return self.target(body) or self.target(other)
            case python.JoinedStr(values=parts) | python.Dict(values=parts):
                return any(map(self.target, parts))
            case python.List(elts=parts) | python.Tuple(elts=parts):
                return any(map(self.target, parts))
            case python.FormattedValue(value=value):
                return self.target(value)
        return False

    def compares(self, node: python.Compare, given: set[str]) -> bool:
        """True if an argument of a tool is compared with the target for equality."""
        import ast as python

        sides = [node.left, *node.comparators]
        equal = all(isinstance(op, python.Eq | python.NotEq) for op in node.ops)
        names = {each.id for s in sides for each in python.walk(s) if isinstance(each, python.Name)}
        return equal and bool(names & given) and any(map(self.target, sides))


def _pairs(node: python.Assign) -> Iterator[tuple[python.expr, python.expr]]:
    """Split `a, b = 1, 2` into pairs."""
    import ast as python

    for to in node.targets:
        if isinstance(to, python.Tuple) and isinstance(node.value, python.Tuple):
            yield from zip(to.elts, node.value.elts, strict=False)
        else:
            yield to, node.value
