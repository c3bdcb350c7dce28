"""Decides on colours of terminal output: by NO_COLOR and FORCE_COLOR, else if it is a terminal."""

from __future__ import annotations

import os
from typing import TextIO

from forgedsl.records import dataclass


@dataclass(frozen=True, slots=True)
class Style:
    """Wraps text in ANSI escapes, or leaves it as it is."""

    enabled: bool = False

    def _wrap(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.enabled and text else text

    def bold(self, text: str) -> str:
        return self._wrap(text, "1")

    def frame(self, text: str) -> str:
        return self._wrap(text, "1;34")

    def severity(self, text: str, severity: str) -> str:
        codes = {"error": "1;31", "warning": "1;33", "info": "1;36"}
        return self._wrap(text, codes[severity])

    def help(self, text: str) -> str:
        return self._wrap(text, "1;36")


PLAIN = Style()


def style_for(stream: TextIO) -> Style:
    """Return the style for `stream`."""
    if os.environ.get("NO_COLOR"):
        return PLAIN
    if os.environ.get("FORCE_COLOR"):
        return Style(enabled=True)
    return Style(enabled=stream.isatty() and os.environ.get("TERM") != "dumb")
