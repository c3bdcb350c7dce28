"""The argparse parser of a PLAIN command: help with examples, overrides, misuse in one line.

description, module docstring (its indented lines are the examples) -> Parser
Parser.parse(arguments) -> Namespace; `--help` exits with 0, misuse with 2
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from forgedsl.cli.overrides import Syntax, UsageError, refuse, with_sets


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """argparse makes one to look at each option, and to know the width loads what packs files."""

    def __init__(self, prog: str) -> None:
        try:
            columns = int(os.environ.get("COLUMNS") or os.get_terminal_size().columns)
        except (OSError, ValueError):
            columns = 80
        super().__init__(prog, width=max(columns, 11) - 2)


class Parser(argparse.ArgumentParser):
    """Parser of `forgec NAME`; `num_words` is how many files or names it takes, None for any."""

    def __init__(self, name: str, about: str, doc: str | None, *, num_words: int | None) -> None:
        self.command, self.num_words = name, num_words
        examples = re.findall(r"^(    .*)$", doc or "", re.M)
        super().__init__(
            prog=f"forgec {name}",
            description=about,
            epilog="\n".join(["examples:", *examples]),
            formatter_class=_Formatter,
            allow_abbrev=False,
        )

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options, with overrides in every way they are written."""
        options = {
            name: action.nargs != 0 for action in self._actions for name in action.option_strings
        }
        syntax = Syntax(command=self.command, options=options, num_words=self.num_words)
        return self.parse_args(with_sets(arguments, syntax))

    def _print_message(self, message: str, file: Any = None) -> None:
        """argparse would not tell of an output that cannot be written."""
        (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        refuse(self.command, UsageError(f"{message}; see `forgec {self.command} --help`"))


def expand(paths: Sequence[Path], command: str) -> list[Path]:
    """Folders become the .forge files in them; exits with 2 where there is none."""
    found: list[Path] = []
    for path in paths:
        files = sorted(path.rglob("*.forge")) if path.is_dir() else [path]
        if not files:
            refuse(command, UsageError(f"no .forge file in {path}"))
        found += files
    return found
