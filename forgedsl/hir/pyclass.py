"""Classes of `import python "x.py" as x`, read from the source text, never executed.

    class Desk(Environment):     parameters of `__init__` with types, tools, reward parts
    class Fixer(Agent):          the same, and what is wrong with `run`
    class Clip(nn.Module):       parameters of `__init__` and of `forward`, reports

A class is an environment if it derives, directly or through classes of the file, from `Environment`
or `MCPTools`, and an agent if from `Agent` of forgedsl. It can be a loss if it derives from
`Module` and has a method `forward`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from forgedsl.ir.program import PythonEnvironment, PythonModule, PythonParameter, PythonTool
from forgedsl.source import Span

if TYPE_CHECKING:
    import ast as python

BASES = ("Environment", "MCPTools")
AGENTS = ("forgedsl.Agent", "forgedsl.agent.Agent")
"""full names: other packages have a class `Agent` too"""
REWARD = ("reward",)
"""reward parts of an agent that names none"""
RUN = "`async def run(self, task, model)`"
MODULE = "Module"
SERVED = "MCPTools"
"""base class of environments whose tools are known only when they run"""
MARK = "tool"
CALLED = 3
"""arguments of `run`: self, task, model"""
TOOL_TYPES = ("str", "int", "float", "bool", "list", "dict")


def environments(tree: python.Module, module: str, span: Span) -> dict[str, PythonEnvironment]:
    """The environment and agent classes of a file, by name."""
    import ast as python

    found = {}
    agents = _agents(tree)
    for name, bases, items in classes(tree):
        agent = name in agents
        if not agent and bases.isdisjoint(BASES):
            continue
        init = items.get("__init__")
        found[name] = PythonEnvironment(
            module=module,
            name=name,
            init=tuple(_parameters(init)) if isinstance(init, python.FunctionDef) else (),
            tools=tuple(_tools(items)),
            texts=tuple(_texts(tree, items)),
            served=SERVED in bases,
            scripts=tuple(t for t in _parts(items.get("command")) if t.endswith(".py")),
            parts=REWARD if agent and "parts" not in items else _parts(items.get("parts")),
            agent=agent,
            problem=_run_problem(items.get("run")) if agent else "",
            span=span,
        )
    return found


def _agents(tree: python.Module) -> set[str]:
    """Return the names of the classes of a file that derive from forgedsl's `Agent`."""
    import ast as python

    from forgedsl.types.effects import names_in

    full = names_in(tree, python.Pass())
    found = {node.name: node for node in tree.body if isinstance(node, python.ClassDef)}
    return {
        name
        for name, node in found.items()
        if any(full(base) in AGENTS for each in _lineage(node, found) for base in each.bases)
    }


def _run_problem(run: python.stmt | None) -> str:
    """Return what is wrong with the method `run` of an agent, else ""."""
    import ast as python

    if run is None:
        return f"has no {RUN}"
    if isinstance(run, python.FunctionDef):
        return f"has a `run` that is not async: write {RUN}"
    if not isinstance(run, python.AsyncFunctionDef):
        return f"has a `run` that is not a method: write {RUN}"
    if any(_last(mark) in ("staticmethod", "classmethod") for mark in run.decorator_list):
        return f"has a `run` that is a static or class method: write {RUN}"
    yields = (n for n in python.walk(run) if isinstance(n, python.Yield | python.YieldFrom))
    if any(yields):
        return "has a `run` that yields; it returns the reward at its end"
    arguments = run.args
    positional = len(arguments.posonlyargs) + len(arguments.args)
    least = positional - len(arguments.defaults)
    most = positional if arguments.vararg is None else max(positional, CALLED)
    required = [d for d in arguments.kw_defaults if d is None]
    if least > CALLED or most < CALLED or required:
        given = python.unparse(arguments)
        return f"has `run({given})`, which is called with a task and a model: write {RUN}"
    return ""


def modules(tree: python.Module, module: str, text: str, span: Span) -> dict[str, PythonModule]:
    """The classes of a file that can be losses, by name."""
    import ast as python

    found = {}
    for name, bases, items in classes(tree):
        init, forward = items.get("__init__"), items.get("forward")
        if MODULE in bases and isinstance(forward, python.FunctionDef):
            found[name] = PythonModule(
                module=module,
                name=name,
                init=tuple(_parameters(init)) if isinstance(init, python.FunctionDef) else (),
                forward=tuple(_parameters(forward)),
                any_name=forward.args.kwarg is not None,
                reports=_parts(items.get("reports")),
                text=text,
                span=span,
            )
    return found


