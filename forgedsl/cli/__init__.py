"""Command line interface."""

from __future__ import annotations

import os
import sys


def start() -> None:
    """Entry point of `forgec`; Ctrl-C is one line also where modules are still being imported."""
    try:
        from forgedsl.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.stderr.write("forgec: interrupted\n")
        os._exit(130)  # another one would be the traceback of what Python does at its exit
