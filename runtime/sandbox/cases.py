"""Cases of a programming problem, judged outside of the program under test.

    assert area(2, 3) == 6   ->   in: area(2, 3)      outside: _0 == 6

A case is Python statements. What depends on the program's own names goes into its process: calls,
and the statements that prepare them. The assertions stay outside, with placeholders for the values
that come back; so the program never holds an expected value, and can only claim what its calls
returned. Comparisons of values with literals are done here; other assertions are evaluated in a
second sandbox, in which the program has never been.
"""

from __future__ import annotations

import ast
import builtins
import marshal
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from forgedsl.runtime.sandbox.levels import choose
from forgedsl.runtime.sandbox.process import Limits, Step, evaluate

BUILTINS = frozenset(dir(builtins))
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
DEFINITIONS = (
    ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef,
)  # fmt: skip
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
MODULES = frozenset({
    "cmath", "collections", "copy", "datetime", "decimal", "fractions", "functools", "itertools",
    "json", "math", "operator", "re", "statistics", "string",
})  # fmt: skip
VALUE = "_v"


class CaseError(ValueError):
    """A case cannot be judged from outside: a mistake of the data, not of the program."""


def judge(
    code: str, cases: Sequence[str], *, limits: Limits | None = None, level: str | None = None
) -> list[bool]:
    """Whether `code` passes each of the cases; they run in order and share their names.

    Raises:
        CaseError: a case is no Python, or cannot be judged from outside.
        SandboxError: this host offers no sandbox, or none as strong as `level`.
    """
    plan = split(cases)
    found, limits = choose(level), limits or Limits()
    answers = evaluate(code, plan.steps, level=found, limits=limits)
    values = {} if -1 in answers.errors else answers.values
    passed = [all(step in values for step in steps) for steps in plan.steps_by_case]
    late: set[ast.AST] = set()
    for case, test in plan.outside:
        if isinstance(test, ast.expr) and passed[case]:
            try:
                passed[case] = bool(_plainly(test, values))
            except _NotPlainError:
                late.add(test)
            except (TypeError, ValueError, RecursionError, MemoryError):
                passed[case] = False  # None < 3
    for case, holds in _elsewhere(plan, late, values, found, limits):
        passed[case] &= holds
    return passed


@dataclass(slots=True)
class Plan:
    """What goes in, and what stays outside."""

    steps: list[Step] = field(default_factory=list)
    steps_by_case: list[list[int]] = field(default_factory=list)
    outside: list[tuple[int, ast.stmt | ast.expr]] = field(default_factory=list)
    """by case: assertions, in which `Name("_v3")` is the value of step 3, and the statements that
    do not depend on the program, whose names they may need"""


def split(cases: Sequence[str]) -> Plan:
    """Divide cases into what the program has to see and what it must not.

    Raises:
        CaseError: a case is no Python, or cannot be divided.
    """
    trees = []
    for case in cases:
        try:
            trees.append(ast.parse(case).body)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise CaseError(f"a case is not valid Python: {_shown(case)}") from error
    return _Splitter(trees).split()


