"""All rules that look at a resolved program, in the order in which they run.

A rule is a module with CODE, NAME, a docstring for people, and `check(program)`, which yields
diagnostics. EVERYWHERE = True means: reported only if every view of the file shows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from forgedsl.diagnostics import Diagnostic
from forgedsl.hir.ir import Program
from forgedsl.lint.rules import a303, a304, a306, d601, d602, d603, d604, f104, r504, r509


class Rule(Protocol):
    """The module of a rule."""

    CODE: str
    NAME: str

    def check(self, program: Program) -> Iterable[Diagnostic]: ...


RULES: tuple[Rule, ...] = (f104, a303, a304, a306, d601, d602, d603, d604, r504, r509)
