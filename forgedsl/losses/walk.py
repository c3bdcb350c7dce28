"""Base class of type inference: the state of a walk, and its diagnostics.

`infer.Inference` walks the expressions. Functions of other modules check fields, calls, reductions
and roots; they take the walk as argument.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from forgedsl.diagnostics import Diagnostic, Label, Reporter, Severity
from forgedsl.hir.context import Context
from forgedsl.ir import program as ir
from forgedsl.losses.build import Builder, Typed
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.types.tensors import ERROR


class Walk(ABC):
    """State of a walk: the builder, the local names, and the functions being inlined."""

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.build = Builder()
        self.failed = False
        self.scope = ir.Scope()
        self.locals: dict[str, Typed] = {}
        self.calls: list[ir.Function] = []
        self.totals: list[tuple[str, int]] = []
        self.names: dict[int, str] = {}
        self.root = False
        """True if the current expression may be an aggregator"""

    @abstractmethod
    def statements(self, function: ir.Function) -> list[tuple[str, Typed]]:
        """Walk the body; the outputs by name."""

    @abstractmethod
    def expr(self, node: ast.Expr) -> Typed:
        """The type and value of an expression."""

    @abstractmethod
    def constant(self, value: object, span: Span) -> Typed:
        """A folded value."""

    @abstractmethod
    def operands(self, nodes: list[ast.Expr]) -> list[Typed]:
        """Expressions inside a call."""

    @abstractmethod
    def apply(self, op: str, args: tuple[Typed, ...], dtypes: tuple[str, ...], span: Span) -> Typed:
        """An elementwise operation."""

    @abstractmethod
    def unify(self, args: tuple[Typed, ...], span: Span) -> bool:
        """Report operands whose axes cannot be combined."""

    @abstractmethod
    def expect(self, arg: Typed, dtypes: tuple[str, ...]) -> bool:
        """Report an operand of the wrong dtype."""

    # ---- diagnostics

    def broken(self, span: Span) -> Typed:
        """Return the value of an expression that has a diagnostic."""
        return Typed(0, ERROR, span)

    def undefined(self, name: str, candidates: list[str], span: Span) -> Typed:
        return self.unknown("F101", "undefined name", name, span, candidates)

    def unknown(
        self, code: str, what: str, name: str, span: Span, candidates: Iterable[str]
    ) -> Typed:
        """Report an unknown name with the nearest known ones."""
        self.failed = True
        Context(self.reporter).unknown(code, what, name, span, candidates)
        return self.broken(span)

    def error(
        self,
        code: str,
        name: str,
        message: str,
        span: Span,
        *,
        help: str = "",
        related: tuple[Label, ...] = (),
    ) -> Typed:
        """Report an error; return a value of the error type."""
        self.failed = True
        self.reporter.report(
            Diagnostic(
                code=code,
                name=name,
                severity=Severity.ERROR,
                message=message,
                span=span,
                help=help,
                related=related,
            )
        )
        return Typed(0, ERROR, span)


def arguments(
    inference: Walk, node: ast.Call, params: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, ast.Expr] | None:
    """Bind arguments to parameter names; None after reporting a wrong call."""
    bound: dict[str, ast.Expr] = {}
    problem = ""
    names = (*params, *optional)
    for position, arg in enumerate(node.args):
        name = arg.name or (names[position] if position < len(names) else None)
        if name is None:
            problem = f"takes {len(names)} arguments, but {len(node.args)} were given"
        elif name not in names:
            problem = f"has no argument `{name}`"
        elif name in bound:
            problem = f"got `{name}` twice"
        else:
            bound[name] = arg.value
            continue
        break
    missing = [f"`{name}`" for name in params if name not in bound]
    if not problem and missing:
        problem = f"needs {' and '.join(missing)}"
    if not problem:
        return bound
    usage = ", ".join((*params, *(f"[{name}]" for name in optional)))
    text = node.function.text
    inference.error(
        "F114", "arity", f"`{text}` {problem}", node.span, help=f"write {text}({usage})"
    )
    return None
