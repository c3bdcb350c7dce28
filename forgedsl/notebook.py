"""Notebooks: small pages of HTML that objects show there, and what a notebook cannot show.

page("loss dapo", rows={"backend": "torch"}, text="...")    heading, table, text in columns
can_redraw(sys.stderr)    True on a terminal, where a line can be written over
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO

PRE = "line-height:1.35;overflow-x:auto;white-space:pre"
CELL = "text-align:left;vertical-align:top"


def preformatted(text: str) -> str:
    """HTML of a text whose columns stay in line."""
    from html import escape

    return f'<pre style="{PRE}">{escape(text)}</pre>'


def page(
    title: str, about: str = "", *, rows: Mapping[str, str] | None = None, text: str = ""
) -> str:
    """HTML of a heading, what it is, a table of two columns without the rows that are empty, and a
    text whose columns stay in line."""
    from html import escape

    cells = [
        f'<tr><td style="{CELL}">{escape(name)}</td><td style="{CELL}">{escape(value)}</td></tr>'
        for name, value in (rows or {}).items()
        if value
    ]
    table = f"<table>{''.join(cells)}</table>" if cells else ""
    said = f"<div>{escape(about)}</div>" if about else ""
    return f"<b>{escape(title)}</b>{said}{table}{preformatted(text) if text else ''}"


def quiet_widgets() -> None:
    """Silence what tqdm says in a kernel without ipywidgets: no bar of tqdm is shown there."""
    import warnings

    warnings.filterwarnings("ignore", message="IProgress not found")


def in_kernel() -> bool:
    """True in a kernel of Jupyter and in the processes that it starts, such as `!forgec run`. Such
    a process may see a terminal, but a notebook shows all that is written to it, line by line."""
    return "JPY_PARENT_PID" in os.environ


def can_redraw(stream: IO[str]) -> bool:
    """True if what is written to a stream can be written over: a terminal that is no notebook."""
    return stream.isatty() and os.environ.get("TERM") != "dumb" and not in_kernel()
