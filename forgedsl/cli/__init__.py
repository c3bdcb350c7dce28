"""Command line interface."""

from __future__ import annotations

import os
import sys


def start() -> None:
    """Entry point of `forgec`. Ctrl-C prints one line, even while modules are being imported."""
    try:
        from forgedsl.cli.main import main

        main(whole=True)
    except KeyboardInterrupt:
        sys.stderr.write("forgec: interrupted\n")
        os._exit(130)  # a second Ctrl-C would print a traceback of Python's exit
