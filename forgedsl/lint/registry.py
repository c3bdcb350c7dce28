"""All rules that check a resolved program: the modules of `rules`, in the order they run in.

A rule is a module with a docstring (its page for users, which begins with code and name), a
`finding` that makes its diagnostics, and `check(view)`, which yields them.
"""

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, cast

from forgedsl.diagnostics import Diagnostic
from forgedsl.lint import rules
from forgedsl.lint.finding import Finding
from forgedsl.lint.view import View

FAMILIES = "falrdptxn"
"""families of rules, in the order in which they run"""


class Rule(Protocol):
    """Interface of a rule's module."""

    finding: Finding

    def check(self, view: View) -> Iterable[Diagnostic]: ...


def _load(name: str) -> Rule:
    return cast(Rule, importlib.import_module(f"{rules.__name__}.{name}"))


_NAMES = sorted(
    (path.stem for path in Path(rules.__path__[0]).glob("[a-z]*.py")),
    key=lambda name: (FAMILIES.index(name[0]), name),
)
RULES: tuple[Rule, ...] = tuple(_load(name) for name in _NAMES)
FINDINGS: tuple[Finding, ...] = tuple(rule.finding for rule in RULES)
