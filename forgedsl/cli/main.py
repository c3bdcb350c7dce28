"""`forgec`: the command line. Commands are listed here and imported when they are called, so that
`forgec --help` and `forgec lint` load neither torch nor networkx, pydantic or rich.

Exit codes: 0 ok; 1 diagnostics at error level; 2 bad usage or I/O; 3 plan differs; 4 the
environment cannot satisfy the plan; 5 run failed; 6 stopped by a guard; 70 internal error;
130 interrupted.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer
from typer.core import TyperGroup

# name, module with a function `command`, one line of help
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("lint", "forgedsl.cli.lint", "check .forge files"),
    ("plan", "forgedsl.cli.plan", "show what a run would be, and run nothing"),
    ("diff", "forgedsl.cli.diff", "say what differs between two files, runs or revisions"),
    ("fmt", "forgedsl.cli.fmt", "write .forge files in their canonical form"),
    ("lock", "forgedsl.cli.lock", "write down what a run depends on, for run --locked"),
    ("explain", "forgedsl.cli.explain", "explain a code, a value of a file, or a loss"),
    ("graph", "forgedsl.cli.graph", "print the dataflow graph of a .forge file"),
    ("run", "forgedsl.cli.run", "train"),
    ("replay", "forgedsl.cli.replay", "repeat a recorded optimizer step"),
    ("report", "forgedsl.cli.report", "write the report of a run again"),
)


class _LazyGroup(TyperGroup):
    """Knows the commands by name; imports one when it is invoked."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name, _, _ in COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for name, module, summary in COMMANDS:
            if name == cmd_name:
                return _load(name, module, summary)
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in self.list_commands(ctx):
            from forgedsl.hir.suggest import did_you_mean, nearest

            hint = did_you_mean(nearest(name, self.list_commands(ctx)))
            ctx.fail(f"no command `{name}`" + (f"; {hint}" if hint else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, _, summary in COMMANDS])


def _load(name: str, module: str, summary: str) -> Any:
    """The click command of one subcommand."""
    loaded = importlib.import_module(module)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    settings = getattr(loaded, "CONTEXT", {})
    app.command(name=name, short_help=summary, context_settings=settings)(loaded.command)
    return typer.main.get_command(app)


app = typer.Typer(
    name="forgec",
    cls=_LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_help_option=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from forgedsl import __version__

        print(f"forgec {__version__}")
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


def main() -> None:
    """Entry point of `forgec`: run a command and map exceptions to exit codes."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; nothing is left to say to it
        sys.exit(141)
    except Exception as error:
        sys.exit(_exit_code(error))


def _exit_code(error: Exception) -> int:
    """Print what an exception means and return its exit code."""
    from forgedsl.errors import GuardError, LaunchError, RunError, SourceError

    if isinstance(error, SourceError):
        for diagnostic in error.diagnostics:
            print(f"error[{diagnostic.code}]: {diagnostic.message}", file=sys.stderr)
        return 1
    if isinstance(error, LaunchError | RunError):
        print(f"forgec: {error}", file=sys.stderr)
        if isinstance(error, LaunchError):
            return 4
        return 6 if isinstance(error, GuardError) else 5
    return _crash(error)


def _crash(error: Exception) -> int:
    """An internal error: say so, keep the traceback in a file, ask for a report."""
    import tempfile
    import traceback

    from forgedsl import __version__

    with tempfile.NamedTemporaryFile(
        "w", prefix="forgec-crash-", suffix=".txt", delete=False, encoding="utf-8"
    ) as file:
        file.write(f"forgec {__version__}, Python {sys.version}\n{' '.join(sys.argv)}\n\n")
        file.write("".join(traceback.format_exception(error)))
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{last.filename.rpartition('forgedsl/')[2]}:{last.lineno}"
    print(
        f"forgec: internal error in {place}: {type(error).__name__}: {error}\n"
        f"  this is a bug in forgec, not in your file; the details are in {file.name}",
        file=sys.stderr,
    )
    return 70


if __name__ == "__main__":
    main()
