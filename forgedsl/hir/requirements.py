"""Checks `require` and `when` conditions. A requirement that fails is F120, with its operands
shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from forgedsl.hir import imports
from forgedsl.hir.context import ERROR
from forgedsl.hir.evaluate import evaluate, is_auto, show, type_name
from forgedsl.hir.file import File
from forgedsl.ir.program import Value
from forgedsl.source import Span
from forgedsl.syntax import ast


def holds(expr: ast.Expr, resolver: File) -> bool:
    """Evaluate a condition; False after a diagnostic."""
    value = evaluate(expr, resolver, resolver.ctx)
    if value is ERROR or is_auto(value):
        return False
    if not isinstance(value, bool):
        message = f"a condition must be true or false, not {type_name(value)}"
        resolver.ctx.error("F109", message, expr.span)
        return False
    return value


def check_conditions(resolver: File) -> None:
    """Check the `when` conditions of profiles that are not evaluated to choose one."""
    for profile in resolver.table.profiles.values():
        if profile.when is not None:
            holds(profile.when, resolver)


def check(resolver: File) -> None:
    """Report every requirement that does not hold. One that depends on `auto` is left to the
    plan."""
    for requirement in resolver.table.requires:
        value = evaluate(requirement.test, resolver, resolver.ctx)
        if value is True or value is ERROR or is_auto(value):
            continue
        if not isinstance(value, bool):
            message = f"a requirement must be true or false, not {type_name(value)}"
            resolver.ctx.error("F109", message, requirement.test.span)
            continue
        _failed(requirement, resolver)


def _failed(requirement: ast.Require, resolver: File) -> None:
    from forgedsl.hir.operands import hang  # most requirements hold

    source = resolver.loader.sources[requirement.span.file]
    message = "this requirement is not met"
    if requirement.message:
        message += f": {requirement.message}"

    def value_of(expr: ast.Expr) -> str:
        return str(show(evaluate(expr, resolver, resolver.ctx)))

    table = hang(requirement.test, source, value_of, _origins(requirement.test, resolver))
    resolver.ctx.error("F120", message, requirement.span, table=table)


def _origins(test: ast.Expr, resolver: File) -> list[str]:
    """Return the origins of the operands: only those set by an override or a profile, if there are
    any."""
    paths = {path.text: path for path in _paths(test)}
    found = {text: _provenance(path, resolver) for text, path in paths.items()}
    changed = {text: where for text, (where, layer) in found.items() if layer not in ("", "file")}
    shown = changed or {text: where for text, (where, _) in found.items() if where}
    return [f"{text}: {where}" for text, where in shown.items()]


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
        case ast.Index():
            yield from _paths(expr.base)
            yield from _paths(expr.key)
        case ast.Call():
            for arg in expr.args:
                yield from _paths(arg.value)
        case ast.List():
            for item in expr.items:
                yield from _paths(item)


def _provenance(path: ast.Path, resolver: File) -> tuple[str, str]:
    """Return the origin of a value, such as `--set max_new=8192 (default 1024, line 10)`, and its
    layer."""
    table = resolver.table
    if path.text in table.params:
        value = resolver.params.fold(path.text)
        default = table.params[path.text].default
        text = _origin(value, resolver)
        if value.origin.layer == "default" or default is None:
            return text, "file"
        written = resolver.loader.sources[default.span.file].text
        shown = written[default.span.start : default.span.end]
        return f"{text} (default {shown}, {_line(default.span, resolver)})", value.origin.layer
    module = resolver.modules.get(path.parts[0])
    if module is not None:
        return _provenance(imports.inner(path), module)
    declared = table.declared.get(path.parts[0])
    if declared is None:
        return "", ""
    value = resolver.setting(declared, ".".join(path.parts[1:]))
    layer = "file" if value.origin.layer in ("default", "module") else value.origin.layer
    return _origin(value, resolver), layer


def _origin(value: Value, resolver: File) -> str:
    origin = value.origin
    if origin.layer in {"set", "set-file"}:
        return origin.detail
    if origin.span is None:
        return origin.detail
    line = _line(origin.span, resolver)
    if origin.span.file != resolver.name:
        line = f"{PurePath(origin.span.file).name} {line}"
    return f"{origin.detail}, {line}" if origin.detail and origin.layer != "default" else line


def _line(span: Span, resolver: File) -> str:
    return f"line {resolver.loader.sources[span.file].position(span.start)[0]}"
