"""The commands as a Typer group: `forgec --help`, and the commands whose options Typer parses.

A command is imported when it is invoked.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from forgedsl.cli.commands import COMMANDS, PLAIN
from forgedsl.cli.overrides import Syntax, UsageError, refuse, stopped, with_sets

HABITS = {
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
"""what other tools call a command, and its likely slips"""


@contextmanager
def _stopped() -> Iterator[None]:
    """Where click would exit with 1, as if the file had errors, or say nothing."""
    try:
        yield
    except (KeyboardInterrupt, BrokenPipeError) as error:
        raise typer.Exit(stopped(error)) from error


class _LazyGroup(TyperGroup):
    """Knows the commands by name; imports one when it is invoked."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, _, _ in COMMANDS]

    def make_context(self, *args: Any, **given: Any) -> Any:  # prints --help and --version
        with _stopped():
            return super().make_context(*args, **given)

    def invoke(self, ctx: Any) -> Any:
        with _stopped():
            return super().invoke(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for name, module, summary in COMMANDS:
            if name == cmd_name:
                return _load(name, module, summary)
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.list_commands(ctx):
            from forgedsl.mistakes.suggest import did_you_mean, nearest

            hint = HABITS.get(args[0]) or did_you_mean(nearest(args[0], self.list_commands(ctx)))
            hint = hint or "see `forgec --help`"
            print(f"forgec: no command `{args[0]}`; {hint}", file=sys.stderr)
            raise SystemExit(2)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, _, summary in COMMANDS])


class _Command(TyperCommand):
    """A command whose words `forgedsl.cli.overrides` reads first, for overrides and slips."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = with_sets(args, self._syntax(ctx))
        try:
            return super().parse_args(ctx, [*words])  # which it uses up
        except typer.BadParameter as error:
            said = f"{_plainly(error, words)}; see `forgec {self.name} --help`"
            refuse(self.name or "", UsageError(said))

    def _syntax(self, ctx: Any) -> Syntax:
        words = [param.nargs for param in self.params if isinstance(param, TyperArgument)]
        return Syntax(
            command=self.name or "",
            options={
                name: not getattr(param, "is_flag", False)
                for param in self.get_params(ctx)
                for name in (*param.opts, *param.secondary_opts)
                if name.startswith("-")
            },
            num_words=None if -1 in words else sum(words),
        )


WANTED = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "more than",
}
"""what the option library says a value should be -> in our words"""


def _plainly(error: typer.BadParameter, words: list[str]) -> str:
    """What is wrong with the value of an option: `--seed is a whole number, not `abc``."""
    text = error.format_message().rstrip(".").replace("Value error, ", "")
    found = re.search(r"'(--?[\w-]+)'.*: Input should be ([^,]*)", text)
    if found is None:
        return f"{text[:1].lower()}{text[1:]}"
    option, wanted = found.groups()
    for theirs, ours in WANTED.items():
        wanted = wanted.replace(theirs, ours)
    given = next((v for w, v in pairwise(words) if w == option), "")
    given = given or next((w.partition("=")[2] for w in words if w.startswith(f"{option}=")), "")
    return f"{option} is {wanted}, not `{given}`"


def _load(name: str, module: str, summary: str) -> Any:
    """The click command of one subcommand."""
    loaded = importlib.import_module(module)
    command = _plain(loaded.main) if name in PLAIN else loaded.command
    settings = PASSED_ON if name in PLAIN else {"help_option_names": ["--help", "-h"]}
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    cls = TyperCommand if name in PLAIN else _Command
    app.command(name=name, cls=cls, short_help=summary, context_settings=settings)(command)
    return typer.main.get_command(app)


PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _plain(run: Any) -> Any:
    """A command that parses its options itself."""

    def command(ctx: typer.Context) -> None:
        raise typer.Exit(run(ctx.args))

    return command


app = typer.Typer(
    name="forgec",
    cls=_LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_help_option=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from forgedsl.version import VERSION

        print(f"forgec {VERSION}")
        raise typer.Exit


def _print_help(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        print(ctx.get_help())
        raise typer.Exit


# `--help` is declared as a flag, because Typer converts its own one by loading pydantic.
@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="print the version"
    ),
    help_: bool = typer.Option(
        False, "--help", "-h", callback=_print_help, is_eager=True, help="print this text"
    ),
) -> None:
    """Compile, check and run ForgeDSL programs."""
