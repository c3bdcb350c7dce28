"""Test cases of a programming problem, judged outside of the program under test.

    assert sorted(f(xs)) == [1, 2]   ->   in the program's sandbox: f(xs)
                                          in the judge's sandbox:   sorted(_) == [1, 2]

A case is Python statements. They are executed in a sandbox without the program (`inside/judge.py`).
A name that no case binds belongs to the program: its calls are carried out in a second sandbox, and
their results come back as data. So the program sees only the arguments of its calls. This module
decides which names belong to the program. It adds imports that a case omits, and rewrites `is`,
`type(x)` and built-ins that the program had to implement. It rejects cases that pass or fail
independently of the program.
"""

from __future__ import annotations

import ast
import builtins
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from forgedsl_runtime.sandbox.levels import choose
from forgedsl_runtime.sandbox.process import Limits, run_cases

BUILTINS = frozenset(dir(builtins))
MODULES = frozenset({
    "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "itertools",
    "json", "math", "operator", "re", "statistics", "string",
})  # fmt: skip
"""modules that a case may use without an import"""
OUTSIDE = {
    "Decimal": "decimal", "Fraction": "fractions", "date": "datetime", "datetime": "datetime",
    "timedelta": "datetime", "defaultdict": "collections", "deque": "collections",
    "namedtuple": "collections", "OrderedDict": "collections",
}  # fmt: skip
"""classes that are always those of the standard library, never the program's: a class of the
program could have an `__eq__` that is always true"""
COMPARISONS = {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}
OWN = {"_same", "_type", "_from_program"}


class CaseError(ValueError):
    """A case cannot be judged: an error in the data, not in the program."""


def judge(
    code: str, cases: Sequence[str], *, limits: Limits | None = None, level: str | None = None
) -> list[bool]:
    """Return for each case whether `code` passes it. Cases run in order and share their names.

    Raises:
        CaseError: a case is not Python, does not depend on the program, or passes an
            unsupported object.
        SandboxError: this host offers no sandbox, or none as strong as `level`.
    """
    plan = prepare(cases)
    found, limits = choose(level), limits or Limits()
    spec = {"cases": plan.cases, "imports": plan.imports, "classes": plan.classes}
    verdicts = run_cases(code, spec, level=found, limits=limits)
    for i, verdict in verdicts.items():
        if isinstance(verdict, str):
            raise CaseError(f"{verdict}: {_shortened(cases[i])}")
    return [verdicts.get(i) is True for i in range(len(cases))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Input of the judge's process. `classes` maps names of classes to their source. When a case
    passes an instance of such a class to the program, the program's process first executes
    `imports` and the source of the class."""

    cases: list[str]
    imports: str
    classes: dict[str, str]


def prepare(cases: Sequence[str]) -> Plan:
    """Prepare cases for execution.

    Raises:
        CaseError: a case is not Python, or no case depends on the program.
    """
    trees = [_parsed(case) for case in cases]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    for tree in trees:
        _refuse(tree, nodes)
    known, found = set(BUILTINS), set[str]()
    texts, asked = [], False
    for tree in trees:
        tree.body = [*_imports(tree, known, nodes), *tree.body]
        for statement in tree.body:
            known |= _bound(statement)
            depends = not _loaded(statement) <= known - found
            theirs = set() if depends else _tested_builtin(statement)
            found |= _bound(statement) if depends else set()
            asked |= depends or bool(theirs)
            _Rewriter(theirs).visit(statement)
        texts.append(ast.unparse(ast.fix_missing_locations(tree)))
    if texts and not asked:
        raise CaseError(f"no case calls the program: {_shortened(cases[0])}")
    bodies = [node for tree in trees for node in tree.body]
    imported = [ast.unparse(n) for n in bodies if isinstance(n, ast.Import | ast.ImportFrom)]
    classes = {n.name: ast.unparse(n) for n in bodies if isinstance(n, ast.ClassDef)}
    return Plan(cases=texts, imports="\n".join(imported), classes=classes)


def _parsed(case: str) -> ast.Module:
    try:
        tree = ast.parse(case)
        with warnings.catch_warnings(action="ignore"):
            compile(tree, "<case>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CaseError(f"a case is not valid Python: {_shortened(case)}") from error
    return tree


def _refuse(tree: ast.Module, nodes: Sequence[ast.AST]) -> None:
    """Reject cases that pass or fail independently of the program.

    Raises:
        CaseError: such a case was found.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Compare() | ast.BoolOp() | ast.UnaryOp()):
                raise CaseError(f"a comparison without `assert` tests nothing: {_of(node)}")
            case ast.Assert(test=ast.Tuple()):
                raise CaseError(f"an `assert` of a tuple is always true: {_of(node)}")
            case ast.FunctionDef(name=name) if _asserts(node) and name not in _used(nodes):
                raise CaseError(f"`{name}` has assertions, but no case calls it: {_of(node)}")
            case ast.Import() | ast.ImportFrom():
                _refuse_import(node)
            case ast.ClassDef() if _asserts(node):
                raise CaseError(
                    f"assertions in a class are not supported; write functions: {_of(node)}"
                )
            case ast.Call(func=ast.Attribute(attr=name)) if name in COMPARISONS:
                raise CaseError(
                    f"`{name}` may return NotImplemented, which counts as true: {_of(node)}"
                )
            case ast.Name(id=name) if name in OWN:
                raise CaseError(f"`{name}` is a name that the sandbox uses itself: {_of(tree)}")


