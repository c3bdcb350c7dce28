"""Turns a syntax error of the parser into a diagnostic with a remedy.

Common mistakes (common.py) have their own messages; others are S001: expected ..., found ...
"""

from __future__ import annotations

import re

from lark.exceptions import UnexpectedInput

from forgedsl.diagnostics import Diagnostic
from forgedsl.mistakes.common import COMMON_MISTAKES
from forgedsl.mistakes.error_context import Place, describe, open_bracket, place_of
from forgedsl.source import SourceFile


def explain(error: UnexpectedInput, source: SourceFile) -> Diagnostic:
    """Return the diagnostic for a parser error."""
    place = place_of(error, source)
    for slip in COMMON_MISTAKES:
        diagnostic = slip(place)
        if diagnostic is not None:
            return diagnostic
    return _generic(place)


_SYMBOLS = {
    "EQUAL": "`=`",
    "LBRACE": "`{`",
    "RBRACE": "`}`",
    "COLON": "`:`",
    "COMMA": "`,`",
    "LPAR": "`(`",
    "RPAR": "`)`",
    "RSQB": "`]`",
    "ARROW": "`->`",
    "ELSE": "`else`",
}
_SHAPES = {
    "param": "param NAME : TYPE = VALUE",
    "import": 'import "std/rl" as rl',
    "model": "model NAME { source = ... }",
    "dataset": "dataset NAME { source = ..., prompt = ... }",
    "service": "service NAME : titan(MODEL) { ... }",
    "reward": "reward NAME(r: Rollout) -> f32 = EXPRESSION",
    "rubric": "rubric NAME { score = ... }",
    "advantage": "advantage NAME(r: [G] f32) -> [G] f32 = EXPRESSION",
    "filter": "filter NAME(score: [G] f32) -> bool = EXPRESSION",
    "loss": "loss NAME(logprob: diff [B, T] f32, ...) { minimize ... }",
    "fn": "fn NAME(x: [B, T] f32) -> [B, T] f32 = EXPRESSION",
    "flow": "flow train { ... }",
    "sync": "sync trainer -> generator { every = 1 }",
    "launcher": 'launcher = slurm(partition = "gpu")',
    "schedule": "schedule async { steps = 100, max_policy_age = 1 }",
    "eval": "eval NAME { dataset = ..., score = ..., every = 50 }",
    "profile": "profile NAME when CONDITION { ... }",
}


def _generic(place: Place) -> Diagnostic:
    """Return S001, with the expected terminals in the words of the language."""
    expected = place.expected
    parts: list[str] = []
    if "STRING" in expected and "INT" in expected:
        parts.append("an expression")
    elif "DIFF" in expected:
        parts.append("a type")
    elif "NAME" in expected:
        parts.append("a name")
    elif "STRING" in expected:
        parts.append("a string")
    parts += [text for kind, text in _SYMBOLS.items() if kind in expected]
    if "_NL" in expected:
        parts.append("the end of the line")
    message = f"unexpected {describe(place)}"
    if parts:
        listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} or {parts[-1]}"
        message = f"expected {listed}, found {describe(place)}"
    word = re.match(r"\s*(\w+)", place.before)
    known = word is not None and (word[1] == "sync" or open_bracket(place) is None)
    shape = _SHAPES.get(word[1]) if word and known else None
    help_text = f"`{shape}`" if shape else ""
    return place.error("S001", "unexpected-token", message, help=help_text)
