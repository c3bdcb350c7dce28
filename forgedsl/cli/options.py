"""What every command accepts, read off the commands: for the reference and for completion.

argparse parser of a PLAIN command  --.
signature of a Typer command        --+--> Option per argument and option
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any

import typer
from typer.models import ArgumentInfo, OptionInfo

from forgedsl.cli.commands import COMMANDS, PLAIN
from forgedsl.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An argument (no `names`) or an option; `value` is how its value is called, "" for a flag."""

    names: tuple[str, ...]
    value: str
    choices: tuple[str, ...]
    help: str
    default: str

    @property
    def shown(self) -> str:
        """As it is written on a command line."""
        value = " | ".join(self.choices) or self.value
        return f"{', '.join(self.names)} {value}".strip()


def options_of(command: str) -> tuple[Option, ...]:
    """The arguments and options of a command, in the order of its help."""
    module = importlib.import_module(next(m for name, m, _ in COMMANDS if name == command))
    found = _of_argparse(module._parser()) if command in PLAIN else _of_signature(module)
    return tuple(found)


def _of_argparse(parser: argparse.ArgumentParser) -> Iterator[Option]:
    for action in parser._actions:
        if action.dest == "help":
            continue
        metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        yield Option(
            names=tuple(action.option_strings),
            value="" if action.nargs == 0 else metavar,
            choices=tuple(map(str, action.choices or ())),
            help=action.help or "",
            default="" if action.default in (None, False, []) else str(action.default),
        )


def _of_signature(module: ModuleType) -> Iterator[Option]:
    command = module.command
    hints = typing.get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        annotation = hints[name]
        if annotation is typer.Context:
            continue
        type_, info = typing.get_args(annotation)
        default = parameter.default
        if isinstance(default, Enum):
            default = default.value
        is_silent = default in (None, False, "") or default is inspect.Parameter.empty
        yield Option(
            names=_names(name, info),
            value=_value(name, _plain_type(type_), info, default),
            choices=_choices(_plain_type(type_)),
            help=info.help or "",
            default="" if is_silent else str(default),
        )


def _names(name: str, info: OptionInfo | ArgumentInfo) -> tuple[str, ...]:
    if isinstance(info, ArgumentInfo):
        return ()
    # in Annotated[...] the first name lands where a default would stand
    first = (info.default,) if isinstance(info.default, str) else ()
    given = tuple(str(decl) for decl in (*first, *(info.param_decls or ())))
    return tuple(sorted(given, key=len)) or (f"--{name.rstrip('_').replace('_', '-')}",)


def _plain_type(type_: Any) -> Any:
    """`X` of `X | None` and `list[X]`."""
    if isinstance(type_, UnionType):
        return _plain_type(next(t for t in typing.get_args(type_) if t is not type(None)))
    return _plain_type(typing.get_args(type_)[0]) if typing.get_origin(type_) is list else type_


def _choices(type_: Any) -> tuple[str, ...]:
    return tuple(str(m.value) for m in type_) if issubclass(type_, Enum) else ()


def _value(name: str, type_: Any, info: OptionInfo | ArgumentInfo, default: Any) -> str:
    if isinstance(info, ArgumentInfo) and default is not inspect.Parameter.empty:
        return f"[{info.metavar}]"
    if info.metavar:
        return info.metavar
    if type_ is bool:
        return ""
    words = {int: "N", float: "X", Path: "PATH"}
    return words.get(type_, name.rstrip("_").upper())