class _Splitter:
    """Names that depend on the program are those that nothing outside of it binds."""

    def __init__(self, trees: Sequence[Sequence[ast.stmt]]) -> None:
        self.plan = Plan()
        self.trees = trees
        self.known: set[str] = set(BUILTINS)
        self.changeable: set[str] = set()
        self.sent: set[ast.stmt] = set()
        self.bound_by: dict[str, list[ast.stmt]] = {}

    def split(self) -> Plan:
        for case, statements in enumerate(self.trees):
            self.plan.steps_by_case.append([])
            for statement in statements:
                self._imports(case, statement)
                self._statement(case, statement)
        return self.plan

    def _imports(self, case: int, node: ast.stmt) -> None:
        """Cases may use a module that only the program imports; outside it is imported anew."""
        for inner in ast.walk(node):
            match inner:
                case ast.Attribute(value=ast.Name(id=name)) if name in MODULES - self.known:
                    self._bind(case, ast.parse(f"import {name}").body[0])

    def _statement(self, case: int, node: ast.stmt) -> None:
        if isinstance(node, ast.Assert):
            self.known -= self._tested_builtin(node)
            self.plan.outside.append((case, self._cut(case, node.test)))
            return
        if any(isinstance(inner, ast.Assert) for inner in ast.walk(node)):
            raise CaseError(
                "an assertion inside a block or function cannot be judged outside of the program; "
                f"write plain `assert` statements: {_shown(ast.unparse(node))}"
            )
        if self._depends(node):
            self._step(case, "do", node)
            self.known -= _bound(node)
        else:
            self._bind(case, node)

    def _bind(self, case: int, node: ast.stmt) -> None:
        self.plan.outside.append((case, node))
        names = _bound(node)
        self.known |= names
        if not isinstance(node, DEFINITIONS) and not _is_fixed(node):
            self.changeable |= names
        for name in names:
            self.bound_by.setdefault(name, []).append(node)

    def _tested_builtin(self, node: ast.Assert) -> set[str]:
        """The built-in whose namesake the program had to write: `assert sum([1]) == 1`."""
        if self._depends(node.test):
            return set()
        calls = (n.func for n in ast.walk(node.test) if isinstance(n, ast.Call))
        first = next((f.id for f in calls if isinstance(f, ast.Name)), "")
        return {first} & BUILTINS - set(self.bound_by)

    def _depends(self, node: ast.AST) -> bool:
        return not _loaded(node) <= self.known | _bound(node)

    def _step(self, case: int, kind: str, node: ast.AST) -> int:
        """Send a statement or expression in, behind the independent statements that it needs."""
        for needed in self._needed(node):
            self.sent.add(needed)
            self.plan.steps.append(("do", ast.unparse(needed)))
        self.plan.steps.append((kind, ast.unparse(node)))
        self.plan.steps_by_case[case].append(len(self.plan.steps) - 1)
        self.known -= _loaded(node) & self.changeable  # the program may have changed them
        return len(self.plan.steps) - 1

    def _needed(self, node: ast.AST) -> list[ast.stmt]:
        """Statements outside that bind a name of `node`, directly or not, in their order."""
        found: set[ast.stmt] = set()
        pending = [node]
        while pending:
            for name in _loaded(pending.pop()):
                fresh = set(self.bound_by.get(name, ())) - found - self.sent
                found |= fresh
                pending += fresh
        return [s for _, s in self.plan.outside if isinstance(s, ast.stmt) and s in found]

    def _cut(self, case: int, node: ast.expr) -> ast.expr:
        """The expression with a placeholder for every part that the program must compute."""
        if not self._depends(node):
            return node
        if self._goes_in(node):
            return ast.Name(id=f"{VALUE}{self._step(case, 'value', node)}", ctx=ast.Load())
        if isinstance(node, ast.Lambda | COMPREHENSIONS):
            return self._comprehension(case, node)
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(node, name, self._cut(case, value))
            elif isinstance(value, list):
                cut = [self._cut(case, v) if isinstance(v, ast.expr) else v for v in value]
                setattr(node, name, cut)
        for keyword in getattr(node, "keywords", ()):
            keyword.value = self._cut(case, keyword.value)
        return node

    def _comprehension(self, case: int, node: Any) -> ast.expr:
        """Only what a comprehension goes over can be computed before it."""
        if isinstance(node, COMPREHENSIONS):
            node.generators[0].iter = self._cut(case, node.generators[0].iter)
        self.known |= {f"{VALUE}{step}" for step in range(len(self.plan.steps))}
        if self._depends(node):
            raise CaseError(
                "a comparison inside a comprehension cannot be judged outside of the program; "
                f"write it as separate cases: {_shown(ast.unparse(node))}"
            )
        return node  # type: ignore[no-any-return]

    def _goes_in(self, node: ast.expr) -> bool:
        """Whether a dependent expression is a value of the program: a name, a chain of calls that
        begins at one, or a built-in of one such (`sorted(f(x))`); none holds an expected value."""
        match node:
            case ast.Name() | ast.Await():
                return True
            case ast.Attribute(value=inner) | ast.Subscript(value=inner):
                return self._depends(inner) and self._goes_in(inner)
            case ast.Call(func=ast.Name(id=name), args=[ast.expr() as only], keywords=[]) if (
                name in BUILTINS and name in self.known
            ):
                return self._goes_in(only)
            case ast.Call(func=function):
                return self._depends(function) and self._goes_in(function)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return not any(isinstance(inner, ast.Compare) for inner in ast.walk(node))
        return False


