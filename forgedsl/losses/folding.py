"""Finds fields that folding has removed: the objective mentions them but does not depend on them.

With `beta = 0.0`, the objective of a GRPO loss mentions `ref` but does not depend on it. Reports
that read such a field are removed too, so that the field, its edge and its service can be removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from forgedsl.ir import program as ir
from forgedsl.losses.tree import Value, reachable
from forgedsl.syntax import ast
from forgedsl.syntax.walk import names


def surviving(
    function: ir.Function, values: list[Value], outputs: Mapping[str, int]
) -> dict[str, int]:
    """Return the outputs that do not depend on a field removed by folding."""
    if "loss" not in outputs:
        return dict(outputs)
    lost = mentioned(function) - reads(values, outputs["loss"])
    return {
        name: value
        for name, value in outputs.items()
        if name == "loss" or not reads(values, value) & lost
    }


def reads(values: list[Value], end: int) -> set[str]:
    """Return the inputs that a value depends on."""
    return {
        str(values[node].attr) for node in reachable(values, [end]) if values[node].op == "input"
    }


def mentioned(function: ir.Function) -> set[str]:
    """Return the fields that the objective names before folding, directly or through
    assignments."""
    assigned: dict[str, ast.Expr] = {}
    pending: list[str] = []
    for statement in function.statements:
        match statement:
            case ast.Assign():
                assigned[statement.path.text] = statement.value
            case ast.TypedAssign():
                assigned[statement.name] = statement.value
            case ast.Minimize():
                pending.extend(first_names(statement.value))
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            pending.extend(first_names(assigned[name]) if name in assigned else ())
    return seen & {field.name for field in function.fields}


def first_names(node: ast.Expr) -> Iterator[str]:
    """Return the first part of every name in an expression."""
    return (parts[0] for parts in names(node))
