"""Argument parser of commands: help with examples, overrides, one-line messages for misuse.

docstring of the command -> Parser      text, then lines under `Examples:`
Parser.parse(arguments) -> Namespace    `--help` exits with 0, misuse with 2
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from forgedsl.cli.overrides import SET_HELP, Syntax, UsageError, refuse, with_sets

argparse._ = str  # type: ignore[attr-defined]  # no translations: to look for them takes 2 ms


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help formatter that finds its width without `shutil`, whose import loads compression modules.
    argparse makes a formatter for each option."""

    def __init__(self, prog: str) -> None:
        try:
            columns = int(os.environ.get("COLUMNS") or os.get_terminal_size().columns)
        except (OSError, ValueError):
            columns = 80
        super().__init__(prog, width=max(columns, 11) - 2, max_help_position=32)

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Break lines between words only: `nemo-gym` is one."""
        import textwrap

        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        """Add the default to the help of an option that has one."""
        silent = action.default in (None, False, "", argparse.SUPPRESS) or not action.help
        return action.help if silent else f"{action.help} [default: %(default)s]"


class Parser(argparse.ArgumentParser):
    """Parser of `forgec NAME`. `words` is the usage text of its positional words, `num_words` their
    number (None: any)."""

    def __init__(
        self, name: str, doc: str | None, words: str = "FILE", *, num_words: int | None = 1
    ) -> None:
        self.command, self.num_words = name, num_words
        about, _, examples = _cleaned(doc or "").partition("\nExamples:\n")
        super().__init__(
            prog=f"forgec {name}",
            usage=f"forgec {name} [OPTIONS] {words}".rstrip(),
            description=about.strip(),
            epilog=f"examples:\n{examples}",
            formatter_class=_Formatter,
            allow_abbrev=False,
            add_help=False,
        )
        self._positionals.title = "arguments"
        self.add_argument("-h", "--help", action="help", help="print this text")

    def add_overrides(self) -> None:
        """`--set` and `--set-file`."""
        self.add_argument("--set", dest="set_", action="append", metavar="a.b=v", help=SET_HELP)
        self.add_argument(
            "--set-file", action="append", type=Path, metavar="FILE",
            help="overrides from TOML, YAML or JSON, before --set",
        )  # fmt: skip

    def add_choice(self, name: str, kind: type[Any], default: Any, *, help: str) -> None:
        """Add an option whose values are those of an enumeration."""
        dest = f"{name}_" if name == "format" else name.replace("-", "_")
        self._add_words(name, [word.value for word in kind], kind, dest, default, help)

    def add_words(
        self, name: str, words: Sequence[str], default: str, *, help: str, dest: str = ""
    ) -> None:
        """Add an option whose value is one of some words."""
        self._add_words(name, words, str, dest or name, default, help)

    def _add_words(
        self, name: str, words: Sequence[str], kind: Callable[[str], Any], dest: str, default: Any,
        help: str,
    ) -> None:  # fmt: skip
        def chosen(text: str) -> Any:
            if text not in words:
                raise argparse.ArgumentTypeError(f"must be one of {', '.join(words)}, not `{text}`")
            return kind(text)

        chosen.words = tuple(words)  # type: ignore[attr-defined]  # for options.py
        self.add_argument(
            f"--{name}", dest=dest, type=chosen, default=default, metavar=" | ".join(words),
            help=help,
        )  # fmt: skip

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments, with overrides in any of their forms."""
        options = {
            name: action.nargs != 0 for action in self._actions for name in action.option_strings
        }
        syntax = Syntax(command=self.command, options=options, num_words=self.num_words)
        return self.parse_args(with_sets(arguments, syntax))

    def run(self, command: Callable[..., int | None], arguments: Sequence[str]) -> int:
        """Call the function of a command with its options; the result is its exit code."""
        return command(**vars(self.parse(arguments))) or 0

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a message; unlike argparse, report a stream that cannot be written."""
        (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        said = re.sub(r"^argument (?:-\w/)?(\S+): ", r"\1 ", message)
        said = re.sub(r"^the following arguments are required: (.*)", r"\1 is missing", said)
        refuse(self.command, UsageError(f"{said}; see `forgec {self.command} --help`"))


def with_examples(about: str, doc: str | None) -> str:
    """Return help text with examples. They are the indented lines of a docstring."""
    lines = re.findall(r"^    (.*)$", _cleaned(doc or ""), re.M)
    return "\n".join([about, "", "Examples:", *(f"  {line}" for line in lines)])


def _cleaned(doc: str) -> str:
    """Return a docstring without the indentation that its lines share."""
    if any(line[:1].strip() for line in doc.splitlines()[1:]):  # they share none
        return doc.strip()
    import inspect  # slow to import; modules' docstrings do without

    return inspect.cleandoc(doc)


def whole(text: str) -> int:
    """Parse an integer, for `type` of an option."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not `{text}`") from None


def at_least(least: int) -> Callable[[str], int]:
    """Return a parser of integers >= `least`, for `type` of an option."""

    def number(text: str) -> int:
        if (found := whole(text)) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not `{text}`")
        return found

    return number
