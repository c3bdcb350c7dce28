"""`forgec explain`: what a code means, where a value comes from, what a loss computes.

    forgec explain L405                          the page of a code
    forgec explain trainer.procs FILE            layers of one value; `trainer` for all its settings
    forgec explain trainer.procs FILE --profile cpu trainer.procs=2
    forgec explain grpo [FILE]                   a loss: formula, intervals, gradient
    forgec explain titan                         a word of the language, a kind, a setting

Exit 0; 1 if the file has errors; 2 if a word has no meaning.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from forgedsl.cli.overrides import SET_HELP, UsageError, refuse
from forgedsl.cli.parser import Parser, with_examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forgedsl.api import Loaded


ALL_CODES = "a code is a letter and three digits, such as L405; docs/reference/rules.md lists them"
VALUES = "name the file for its values and losses: `forgec explain PATH FILE`"


def parser() -> Parser:
    about = "Explain a code (L405), a value (trainer.procs FILE), or a loss (grpo)."
    parser = Parser("explain", with_examples(about, __doc__), "CODE|PATH|LOSS [FILE]", num_words=2)
    add = parser.add_argument
    add("what", metavar="CODE|PATH|LOSS", help="what to explain")
    add("file", nargs="?", type=Path, metavar="FILE", help="a .forge file, for its values")
    add("--profile", default="none", help="profile of the file")
    add("--set", action="append", default=[], metavar="a.b=v", help=SET_HELP)
    add("--set-file", action="append", default=[], type=Path, metavar="FILE",
        help="overrides from TOML, YAML or JSON")  # fmt: skip
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    options = parser().parse(arguments)
    what = options.what
    is_code = re.fullmatch(r"[A-Za-z]\d{2,5}", what) is not None
    try:
        _check(options, is_code)
    except UsageError as error:
        refuse("explain", error)
    if is_code:
        return _code(what.upper())
    if options.file is not None:
        found = _value(options)
        if found is not None:
            return found
    return _loss(options)


def _check(options: argparse.Namespace, is_code: bool) -> None:
    """Check the command line: a code takes no file, overrides and profiles need one."""
    what, file = options.what, options.file
    if what.endswith(".forge"):
        name = "NAME" if file is None else file
        raise UsageError(f"the file comes second: `forgec explain {name} {what}`")
    given = [f"--set {text}" for text in options.set]
    given += [f"--set-file {path}" for path in options.set_file]
    given += [f"--profile {options.profile}"] * (options.profile != "none")
    if is_code and (file is not None or given):
        raise UsageError(
            f"`{what}` is a code, which does not depend on a file; leave out {file or given[0]}"
        )
    if file is None and given:
        raise UsageError(f"{given[0]} applies to a file, but no file is given")


def _code(code: str) -> int:
    from forgedsl.explain.codes import pages, text_page
    from forgedsl.mistakes.suggest import did_you_mean, nearest

    page = pages().get(code)
    if page is None:
        hint = did_you_mean(nearest(code, pages()))
        print(f"forgec: there is no code {code}" + (f"; {hint}" if hint else ""), file=sys.stderr)
        return 2
    print(text_page(page), end="")
    return 0


def _value(options: argparse.Namespace) -> int | None:
    """Explain a value of the file; return the exit code, or None if there is no value of this
    name."""
    from forgedsl.explain import provenance

    states = provenance.layers(options.file, options.profile, options.set, options.set_file)
    if not isinstance(states, list):
        return _failed(states)
    text = provenance.explain(options.what, states)
    if text is None:
        return None
    print(text, end="")
    return 0


def _failed(loaded: Loaded) -> int:
    from forgedsl.cli.compiling import UNREADABLE, print_diagnostics

    print_diagnostics(loaded)
    return 2 if any(d.code == UNREADABLE for d in loaded.reporter) else 1


def _loss(options: argparse.Namespace) -> int:
    from forgedsl.explain import losses

    function = losses.find(
        options.what, options.file, options.profile, options.set, options.set_file
    )
    if function is None:
        return _word(options)
    print(losses.page(function), end="")
    return 0


def _word(options: argparse.Namespace) -> int:
    """Explain a word that means the same in every file."""
    from forgedsl.reference.glossary import word

    hint = _hint(options) if options.file is not None else ""
    page = None if hint else word(options.what) or word(options.what.partition(".")[2])
    if page is None:
        return _nothing(options, hint)
    print(page, end="")
    if options.file is None and "| setting |" in page:
        print(f"\n{VALUES}", file=sys.stderr)
    return 0


def _hint(options: argparse.Namespace) -> str:
    """Return names of the file that are similar."""
    from forgedsl import api
    from forgedsl.explain import provenance

    program = api.load(
        options.file, profile=options.profile, overrides=options.set, set_files=options.set_file
    ).program
    return "" if program is None else provenance.suggestions(options.what, program)


def _nothing(options: argparse.Namespace, hint: str) -> int:
    """Report a word without meaning, and exit with 2."""
    if re.fullmatch(r"[A-Z]{1,2}\d+", options.what):
        print(f"forgec: there is no code {options.what}; {ALL_CODES}", file=sys.stderr)
        return 2
    where = "there is nothing in the standard library"
    if options.file is not None:
        where = f"there is nothing in {options.file} or the standard library"
    else:
        from forgedsl.mistakes.suggest import did_you_mean, nearest
        from forgedsl.reference import glossary, library

        known = (*glossary.names(), *library.module_page("std/rl").functions)
        last = options.what.rpartition(".")[2]
        begun = tuple(name for name in known if name.startswith(last))[:4]
        close = nearest(options.what, known) or begun or nearest(last, known)
        hint = did_you_mean(close) or VALUES
    print(f"forgec: {where} called `{options.what}`", file=sys.stderr)
    if hint:
        print(f"  {hint}", file=sys.stderr)
    return 2
