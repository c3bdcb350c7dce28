"""From a Python error to the .forge line it comes from.

    exception --places_of--> "pipeline.forge:63:3" of each frame of generated code

Generated code carries the place of every statement, behind it or above it, and every declaration
and node of a generated program its `at="file.forge:line:column"`. An error that passes through such
a frame gets a note that names the place, here and in the processes of a run.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import Any

PLACE = re.compile(r"""(?:#\s|at=")([\w.+-]+\.forge:\d+:\d+)""")


def places_of(error: BaseException) -> tuple[str, ...]:
    """The .forge places of the frames that an error passed, the innermost first."""
    found = (_place(file, line) for file, line in frames(error.__traceback__))
    return tuple(dict.fromkeys(place for place in found if place))[::-1]


def described(error: BaseException) -> str:
    """The error in one line, with the place it comes from if that is in generated code."""
    return f"{type(error).__name__}: {placed(error)}"


def placed(error: BaseException) -> str:
    """What the error says, with its place."""
    places = places_of(error)
    return f"{error} (at {places[0]})" if places else str(error)


def install_places() -> None:
    """Uncaught errors of this process end with the .forge lines they come from."""
    if not isinstance(sys.excepthook, partial):
        sys.excepthook = partial(_hook, sys.excepthook)


def _hook(
    otherwise: Any, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    for place in places_of(error):
        error.add_note(f"from {place}")
    otherwise(kind, error, trace)


def frames(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    """(file, line) of each frame."""
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


def _place(file: str, line: int) -> str | None:
    """The place in the statement that holds a line, or in the comment above it."""
    lines = linecache.getlines(file)
    if not any(".forge:" in text for text in lines):
        return None
    first, last = _statement("".join(lines), line)
    above = lines[first - 2] if first > 1 and lines[first - 2].lstrip().startswith("#") else ""
    found = PLACE.search("".join(lines[first - 1 : last]) + above)
    return found[1] if found else None


def _statement(text: str, line: int) -> tuple[int, int]:
    """First and last line of the smallest statement that holds a line."""
    spans = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt)
    ]
    around = [span for span in spans if span[0] <= line <= span[1]]
    return min(around, key=lambda span: span[1] - span[0], default=(line, line))
