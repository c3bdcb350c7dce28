"""All rules that look at a resolved program, in the order in which they run.

A rule is a module with CODE, NAME, LEVEL, a docstring for people, and `check(view)`, which yields
diagnostics. LEVEL: E is an error, D an error that a comment with a reason suppresses, W a warning,
I information. EVERYWHERE = True means: reported only if every view of the file shows it;
PEDANTIC = True: off unless selected.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Protocol, cast

from forgedsl.diagnostics import Diagnostic
from forgedsl.lint.view import View

CODES = (
    "F104", "A303", "A304", "A306",
    "L403", "L405", "L407", "L408", "L409", "L410", "L411", "L412", "L413", "L414",
    "R501", "R502", "R503", "R504", "R505", "R506", "R507", "R508", "R509", "R510",
    "D601", "D602", "D604", "D607", "D608", "D610",
    "P210", "P215", "T701", "X802", "X803", "N901", "N905",
)  # fmt: skip


class Rule(Protocol):
    """The module of a rule."""

    CODE: str
    NAME: str
    LEVEL: str

    def check(self, view: View) -> Iterable[Diagnostic]: ...


def _load(code: str) -> Rule:
    return cast(Rule, importlib.import_module(f"forgedsl.lint.rules.{code.lower()}"))


RULES: tuple[Rule, ...] = tuple(_load(code) for code in CODES)
