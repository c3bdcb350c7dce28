"""Sources of rows in a program, those in mixtures too."""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.ir.program import Constructor, Decl, Deferred, Program
from forgedsl.schema.constructors import REASONING_GYM
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.syntax.walk import reads, walk


def parts(source: object) -> Iterator[Constructor]:
    """Yield the sources of a mixture; for any other source, the source itself."""
    if isinstance(source, Constructor):
        mixed = source.args.get("sources")
        for part in mixed or ():
            yield from parts(part)
        if mixed is None:
            yield source


def all_sources(program: Program) -> Iterator[Constructor]:
    """Yield the sources of all datasets and evals."""
    for decl in (*program.datasets.values(), *program.evals.values()):
        yield from parts(decl.settings["source"].value)


def is_made(source: Constructor) -> bool:
    """True if reasoning-gym makes the rows."""
    return source.name == REASONING_GYM.name


def needed_columns(dataset: Decl) -> Iterator[tuple[str, Span]]:
    """Yield the columns that each row of a dataset must have, where they are read. `first(...)`
    tries its arguments, and of `A if B else C` only one side is read, so columns there may be
    absent."""
    for value in (setting.value for setting in dataset.settings.values()):
        if not isinstance(value, Deferred):
            continue
        tried = {id(node) for part in _tried(value.expr) for _, node in reads(part, "row")}
        for keys, node in reads(value.expr, "row"):
            if keys and isinstance(keys[0], str) and id(node) not in tried:
                yield keys[0], node.span


def _tried(expr: ast.Expr) -> Iterator[object]:
    """Yield the parts of an expression that are not read for every row."""
    for node in walk(expr):
        if isinstance(node, ast.Call) and node.function.text == "first":
            yield from node.args
        elif isinstance(node, ast.Conditional):
            yield from (node.then, node.otherwise)
