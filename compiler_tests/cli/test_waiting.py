"""A line of stderr about what takes longer than a second: on a terminal, and nowhere else."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import time
from collections.abc import Callable

import pytest

from forgedsl.cli import waiting as module
from forgedsl.cli.waiting import waiting


def on_terminal(patch: pytest.MonkeyPatch, body: Callable[[], None], seconds: float = 0.05) -> str:
    """What is written to a terminal while `body` runs."""
    ours, its = pty.openpty()
    with os.fdopen(its, "w") as stream, patch.context() as inner:
        inner.setattr(sys, "stderr", stream)
        inner.setattr(module, "SECONDS", seconds)
        inner.setenv("TERM", "xterm")
        body()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        return b"".join(iter(lambda: _next(terminal), b"")).decode()


def _next(terminal: io.FileIO) -> bytes:
    """What the terminal has next; nothing after its other side was closed and all was read."""
    try:
        return terminal.read(1 << 16)
    except OSError:  # EIO: how Linux ends a terminal
        return b""


def until_shown(text: str) -> None:
    """Wait until the line shows `text`, if there is a line."""
    end = time.monotonic() + 60
    while module._open and module._open[-1]._shown != text:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_takes_long_is_shown_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        with waiting("reading") as say:
            until_shown("reading")
            say("writing")
            until_shown("writing")

    text = on_terminal(monkeypatch, work)
    assert re.search(r"reading \(\d+ s\).*writing \(\d+ s\)", text)
    assert text.endswith("\r\x1b[K")


def test_what_is_quick_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        with waiting("reading"):
            pass

    assert on_terminal(monkeypatch, work, 5.0) == ""


def test_a_wait_in_a_wait_uses_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        with waiting("outer"):
            with waiting("inner"):
                until_shown("inner")
            until_shown("outer")

    text = on_terminal(monkeypatch, work)
    assert 0 < text.index("inner") < text.index("outer")


def test_an_error_removes_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        with waiting("reading"):
            until_shown("reading")
            raise KeyboardInterrupt

    def caught() -> None:
        with pytest.raises(KeyboardInterrupt):
            work()

    assert on_terminal(monkeypatch, caught).endswith("\r\x1b[K")


def test_a_log_gets_nothing_and_a_notebook_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.05)

    class Output(io.StringIO):
        """The standard error of a notebook's kernel."""

    for home, told in (("io", ""), ("ipykernel.iostream", "starting trainer ...\n")):
        Output.__module__ = home
        output = Output()
        monkeypatch.setattr(sys, "stderr", output)
        with waiting("starting trainer"):
            until_shown("starting trainer")
        assert output.getvalue() == told