def _loaded(node: ast.AST) -> set[str]:
    return {
        inner.id for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Store)
    }  # fmt: skip


def _bound(node: ast.AST) -> set[str]:
    """Names that a statement, or a comprehension or lambda in it, gives a meaning."""
    found: set[str] = set()
    for inner in ast.walk(node):
        match inner:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=alias):
                found.add(alias or name.partition(".")[0])
    return found


def _is_fixed(node: ast.stmt) -> bool:
    """Whether a statement binds numbers and texts, which nobody can change."""
    fixed = (ast.Constant, ast.Tuple, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop, ast.Load)
    value = getattr(node, "value", None)
    return value is not None and all(isinstance(inner, fixed) for inner in ast.walk(value))


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else f"{line[:77]}..."


# ---- verdicts


class _NotPlainError(Exception):
    """An assertion is more than comparisons of values with literals."""


def _plainly(node: ast.expr, values: Mapping[int, Any]) -> Any:
    """The value of an assertion made of placeholders, literals, comparisons, and, or, not."""
    match node:
        case ast.Name(id=name) if (step := _step_of(name)) is not None:
            return values[step]
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return not _plainly(inner, values)
        case ast.BoolOp(op=op, values=parts):
            test = all if isinstance(op, ast.And) else any
            return test(_plainly(part, values) for part in parts)
        case ast.Compare(left=left, ops=ops, comparators=rights):
            sides = [_plainly(side, values) for side in (left, *rights)]
            pairs = zip(ops, sides, sides[1:], strict=False)
            return all(COMPARE[type(op)](a, b) for op, a, b in pairs)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError) as error:
        raise _NotPlainError from error


def _step_of(name: str) -> int | None:
    digits = name.removeprefix(VALUE)
    return int(digits) if digits != name and digits.isdecimal() else None


def _elsewhere(
    plan: Plan, late: Set[ast.AST], values: Mapping[int, Any], level: str, limits: Limits
) -> Iterator[tuple[int, bool]]:
    """Verdicts on assertions that call functions, out of a sandbox without the program."""
    if not late:
        return
    parts = [(c, part) for c, part in plan.outside if isinstance(part, ast.stmt) or part in late]
    steps: list[Step] = [
        ("do", ast.unparse(part)) if isinstance(part, ast.stmt)
        else ("value", f"bool({ast.unparse(part)})")
        for _, part in parts
    ]  # fmt: skip
    used = {n.id for test in late for n in ast.walk(test) if isinstance(n, ast.Name)}
    steps_by_name = {name: step for name in used if (step := _step_of(name)) is not None}
    names = {name: values[step] for name, step in steps_by_name.items() if _is_plain(values[step])}
    answers = evaluate("", steps, level=level, limits=limits, names=names)
    for i, (case, part) in enumerate(parts):
        if part in late:
            yield case, answers.values.get(i) is True


def _is_plain(value: Any) -> bool:
    """Whether a value can be sent on: it holds nothing opaque, and is not too deep."""
    try:
        marshal.dumps(value)
    except ValueError:
        return False
    return True
