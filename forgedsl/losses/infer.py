"""Type inference: from the statements of a function to its typed expression tree.

    hir.Function (AST expressions + Scope)  ->  infer  ->  Tree | None, diagnostics reported

One forward walk inlines calls, folds parameters, and checks axes, dtypes and gradient flow of every
expression. An expression with a mistake gets the type `ERROR`, which causes no further messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forgedsl.diagnostics import Label, Reporter
from forgedsl.ir import program as ir
from forgedsl.losses import aggregators, builtins, fields, folding
from forgedsl.losses.build import Typed, constant_dtype
from forgedsl.losses.tree import Field, Tree, Value, reachable
from forgedsl.losses.walk import Walk
from forgedsl.records import replace
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.types.tensors import SIDES, TensorType, clash, union

OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "%": "mod", "**": "pow", "and": "and",
    "or": "or", "==": "eq", "!=": "ne", "<=": "le", ">=": "ge", "<": "lt", ">": "gt",
}  # fmt: skip
NUMBERS = ("f32", "i64", "bf16")


def infer(
    function: ir.Function, reporter: Reporter, params: Mapping[str, Any] | None = None
) -> Tree | None:
    """Infer the tree of a loss, advantage or filter; None after reporting an error.

    `params` has values for its scalar parameters (`clip_low: float = 0.2`), by name.
    """
    return Inference(reporter).function(function, dict(params or {}))


def describe(module: ir.PythonModule) -> str:
    """Describe a Python loss: `Clip(eps = 0.2) of losses.py 1a2b3c4d5e6f`."""
    from hashlib import sha256  # loads OpenSSL, which files without Python losses do not need

    args = ", ".join(f"{name} = {value!r}" for name, value in module.args.items())
    digest = sha256(module.text.encode()).hexdigest()[:12]
    return f"{module.name}({args}) of {module.module} {digest}"


class Inference(Walk):
    """Walks over statements and expressions, and checks the operands of each operation."""

    # ---- functions and statements

    def function(self, function: ir.Function, params: dict[str, Any]) -> Tree | None:
        self.scope = function.scope
        self.calls = [function]
        declared = fields.declare(self, function, params)
        if function.python is not None:
            return self._python(function, function.python, declared)
        outputs = [*self.statements(function)]
        if function.kind == "loss":
            aggregators.check_objective(self, function, outputs)
        else:
            aggregators.check_result(self, function.kind, outputs)
        if self.failed:
            return None
        ends = {name: typed.value for name, typed in outputs}
        return self._tree(function, declared, folding.surviving(function, self.build.values, ends))

    def _python(
        self, function: ir.Function, module: ir.PythonModule, declared: tuple[Field, ...]
    ) -> Tree | None:
        """Make the tree of a Python loss. It reads all its fields."""
        if self.failed:
            return None
        args = tuple(self.locals[field.name].value for field in declared)
        self.build.span = function.span
        description = describe(module)
        ends = {"loss": self.build.python(description, args)}
        ends |= {
            name: self.build.python(f"{name} of {description}", args) for name in module.reports
        }
        return self._tree(function, declared, ends)

    def statements(self, function: ir.Function) -> list[tuple[str, Typed]]:
        """Walk the body; return the outputs by name ("loss", reports, or "result")."""
        outputs: list[tuple[str, Typed]] = []
        for statement in function.statements:
            match statement:
                case ast.Assign():
                    self._bind(statement.path.text, statement.value)
                case ast.TypedAssign():
                    self._bind(statement.name, statement.value)
                    typed = self.locals[statement.name]
                    if not aggregators.check_declared(self, statement.name, statement.type, typed):
                        self.locals[statement.name] = self.broken(statement.span)
                case ast.Return():
                    outputs.append(("result", self.expr(statement.value)))
                case ast.Minimize():
                    outputs.append(("loss", self.aggregate(statement.value)))
                case ast.Report():
                    outputs.append((statement.name, self.aggregate(statement.value)))
        return outputs

    def _bind(self, name: str, value: ast.Expr) -> None:
        self.root = True
        typed = self.expr(value)
        self.root = False
        self.locals[name] = typed
        if not typed.type.is_error:
            self.names.setdefault(typed.value, name)

    def aggregate(self, node: ast.Expr) -> Typed:
        """Infer the value of `minimize` or `report`: a scalar multiple or sum of aggregators."""
        self.root = True
        typed = self.expr(node)
        self.root = False
        return aggregators.check_root(self, typed)

    def _tree(
        self, function: ir.Function, declared: tuple[Field, ...], outputs: dict[str, int]
    ) -> Tree:
        values = self.build.values
        needed = {values[node].attr for node in reachable(values, [*outputs.values()])}
        totals = [(name, value) for name, value in self.totals if name in needed]
        ends = [*outputs.values(), *(value for _, value in totals)]
        values, renumbered = compact(values, ends, self.names)
        used = {value.attr for value in values if value.op == "input"}
        return Tree(
            name=function.name,
            kind=function.kind,
            fields=tuple(field for field in declared if field.name in used),
            unused=tuple(field.name for field in declared if field.name not in used),
            values=tuple(values),
            outputs=tuple((name, renumbered[value]) for name, value in outputs.items()),
            totals=tuple((name, renumbered[value]) for name, value in totals),
            span=function.span,
        )

    # ---- expressions

    def expr(self, node: ast.Expr) -> Typed:
        """The type and value of an expression."""
        root, self.root = self.root, self.root and linear(node)
        self.build.span = node.span
        match node:
            case ast.Path():
                result = self._path(node)
            case ast.Integer() | ast.Number() | ast.Bool() | ast.String():
                result = self.constant(node.value, node.span)
            case ast.Quantity() if node.unit in ("k", "M"):
                result = self.constant(node.value, node.span)
            case ast.NoneLiteral():
                result = self.constant(None, node.span)
            case ast.Unary():
                result = self._unary(node)
            case ast.Binary():
                result = self._binary(node)
            case ast.Conditional():
                result = self._conditional(node)
            case ast.Call():
                result = builtins.call(self, node)
            case _:
                message = "tensor math cannot contain a list, a quantity or an index"
                result = self.error("T702", "dtype", message, node.span)
        self.root = root
        if result.span is node.span:
            return result
        return Typed(result.value, result.type, node.span, result.aggregate)

    def constant(self, value: Any, span: Span) -> Typed:
        if not isinstance(value, bool | int | float | str | None):
            return self.error("T702", "dtype", f"{value!r} is not a number", span)
        type_ = TensorType(frozenset(), constant_dtype(value))
        return Typed(self.build.const(value), type_, span)

    def _path(self, node: ast.Path) -> Typed:
        first, *rest = node.parts
        if first in self.locals:
            return self._attribute(self.locals[first], rest, node)
        found = self.scope.lookup(node.parts)
        if isinstance(found, ir.Constant):
            return self.constant(found.value, node.span)
        if found is not None:
            kind = found.kind if isinstance(found, ir.Decl) else "function"
            help_ = "call it with its arguments" if kind == "function" else ""
            message = f"`{node.text}` is a {kind}, not a value"
            return self.error("T702", "dtype", message, node.span, help=help_)
        return self.undefined(node.text, [*self.locals, *self.scope.names], node.span)

    def _attribute(self, typed: Typed, rest: list[str], node: ast.Path) -> Typed:
        if not rest or typed.type.is_error:
            return typed
        if len(rest) > 1 or rest[0] not in SIDES or not {"P", "T"} <= typed.type.axes:
            message = f"`{node.parts[0]}` is {typed.type} and has no `{'.'.join(rest)}`"
            help_ = "`.chosen` and `.rejected` select a side of a [P, T] field"
            return self.error("F101", "undefined", message, node.span, help=help_)
        axes = (typed.type.axes - {"T"}) | {f"T.{rest[0]}"}
        value = self.build.side(typed.value, rest[0])
        return Typed(value, replace(typed.type, axes=axes), node.span)

    def _unary(self, node: ast.Unary) -> Typed:
        operand = self.expr(node.operand)
        if node.operator == "not":
            return self.apply("not", (operand,), ("bool",), node.span)
        if node.operator == "+":
            return self.apply("", (operand,), NUMBERS, node.span)
        return self.apply("neg", (operand,), NUMBERS, node.span)

    def _binary(self, node: ast.Binary) -> Typed:
        left, right = self.expr(node.left), self.expr(node.right)
        if node.operator not in OPERATORS:
            message = f"`{node.operator}` cannot be applied to tensors"
            return self.error("T702", "dtype", message, node.span)
        op = OPERATORS[node.operator]
        if op in ("and", "or"):
            return self.apply(op, (left, right), ("bool",), node.span)
        if left.type.is_error or right.type.is_error:
            return self.broken(node.span)
        constants = [self.build.values[side.value].op == "const" for side in (left, right)]
        if op in ("eq", "ne") and all(constants):
            return self.apply(op, (left, right), (*NUMBERS, "bool", "none", "str"), node.span)
        return self.apply(op, (left, right), NUMBERS, node.span)

    def _conditional(self, node: ast.Conditional) -> Typed:
        test = self.expr(node.test)
        if test.type.is_error:
            return self.broken(node.span)
        value = self.build.values[test.value]
        if test.type.dtype == "bool" and value.op == "const":
            return self.expr(node.then if value.attr else node.otherwise)
        then, otherwise = self.expr(node.then), self.expr(node.otherwise)
        return self.where(test, then, otherwise, node.span)

    def where(self, test: Typed, then: Typed, otherwise: Typed, span: Span) -> Typed:
        """`then if test else otherwise`, elementwise."""
        if not self.expect(test, ("bool",)):
            return self.broken(span)
        dtypes = ("bool",) if then.type.dtype == "bool" else NUMBERS
        return self.apply("where", (test, then, otherwise), dtypes, span, checked=1)

    # ---- checks

    def apply(
        self,
        op: str,
        args: tuple[Typed, ...],
        dtypes: tuple[str, ...],
        span: Span,
        checked: int = 0,
    ) -> Typed:
        """Infer an elementwise operation. Operands after the first `checked` must have `dtypes`."""
        expected = [self.expect(arg, dtypes) for arg in args[checked:]]
        if not all(expected):
            return self.broken(span)
        if not self.unify(args, span) or not aggregators.keeps_root(self, op, args):
            return self.broken(span)
        self.build.span = span
        if not op:
            return args[0]
        divisor = self.build.values[args[-1].value]
        if op in ("div", "mod") and divisor.op == "const" and divisor.attr == 0:
            return self.error("L407", "zero-division", "this divides by zero", args[-1].span)
        try:
            value = self.build(op, *(arg.value for arg in args))
        except (ArithmeticError, ValueError) as error:
            message = f"this constant cannot be computed: {error}"
            return self.error("L407", "zero-division", message, span)
        folded = self.build.values[value].type
        axes = union(arg.type.axes for arg in args)
        if axes != folded.axes:
            folded = TensorType(axes, folded.dtype, folded.diff)
        return Typed(value, folded, span, any(arg.aggregate for arg in args))

    def unify(self, args: tuple[Typed, ...], span: Span) -> bool:
        """Report operands whose axes cannot be combined."""
        axes = union(arg.type.axes for arg in args)
        if (pair := clash(axes)) is None:
            return True
        sides = [next(arg for arg in args if axis in arg.type.axes) for axis in pair]
        related = tuple(Label(text=str(side.type), span=side.span) for side in sides)
        group = "G" in pair
        self.error(
            "T704" if group else "T701",
            "group-batch" if group else "axis",
            f"{sides[0].type} and {sides[1].type} have no common axes",
            span,
            related=related,
            help=(
                "the axis G exists only in advantages and filters, B and T in losses; `replay` "
                "converts from one to the other"
            )
            if group
            else "reduce one of them over its tokens first, for example `sum(x, T, mask)`",
        )
        return False

    def expect(self, arg: Typed, dtypes: tuple[str, ...]) -> bool:
        """Report an operand of the wrong dtype, or an aggregator inside an expression."""
        if arg.type.is_error:
            return False
        if arg.aggregate and not self.root:
            aggregators.report_nested(self, arg)
            return False
        if arg.type.dtype in dtypes:
            return True
        wanted = "a number" if "f32" in dtypes else "true or false"
        help_ = ""
        if arg.type.dtype == "bool":
            help_ = "use `1.0 if x else 0.0`; aggregators count `true` by themselves"
        self.error(
            "T702",
            "dtype",
            f"{wanted} is needed here, but this is {arg.type}",
            arg.span,
            help=help_,
        )
        return False

    def operands(self, nodes: list[ast.Expr]) -> list[Typed]:
        """Infer expressions inside a call, where aggregators are not allowed."""
        root, self.root = self.root, False
        results = [self.expr(node) for node in nodes]
        self.root = root
        return results


def linear(node: ast.Expr) -> bool:
    """True if an expression may contain aggregators: sums, multiples and negations."""
    if isinstance(node, ast.Unary):
        return node.operator in ("-", "+")
    if isinstance(node, ast.Binary):
        return node.operator in ("+", "-", "*", "/")
    return isinstance(node, ast.Call | ast.Path | ast.Conditional)


def compact(
    values: list[Value], ends: list[int], names: Mapping[int, str]
) -> tuple[list[Value], dict[int, int]]:
    """Keep only the values that `ends` depend on, renumbered, each with its name in the source."""
    kept = reachable(values, ends)
    number = {old: new for new, old in enumerate(kept)}
    renumbered = []
    for old in kept:
        value = values[old]
        args = tuple([number[arg] for arg in value.args])
        name = names.get(old, value.name)
        if args != value.args or name != value.name:
            value = Value(
                op=value.op, args=args, attr=value.attr, type=value.type, name=name, span=value.span
            )
        renumbered.append(value)
    return renumbered, number
