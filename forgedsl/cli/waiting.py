"""Says what takes longer than a second, while it takes: a line of stderr that is then removed.

    with waiting("exporting step 3") as say:      exporting step 3 (4 s)
        say("writing the tokenizer")              another text on the same line

A notebook gets plain lines. Where stderr is neither, in logs and pipes, nothing is shown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forgedsl.notebook import can_redraw, in_kernel

SECONDS = 1.0
"""what ends sooner shows nothing"""
CLEAR = "\r\x1b[K"
_open: list[Line] = []
"""the line that is shown; a wait inside of another one uses its line"""


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Show a text and the seconds so far, if the body takes longer than a second. The function that
    it gives changes the text."""
    if _open:
        line, before = _open[-1], _open[-1].text
        line.text = text
        try:
            yield line.say
        finally:
            line.text = before
        return
    if not (_is_terminal() or _is_notebook()):
        yield lambda text: None
        return
    line = Line(text, os.dup(sys.stderr.fileno()) if _is_terminal() else None)
    try:
        _open.append(line)
        yield line.say
    finally:
        _open.clear()
        line.close()


def _is_terminal() -> bool:
    return can_redraw(sys.stderr)


def _is_notebook() -> bool:
    """True in a kernel, and in a command of a cell, whose stderr looks like a terminal."""
    kernel = type(sys.stderr).__module__.startswith("ipykernel")
    return kernel or (in_kernel() and sys.stderr.isatty())


class Line:
    """The line, written by a thread of its own: to a copy of the terminal's descriptor, since fd 2
    and `sys.stderr` are redirected while services start; or to the output of a notebook."""

    def __init__(self, text: str, terminal: int | None) -> None:
        import threading
        import time

        self.text = text
        self._terminal, self._notebook = terminal, sys.stderr
        self._now = time.monotonic
        self._began = self._now()
        self._shown = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="waiting", daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        """Show another text from now on."""
        self.text = text

    def close(self) -> None:
        """Remove the line."""
        self._ended.set()
        self._thread.join()
        if self._terminal is not None:
            if self._shown:
                self._write(CLEAR)
            os.close(self._terminal)

    def _show(self) -> None:
        while not self._ended.wait(SECONDS):
            seconds = round(self._now() - self._began)
            if self._terminal is not None:
                end = f" ({seconds} s)"
                self._write(f"{CLEAR}{self.text[: max(self._width() - len(end) - 1, 10)]}{end}")
            elif self._shown != self.text:
                self._notebook.write(f"{self.text} ...\n")
                self._notebook.flush()
            self._shown = self.text

    def _width(self) -> int:
        """Columns of the terminal; 80 if it does not say, or was closed."""
        assert self._terminal is not None
        try:
            return os.get_terminal_size(self._terminal).columns or 80
        except OSError:
            return 80

    def _write(self, text: str) -> None:
        assert self._terminal is not None
        try:
            os.write(self._terminal, text.encode("utf-8", "replace"))
        except OSError:
            self._ended.set()  # the terminal was closed: there is nobody to tell