def _refuse_import(node: ast.Import | ast.ImportFrom) -> None:
    names = [alias.name for alias in node.names]
    modules = names if isinstance(node, ast.Import) else [node.module or "."]
    for module in modules:
        if module.partition(".")[0] not in sys.stdlib_module_names:
            raise CaseError(
                f"a case imports `{module}`; only the standard library can be imported, and names "
                f"of the program need no import: {_of(node)}"
            )


def _imports(tree: ast.Module, known: set[str], nodes: Sequence[ast.AST]) -> Iterator[ast.stmt]:
    """Yield imports that a case omits."""
    bound = known | _bound(tree)
    bases = {
        n.value.id for n in ast.walk(tree)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)
    }  # fmt: skip
    loaded = _loaded(tree) - bound
    for name in sorted(loaded):
        if name in MODULES and name in bases:
            yield ast.parse(f"import {name}").body[0]
        elif name in OUTSIDE:
            yield ast.parse(f"from {OUTSIDE[name]} import {name}").body[0]


def _tested_builtin(node: ast.stmt) -> set[str]:
    """Return the built-in that the program had to implement, such as `sum` in
    `assert sum([1]) == 1`."""
    if not isinstance(node, ast.Assert):
        return set()
    calls = (n.func for n in ast.walk(node.test) if isinstance(n, ast.Call))
    return {next((f.id for f in calls if isinstance(f, ast.Name)), "")} & BUILTINS


class _Rewriter(ast.NodeTransformer):
    """Rewrites `is`, `type(x)` and the built-ins that the program had to implement, so that they
    work on objects that live in the program's process."""

    def __init__(self, theirs: set[str]) -> None:
        self._program_names = theirs

    def visit_Compare(self, node: ast.Compare) -> Any:
        self.generic_visit(node)
        if len(node.ops) > 1 or not isinstance(node.ops[0], ast.Is | ast.IsNot):
            return node
        same = _call("_same", node.left, node.comparators[0])
        return same if isinstance(node.ops[0], ast.Is) else ast.UnaryOp(ast.Not(), same)

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="type"), args=[value], keywords=[]):
                return _call("_type", value)
        return node

    def visit_Name(self, node: ast.Name) -> Any:
        return (
            _call("_from_program", ast.Constant(node.id))
            if node.id in self._program_names
            else node
        )


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(args), [])


def _asserts(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Assert) for inner in ast.walk(node))


def _used(nodes: Sequence[ast.AST]) -> set[str]:
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _loaded(node: ast.AST) -> set[str]:
    return {
        inner.id for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Store)
    }  # fmt: skip


def _bound(node: ast.AST) -> set[str]:
    """Return the names that a statement, or a part of it, binds."""
    found: set[str] = set()
    for inner in ast.walk(node):
        match inner:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.ExceptHandler(name=str(name)):
                found.add(name)
            case ast.alias(name=name, asname=alias):
                found.add(alias or name.partition(".")[0])
    return found


def _of(node: ast.AST) -> str:
    return _shortened(ast.unparse(node))


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else f"{line[:77]}..."
