"""Shared state of all steps of resolution: the reporter, and helpers that word diagnostics.

`ERROR` is the value of an expression that already has a diagnostic. Passes propagate it silently,
so that one mistake gives one message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from forgedsl import surface
from forgedsl.diagnostics import Diagnostic, Edit, Fix, Label, Reporter, Severity
from forgedsl.mistakes.other_tools import equivalent
from forgedsl.mistakes.suggest import did_you_mean, nearest
from forgedsl.records import dataclass, field
from forgedsl.source import Span
from forgedsl.syntax import ast

NAMES = {
    "F101": "undefined",
    "F102": "duplicate",
    "F103": "unknown-setting",
    "F105": "data-cycle",
    "F109": "wrong-type",
    "F110": "missing-setting",
    "F111": "loss-field",
    "F112": "unrelated-join",
    "F113": "bad-value",
    "F114": "arity",
    "F115": "import-not-found",
    "F116": "import-cycle",
    "F117": "param-cycle",
    "F118": "edition",
    "F119": "misplaced",
    "F120": "requirement-failed",
    "F121": "bad-override",
    "S018": "reserved-word",
    "X801": "python-symbol",
    "X802": "signature",
}


class Error:
    """The value of an expression that has been reported."""

    def __repr__(self) -> str:
        return "ERROR"


ERROR: Final = Error()

VALUE = re.compile(r"(?:here it is|write|without quotes:) `([^`]+)`")
"""help that is a value, to be written in place of the wrong one"""


@dataclass(slots=True)
class Context:
    """Collects the diagnostics of one resolution. `broken` holds names that already have a
    diagnostic: declarations with mistakes, and settings written in the wrong place
    (`gen.sampling.n`)."""

    reporter: Reporter
    broken: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    """undefined names; each is reported once"""

    def error(
        self,
        code: str,
        message: str,
        span: Span,
        *,
        label: str = "",
        help: str = "",
        notes: tuple[str, ...] = (),
        related: tuple[Label, ...] = (),
        fix: Fix | None = None,
        table: tuple[str | Label, ...] = (),
    ) -> Error:
        """Report an error. Returns `ERROR`, for use as the value that could not be computed. A
        `help` that is nothing but the right value is a fix too."""
        right = VALUE.fullmatch(help) if code in ("F109", "F113") else None
        if fix is None and right is not None:
            edit = Edit(text=right[1], span=span)
            fix = Fix(message=f"write `{right[1]}`", edits=(edit,), safe=False)
        self.reporter.report(
            Diagnostic(
                code=code,
                name=NAMES[code],
                severity=Severity.ERROR,
                message=message,
                span=span,
                label=label,
                help=help,
                notes=notes,
                related=related,
                # a typed override is in no file that a fix could edit
                fix=None if surface.is_typed(span.file) else fix,
                table=table,
            )
        )
        return ERROR

    def unknown(
        self,
        code: str,
        what: str,
        name: str,
        span: Span,
        candidates: Iterable[str],
        help: str = "",
        *,
        strings: bool = False,
    ) -> Error:
        """Report an unknown name with the nearest known ones. If they are `strings`, they are
        written in quotes."""
        if name in self.broken or name.partition(".")[0] in self.broken:
            return ERROR
        if code == "F101":
            if name in self.missing or name.partition(".")[0] in self.missing:
                return ERROR
            self.missing.add(name)
        known = tuple(candidates)
        no_library = name.partition(".")[0] == "rl" and not any(k.startswith("rl") for k in known)
        close = (name.lower(),) if name in ("True", "False", "None") else nearest(name, known)
        if close:
            close = tuple(f'"{each}"' for each in close) if strings else close
            help = did_you_mean(close)
            edit = Edit(text=close[0], span=span)
            fix = Fix(message=f"replace `{name}` by `{close[0]}`", edits=(edit,), safe=False)
            return self.error(code, f"{what} `{name}`", span, help=help, fix=fix)
        if no_library:
            self.missing.add("rl")
            help = 'add `import "std/rl" as rl` at the start of the file'
        help = help or equivalent(name)
        if not help and 0 < len(known) <= 12:
            help = "known are " + ", ".join(f"`{k}`" for k in sorted(set(known)))
        return self.error(code, f"{what} `{name}`", span, help=help)


def spelled(written: ast.Expr, name: str, close: tuple[str, ...]) -> Fix | None:
    """Return the fix that replaces the name at the end of a string; None if it cannot be made."""
    span = written.span
    if not close or not isinstance(written, ast.String):
        return None
    if span.end - span.start != len(written.value) + 2:  # escapes, raw, or triple quotes
        return None
    inner = Span(span.file, span.end - 1 - len(name), span.end - 1)
    edit = Edit(text=close[0], span=inner)
    return Fix(message=f"replace `{name}` by `{close[0]}`", edits=(edit,), safe=False)
