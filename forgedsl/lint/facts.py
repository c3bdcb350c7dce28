"""Facts about a resolved program that several rules need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forgedsl.hir.ir import Decl, Function, Program, Ref, Value
from forgedsl.source import Span
from forgedsl.syntax import ast


def samplers(program: Program) -> Iterator[Decl]:
    """The generators whose rollouts are trained on."""
    names = dict.fromkeys(step.receiver for step in program.flow if step.op == "sample")
    for name in names:
        yield program.services[name]


def losses(program: Program) -> Iterator[Function]:
    """The losses that steps minimize."""
    for step in program.flow:
        if step.op == "step":
            loss: Ref = step.settings["loss"].value
            yield program.functions[loss.name]


def place(value: Value, decl: Decl) -> Span:
    """Where a setting was written, else the name of its declaration."""
    return value.origin.span or decl.name_span


def calls(node: Any) -> Iterator[ast.Call]:
    """All calls inside an expression."""
    for inner in walk(node):
        if isinstance(inner, ast.Call):
            yield inner


def walk(node: Any) -> Iterator[ast.Expr]:
    """An expression and all expressions in it."""
    yield node
    match node:
        case ast.Unary():
            yield from walk(node.operand)
        case ast.Binary():
            yield from walk(node.left)
            yield from walk(node.right)
        case ast.Conditional():
            for part in (node.then, node.test, node.otherwise):
                yield from walk(part)
        case ast.Call():
            for arg in node.args:
                yield from walk(arg.value)
        case ast.List():
            for item in node.items:
                yield from walk(item)


def read_by_objective(loss: Function) -> frozenset[str]:
    """The names that `minimize` depends on, through the assignments of the body."""
    definitions: dict[str, ast.Expr] = {}
    wanted: list[ast.Expr] = []
    for statement in loss.statements:
        match statement:
            case ast.Assign():
                definitions[statement.path.text] = statement.value
            case ast.TypedAssign():
                definitions[statement.name] = statement.value
            case ast.Minimize():
                wanted.append(statement.value)
    found: set[str] = set()
    while wanted:
        for node in walk(wanted.pop()):
            if isinstance(node, ast.Path) and node.parts[0] not in found:
                found.add(node.parts[0])
                if node.parts[0] in definitions:
                    wanted.append(definitions[node.parts[0]])
    return frozenset(found)
