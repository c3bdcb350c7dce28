"""`require` and `when`: boolean constants. A requirement that fails is F120, operands shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from forgedsl.hir.context import ERROR
from forgedsl.hir.evaluate import evaluate, is_auto, show, type_name
from forgedsl.hir.ir import Value
from forgedsl.source import Span
from forgedsl.syntax import ast

if TYPE_CHECKING:
    from forgedsl.hir.resolve import Resolver


def holds(expr: ast.Expr, resolver: Resolver) -> bool:
    """The truth of a condition; False after a diagnostic."""
    value = evaluate(expr, resolver, resolver.ctx)
    if value is ERROR or is_auto(value):
        return False
    if not isinstance(value, bool):
        message = f"a condition is true or false, not {type_name(value)}"
        resolver.ctx.error("F109", message, expr.span)
        return False
    return value


def check(resolver: Resolver) -> None:
    """Report every requirement that does not hold. One that depends on `auto` is left to the
    plan."""
    for requirement in resolver.table.requires:
        value = evaluate(requirement.test, resolver, resolver.ctx)
        if value is True or value is ERROR or is_auto(value):
            continue
        if not isinstance(value, bool):
            message = f"a requirement is true or false, not {type_name(value)}"
            resolver.ctx.error("F109", message, requirement.test.span)
            continue
        _failed(requirement, resolver)


def _failed(requirement: ast.Require, resolver: Resolver) -> None:
    paths = {path.text: path for path in _paths(requirement.test)}
    values = {text: resolver.value_of(path) for text, path in paths.items()}
    notes = [
        f"{text} = {show(values[text])}{_provenance(path, resolver)}"
        for text, path in paths.items()
    ]
    message = "requirement does not hold"
    if requirement.message:
        message += f": {requirement.message}"
    resolver.ctx.error(
        "F120",
        message,
        requirement.span,
        label=_sides(requirement.test, resolver),
        notes=tuple(notes),
    )


def _sides(test: ast.Expr, resolver: Resolver) -> str:
    """`8704 <= 4096 is false`."""
    if isinstance(test, ast.Binary) and test.operator not in {"and", "or"}:
        left = evaluate(test.left, resolver, resolver.ctx)
        right = evaluate(test.right, resolver, resolver.ctx)
        return f"{show(left)} {test.operator} {show(right)} is false"
    return "this is false"


def _paths(expr: Any) -> Iterator[ast.Path]:
    match expr:
        case ast.Path():
            yield expr
        case ast.Unary():
            yield from _paths(expr.operand)
        case ast.Binary():
            yield from _paths(expr.left)
            yield from _paths(expr.right)
        case ast.Conditional():
            for part in (expr.then, expr.test, expr.otherwise):
                yield from _paths(part)
        case ast.Call():
            for arg in expr.args:
                yield from _paths(arg.value)
        case ast.List():
            for item in expr.items:
                yield from _paths(item)


def _provenance(path: ast.Path, resolver: Resolver) -> str:
    """Where the value of a name comes from: ` (--set max_new=8192; default 1024, line 10)`."""
    table = resolver.table
    if path.text in table.params:
        value = resolver.params.fold(path.text)
        default = table.params[path.text].default
        text = _origin(value, resolver)
        if value.origin.layer != "default" and default is not None:
            written = resolver.loader.sources[default.span.file].text
            shown = written[default.span.start : default.span.end]
            text += f"; default {shown}, {_line(default.span, resolver)}"
        return f" ({text})" if text else ""
    declared = table.declared.get(path.parts[0])
    if declared is None:
        return ""
    text = _origin(resolver.setting(declared, ".".join(path.parts[1:])), resolver)
    return f" ({text})" if text else ""


def _origin(value: Value, resolver: Resolver) -> str:
    origin = value.origin
    if origin.layer in {"set", "set-file"}:
        return origin.detail
    if origin.span is None:
        return origin.detail
    line = _line(origin.span, resolver)
    return f"{origin.detail}, {line}" if origin.detail else line


def _line(span: Span, resolver: Resolver) -> str:
    return f"line {resolver.loader.sources[span.file].position(span.start)[0]}"
