"""Rewrites a command line before it is parsed: all forms of an override become `--set=a.b=v`.

    --set a.b=v   a.b=v   --a.b v   --a.b=v   --name v        -> --set=a.b=v, in the order given
    --profil cpu, two files, --trainer.procs without a value  -> UsageError

So the parsers know only `--set`. A name without a dot that resembles an option is reported as a
misspelt option, unless the file declares it. Nothing heavy is imported: `forgec lint` runs this.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from forgedsl.records import dataclass

SET_HELP = "override a setting; also written a.b=v or --a.b v"
COMPILED = (".forge", ".json")
"""suffixes of the files that commands compile or run"""


class UsageError(Exception):
    """The command line is wrong; exit 2."""


class SideError(Exception):
    """A side of a comparison cannot be read; the message says which."""


def drop_output() -> None:
    """Discard everything that is still written to stdout."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def stopped(error: BaseException) -> int:
    """Return the exit code of a command ended by Ctrl-C, which is printed, or by a closed stdout
    pipe."""
    if isinstance(error, KeyboardInterrupt):
        line = "\n" if sys.stderr.isatty() else ""  # after the ^C that the terminal shows
        print(f"{line}forgec: interrupted", file=sys.stderr)
        return 130
    drop_output()  # nobody reads stdout any more
    return 141


@dataclass(frozen=True, slots=True, kw_only=True)
class Syntax:
    """Syntax of a command: options (True: takes a value) and number of positional words."""

    command: str
    options: Mapping[str, bool]
    num_words: int | None  # None: any number

    @property
    def sets(self) -> bool:
        """True if the command takes overrides."""
        return "--set" in self.options


def with_sets(arguments: Sequence[str], syntax: Syntax) -> list[str]:
    """Rewrite every override as `--set=a.b=v`. Misuse is printed, exit 2.

    Example:
        with_sets(["x.forge", "--trainer.procs", "2", "eps=0.1"], syntax)
        == ["x.forge", "--set=trainer.procs=2", "--set=eps=0.1"]
    """
    try:
        return _with_sets(arguments, syntax)
    except UsageError as error:
        refuse(syntax.command, error)


def refuse(command: str, error: UsageError) -> NoReturn:
    """Print what is wrong with the command line, and exit with 2."""
    print(f"forgec {command}: {error}", file=sys.stderr)
    raise SystemExit(2)


def expand(paths: Sequence[Path], command: str) -> list[Path]:
    """Replace folders by the .forge files in them; exit with 2 if a folder has none."""
    found: list[Path] = []
    for path in paths:
        files = sorted(path.rglob("*.forge")) if path.is_dir() else [path]
        if not files:
            refuse(command, UsageError(f"no .forge file in {path}"))
        found += files
    return found


def _with_sets(arguments: Sequence[str], syntax: Syntax) -> list[str]:
    found: list[str] = []
    words: list[str] = []
    rest = iter(arguments)
    for token in rest:
        if token == "--":
            return [*found, token, *rest]
        name, equals, value = token.partition("=")
        if name in syntax.options:
            found.append(token)
            if syntax.options[name] and not equals:
                found.append(_value(name, rest, syntax))
        elif token.startswith("--"):
            _check_name(name, arguments, syntax)
            given = value if equals else _value(name, rest, syntax)
            found.append(f"--set={name[2:]}={given}")
        elif token[:2] in syntax.options:
            found.append(token)  # a value joined to its option: -oFILE
        elif token.startswith("-") and len(token) > 1:
            raise UsageError(f"no option `{token}`; {_one_dash(token, rest, syntax)}")
        elif syntax.sets and _is_override(token):
            found.append(f"--set={token}")
        else:
            words.append(token)
            found.append(token)
    if syntax.num_words is not None and len(words) > syntax.num_words:
        raise UsageError(_too_many(words, syntax))
    return found


