"""Runs a command line: `forgec --help`, `forgec --version`, or a command.

The module of a command is imported when the command is called.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

from forgedsl.cli.commands import COMMANDS

OTHER_NAMES = {
    name: f"did you mean `{command}`?"
    for command, names in {
        "run": ("train", "trian", "start", "launch", "fit", "exec"),
        "run --resume RUN": ("resume", "continue"),
        "run --stub": ("rehearse", "stub"),
        "lint": ("check", "validate", "verify"),
        "fmt": ("format",),
        "sim": ("simulate", "simulation"),
        "init": ("new", "create"),
        "build": ("compile", "emit"),
        "explain": ("why", "rule"),
        "doc": ("docs", "man"),
    }.items()
    for name in names
}
"""names that other tools use for our commands, and likely typing errors"""

OPTIONS = (
    ("-h, --help", "print this text"),
    ("--version", "print the version"),
    ("--install-completion", "install <TAB> completion for this shell, or for bash, zsh or fish"),
    ("--show-completion", "print the completion script instead"),
)
EXAMPLES = """\
examples:
  forgec init sums                               a small project to begin with
  forgec lint pipelines/grpo_math.forge          check it
  forgec plan pipelines/grpo_math.forge          what a run would be
  forgec run pipelines/grpo_math.forge           train
  forgec COMMAND --help                          options and examples of a command"""


def app(arguments: Sequence[str]) -> int:
    """Run a command line; return the exit code."""
    if not arguments or arguments[0].startswith("-"):
        return _option(*arguments[:2])
    name = arguments[0]
    module = command_module(name)
    if module is None:
        from forgedsl.mistakes.suggest import did_you_mean, nearest

        hint = OTHER_NAMES.get(name) or did_you_mean(
            nearest(name, [each for each, _, _ in COMMANDS])
        )
        print(f"forgec: no command `{name}`; {hint or 'see `forgec --help`'}", file=sys.stderr)
        return 2
    return int(module.main(arguments[1:]))


def command_module(name: str) -> ModuleType | None:
    """Import the module of a command; None if there is no such command."""
    row = next((module for each, module, _ in COMMANDS if each == name), None)
    return None if row is None else importlib.import_module(row)


def _option(name: str = "", shell: str = "") -> int:
    """Handle an option of `forgec` itself; without an argument, print the help as misuse (exit
    2)."""
    if name in ("", "-h", "--help"):
        print(_help())
        return 0 if name else 2
    if name == "--version":
        from forgedsl.version import VERSION

        print(f"forgec {VERSION}")
        return 0
    if name in ("--install-completion", "--show-completion"):
        from forgedsl.cli import shells

        return shells.install(shell) if name.startswith("--install") else shells.show(shell)
    print(f"forgec: no option `{name}`; see `forgec --help`", file=sys.stderr)
    return 2


def _help() -> str:
    commands = [(name, summary) for name, _, summary in COMMANDS]
    return "\n".join([
        "usage: forgec COMMAND [OPTIONS]", "", "Compile, check and run ForgeDSL programs.", "",
        "commands:", *_rows(commands), "", "options:", *_rows(OPTIONS), "", EXAMPLES,
    ])  # fmt: skip


def _rows(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"  {name:{width}}  {text}" for name, text in rows]
