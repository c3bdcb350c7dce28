"""Reads the options of a command from its parser, for the reference and for completion."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from enum import Enum

from forgedsl.cli.commands import COMMANDS
from forgedsl.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option, or an argument (without `names`). `value` is the placeholder of its value, "" for
    a flag."""

    names: tuple[str, ...]
    value: str
    choices: tuple[str, ...]
    help: str
    default: str

    @property
    def shown(self) -> str:
        """Return the option as it is written on a command line."""
        value = " | ".join(self.choices) or self.value
        return f"{', '.join(self.names)} {value}".strip()


def options_of(command: str) -> tuple[Option, ...]:
    """Return the arguments and options of a command, in the order of its help."""
    module = importlib.import_module(next(m for name, m, _ in COMMANDS if name == command))
    return tuple(_options(module.parser()))


def _options(parser: argparse.ArgumentParser) -> Iterator[Option]:
    for action in parser._actions:
        if action.dest == "help":
            continue
        metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        default = action.default.value if isinstance(action.default, Enum) else action.default
        optional = not action.option_strings and action.nargs == "?"
        yield Option(
            names=tuple(action.option_strings),
            value="" if action.nargs == 0 else f"[{metavar}]" if optional else metavar,
            choices=getattr(action.type, "words", tuple(map(str, action.choices or ()))),
            help=action.help or "",
            default="" if default in (None, False, [], "") else str(default),
        )