def _one_dash(token: str, rest: Iterator[str], syntax: Syntax) -> str:
    """Return the intended form of `-lr 1e-5` or `-profile cpu`."""
    name, equals, value = token.lstrip("-").partition("=")
    if f"--{name}" in syntax.options:
        return f"did you mean `--{name}`?"
    if not syntax.sets or len(name) < 2:
        return f"see `forgec {syntax.command} --help`"
    return f"did you mean `{name}={value if equals else next(rest, 'VALUE')}`?"


def _is_override(token: str) -> bool:
    """True for `a.b=v`, but not for a path that contains `=`."""
    name, equals, _ = token.partition("=")
    return bool(equals and name) and "/" not in name and not Path(token).exists()


def _value(name: str, rest: Iterator[str], syntax: Syntax) -> str:
    """Return the word after an option or an override: its value."""
    value = next(rest, None)
    if value is None and name not in syntax.options:
        raise UsageError(f"no option `{name}`; as an override, write {name}=VALUE")
    if value is None:
        raise UsageError(f"{name} needs a value")
    if value.partition("=")[0] in syntax.options:
        raise UsageError(f"{name} needs a value, but `{value}` is an option")
    if name not in syntax.options and value.endswith(".forge"):
        raise UsageError(f"{name} needs a value, but `{value}` is a file")
    return value


def _check_name(option: str, arguments: Sequence[str], syntax: Syntax) -> None:
    """Report a misspelt option such as `--profil cpu`, or one of other commands, unless the file
    declares `profil`."""
    from forgedsl.mistakes.suggest import did_you_mean, nearest

    name = option[2:].replace("-", "_")
    longer = tuple(known for known in syntax.options if known.startswith(option))
    meant = nearest(option, syntax.options) or longer
    hint = ("" if "." in name else _commands_with(option)) or did_you_mean(meant)
    if not syntax.sets:
        raise UsageError(f"no option `{option}`; {hint or f'see `forgec {syntax.command} --help`'}")
    if "." in name or not hint:
        return
    files = [word for word in arguments if word.endswith(".forge")]
    if not any(name in _declared(file) for file in files):
        neither = f" ({files[0]} declares no `{name}` either)" if files and meant else ""
        raise UsageError(f"no option `{option}`; {hint}{neither}")


def _commands_with(option: str) -> str:
    """Return which commands have an option, as a hint; "" if none has it, or if a setting has its
    name."""
    from forgedsl.cli.commands import COMMANDS
    from forgedsl.cli.options import options_of
    from forgedsl.schema.kinds import KINDS, SERVICES

    kinds = (*KINDS.values(), *SERVICES.values())
    ends = {setting.name.rpartition(".")[2] for kind in kinds for setting in kind.settings}
    if option[2:].replace("-", "_") in ends:
        return ""
    having = [name for name, *_ in COMMANDS
              if any(option in each.names for each in options_of(name))]  # fmt: skip
    return f"it is an option of `forgec {'`, `forgec '.join(having)}`" if having else ""


def _declared(file: str) -> set[str]:
    """Return the names that a file declares."""
    from forgedsl.diagnostics import Reporter
    from forgedsl.syntax import parse, read_source

    source = read_source(Path(file), file, Reporter())
    decls = () if source is None else parse(source, Reporter()).decls
    return {name for decl in decls if (name := getattr(decl, "name", None))}


def _too_many(words: Sequence[str], syntax: Syntax) -> str:
    """Return the message for the first word beyond those that the command takes."""
    assert syntax.num_words is not None
    extra = words[syntax.num_words]
    if extra.endswith(COMPILED) and syntax.num_words == 1:
        return f"only one file can be given, got {words[0]} and {extra}"
    if not syntax.sets:
        return f"unexpected argument `{extra}`; see `forgec {syntax.command} --help`"
    if "=" in words or extra.startswith("="):
        return f"unexpected argument `{extra}`; an override is written a.b=v, without spaces"
    profile = f", a profile --profile {extra}" if "--profile" in syntax.options else ""
    return f"unexpected argument `{extra}`; an override is written a.b=v{profile}"
