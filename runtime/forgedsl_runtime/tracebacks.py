"""Map a Python error to the .forge line it comes from.

    exception --places_of--> "pipeline.forge:63:3" of each frame of generated code

Generated code names the .forge place of each statement in a comment, at its end or in the line
above. Declarations and nodes of a generated program have the argument
`at="file.forge:line:column"`. An error that passes through such a frame gets a note that names the
place, here and in the processes of a run.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from forgedsl.rows import kind_of

PLACE = re.compile(r"""(?:#\s|at=")([\w.+-]+\.forge:\d+:\d+)""")
LONGEST = 800
"""longest error text that is shown, in characters: an error may quote a whole answer"""
PLAIN = ("dataset_", "reward_", "rubric_", "fn_")
"""prefixes of the names of generated functions that compute with plain values, so that an error
message may evaluate their subexpressions again"""


def places_of(error: BaseException) -> tuple[str, ...]:
    """Return the .forge places of the frames of an error, innermost first."""
    found = (_place(file, line) for file, line in frames(error.__traceback__))
    return tuple(dict.fromkeys(place for place in found if place))[::-1]


def described(error: BaseException) -> str:
    """Describe the error in one line, with its .forge place if generated code was involved."""
    operands = _operands(error) if isinstance(error, TypeError) else ""
    if operands:
        return f"{operands} (at {places_of(error)[0]})"
    text = placed(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _operands(error: TypeError) -> str:
    """Describe the operands of a failed operation of the language; "" for any other error. Example:
    "`row.q + row.id`: `row.q` is text, `row.id` is a number; `text(row.id)` converts it to text".
    """
    trace, found = error.__traceback__, None
    while trace is not None:
        found = trace if trace.tb_frame.f_code.co_name.startswith(PLAIN) else found
        trace = trace.tb_next
    if found is None or not places_of(error):
        return ""
    code, frame = found.tb_frame.f_code, found.tb_frame
    first, last, start, end = [*code.co_positions()][found.tb_lasti // 2]
    lines = linecache.getlines(code.co_filename)[(first or 1) - 1 : last]
    text = "".join(lines).encode()[start : -len(lines[-1].encode()) + (end or 0)].decode()
    try:
        node = ast.parse(f"({text})", mode="eval").body
    except SyntaxError:
        return ""
    parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
    kinds = {}
    for part in parts[isinstance(node, ast.Call) :]:
        value = eval(ast.unparse(part), frame.f_globals, frame.f_locals)
        kinds[_written(part)] = kind_of(value)
    adds = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)
    number = next((name for name, kind in kinds.items() if kind == "a number"), "")
    joins = adds and number and "text" in kinds.values()
    remedy = f"; `text({number})` converts it to text" if joins else ""
    said = ", ".join(f"`{name}` is {kind}" for name, kind in kinds.items())
    return f"`{_written(node)}`: {said}{remedy}"


def _written(node: ast.expr) -> str:
    """Write an expression in the syntax of the language: `row.a[0]` for `item(row, "a", 0)`."""
    for part in [*ast.walk(node)][::-1]:
        if isinstance(part, ast.Call) and getattr(part.func, "id", "") == "item":
            keys = (f"[{ast.unparse(key)}]" for key in part.args[1:])
            text = "".join((ast.unparse(part.args[0]), *keys))
            part.func, part.args = ast.Name(re.sub(r"\['(\w+)'\]", r".\1", text)), []
    return ast.unparse(node).replace("()", "")


def line_of(error: BaseException, file: str) -> str:
    """Return ` (grading.py:12)`, the innermost line of `file` in the traceback, or ""."""
    lines = [line for where, line in frames(error.__traceback__) if Path(where).name == file]
    return f" ({file}:{lines[-1]})" if lines else ""


def placed(error: BaseException) -> str:
    """Return the text of the error, with its .forge place."""
    places = places_of(error)
    try:
        text = str(error)
    except Exception as other:  # `__str__` of a user's class may raise anything
        text = f"(its message raised {type(other).__name__})"
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}... ({len(text):,} characters)"
    return f"{text} (at {places[0]})" if places else text


def install_places() -> None:
    """Add the .forge places to uncaught errors of this process."""
    if not isinstance(sys.excepthook, partial):
        sys.excepthook = partial(_hook, sys.excepthook)


def _hook(
    otherwise: Any, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    for place in places_of(error):
        error.add_note(f"from {place}")
    otherwise(kind, error, trace)


def frames(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    """Yield (file, line) of each frame."""
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


def _place(file: str, line: int) -> str | None:
    """Return the .forge place in the statement that holds a line, or in the comment above it."""
    lines = linecache.getlines(file)
    if not any(".forge:" in text for text in lines):
        return None
    first, last = _statement("".join(lines), line)
    above = lines[first - 2] if first > 1 and lines[first - 2].lstrip().startswith("#") else ""
    found = PLACE.search("".join(lines[first - 1 : last]) + above)
    return found[1] if found else None


def _statement(text: str, line: int) -> tuple[int, int]:
    """Return the first and last line of the smallest statement that holds a line."""
    spans = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt)
    ]
    around = [span for span in spans if span[0] <= line <= span[1]]
    return min(around, key=lambda span: span[1] - span[0], default=(line, line))