def classes(
    tree: python.Module,
) -> Iterator[tuple[str, set[str], dict[str, python.stmt]]]:
    """Return the classes of a file: name, names of all bases, and the definitions in the class and
    in its bases of the same file."""
    import ast as python

    found = {node.name: node for node in tree.body if isinstance(node, python.ClassDef)}
    for name, node in found.items():
        chain = list(_lineage(node, found))
        items: dict[str, python.stmt] = {}
        for each in reversed(chain):
            items |= {key: item for item in each.body if (key := _key(item))}
        yield name, {_last(base) for each in chain for base in each.bases}, items


def _lineage(
    node: python.ClassDef, classes: dict[str, python.ClassDef]
) -> Iterator[python.ClassDef]:
    """Return a class, then its bases of the same file."""
    import ast as python

    pending, seen = [node], set[str]()
    while pending:
        each = pending.pop(0)
        if each.name not in seen:
            seen.add(each.name)
            yield each
            named = [base.id for base in each.bases if isinstance(base, python.Name)]
            pending += [classes[name] for name in named if name in classes]


def _key(item: python.stmt) -> str:
    """Return the name that a statement of a class body defines."""
    import ast as python

    match item:
        case python.FunctionDef(name=name) | python.AsyncFunctionDef(name=name):
            return name
        case python.Assign(targets=[python.Name(id=name)]):
            return name
        case python.AnnAssign(target=python.Name(id=name)):
            return name
    return ""


def _last(expr: python.expr) -> str:
    """Return the last part of a dotted name: "tool" of `environment.tool`."""
    import ast as python

    match expr:
        case python.Name(id=name) | python.Attribute(attr=name):
            return name
    return ""


def _parameters(
    function: python.FunctionDef | python.AsyncFunctionDef,
) -> Iterator[PythonParameter]:
    """Return the parameters after `self`, with their annotations."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    required = len(positional) - len(arguments.defaults)
    rows = [(argument, index < required, False) for index, argument in enumerate(positional)]
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    rows = rows[1:] + [(argument, default is None, True) for argument, default in keywords]
    for argument, is_required, keyword in rows:
        yield PythonParameter(
            name=argument.arg,
            required=is_required,
            keyword=keyword,
            annotation=_annotation(argument.annotation),
        )


def _annotation(expr: python.expr | None) -> str:
    """Return the name of an annotated type: "list" for `list[str]`, "int" for `int` and `"int"`, ""
    for none."""
    import ast as python

    match expr:
        case python.Subscript(value=value):
            return _last(value)
        case python.Constant(value=str(text)):
            return text.partition("[")[0]
        case None:
            return ""
    return _last(expr)


def _tools(items: dict[str, python.stmt]) -> Iterator[PythonTool]:
    """Return the methods marked `@tool`, each with the problem that keeps a model from calling
    it."""
    import ast as python

    for name, item in items.items():
        if not isinstance(item, python.FunctionDef | python.AsyncFunctionDef):
            continue
        if all(_last(mark) != MARK for mark in item.decorator_list):
            continue
        params = tuple(_parameters(item))
        untyped = next((p for p in params if p.annotation not in TOOL_TYPES), None)
        problem = ""
        if not python.get_docstring(item):
            problem = "has no docstring, which tells the model what it does"
        elif item.args.vararg is not None or item.args.kwarg is not None:
            problem = "has `*args` or `**kwargs`; a tool must name each argument"
        elif untyped is not None:
            written = f"is a {untyped.annotation}" if untyped.annotation else "has no annotation"
            listed = ", ".join(TOOL_TYPES)
            problem = (
                f"has a parameter `{untyped.name}` that {written}; supported types are {listed}"
            )
        yield PythonTool(name=name, params=params, problem=problem)


def _texts(tree: python.Module, items: dict[str, python.stmt]) -> Iterator[str]:
    """Return the strings that the first prompt may be made of: those in `reset` and `__init__`, and
    those assigned to names of the class or the file. Docstrings are left out."""
    import ast as python

    named = {key: item for key, item in items.items() if key not in ("parts", "command")}
    written = [
        s for s in (*tree.body, *named.values()) if isinstance(s, python.Assign | python.AnnAssign)
    ]
    for name in ("reset", "__init__"):
        body = getattr(items.get(name), "body", [])
        written += [s for s in body if not isinstance(s, python.Expr)]
    for statement in written:
        for node in python.walk(statement):
            if isinstance(node, python.Constant) and isinstance(node.value, str):
                yield node.value


def _parts(item: python.stmt | None) -> tuple[str, ...]:
    """Return the strings of a class attribute: `parts = ("found", "polite")` are reward parts,
    `command = ("python", "s.py")` starts an MCP server."""
    import ast as python

    value = item.value if isinstance(item, python.Assign | python.AnnAssign) else None
    entries = value.elts if isinstance(value, python.Tuple | python.List) else []
    texts = (e.value for e in entries if isinstance(e, python.Constant))
    return tuple(text for text in texts if isinstance(text, str))
