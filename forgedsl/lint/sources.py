"""Sources of rows in a program, those in mixtures too."""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.ir.program import Constructor, Program
from forgedsl.schema.constructors import REASONING_GYM


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
