"""Pages of docs/reference. docs/reference/cli.md has every command with its arguments and options,
read from the parsers.
"""

import importlib
import inspect
from typing import Any

from forgedsl import reference as pages
from forgedsl.cli.commands import COMMANDS
from forgedsl.cli.options import options_of
from forgedsl.reference.markdown import GENERATED, block, code, join, table

INTRODUCTION = """\
`forgec COMMAND --help` prints the same. Results go to stdout, diagnostics and progress to stderr;
`NO_COLOR` and `FORCE_COLOR` are honoured. `forgec --install-completion` sets up completion for
bash, zsh and fish. It completes commands and options, templates and codes, and the profiles and
settings of the file on the command line."""
EXIT_CODES = {
    "0": "done; warnings are allowed",
    "1": "errors in the file, or `--check` or `--diff` found a difference",
    "2": "bad usage, or a file that cannot be read or written",
    "3": "`plan --detailed-exitcode`: valid, but differs from `--against`",
    "4": "this machine cannot satisfy the plan",
    "5": "the run failed",
    "6": "a guard stopped the run, such as for NaN or starvation",
    "70": "a bug in ForgeDSL; the output names a file with the details",
    "75": "preempted (SIGTERM, a scheduler's time limit); a checkpoint was written: --resume",
    "130": "interrupted; a checkpoint was written",
}


REFERENCES = (*pages.REFERENCES, "cli")
"""names of the pages"""


def reference(name: str) -> str:
    """Return one page of docs/reference, as Markdown."""
    return page() if name == "cli" else pages.reference(name)


def page() -> str:
    """Return the page of the commands, as Markdown."""
    parts = ["# Commands", GENERATED, INTRODUCTION]
    overview = [(f"[forgec {n}](#forgec-{n})", summary) for n, _, summary in COMMANDS]
    parts.append(table(("command", "does"), overview))
    for name, module, _ in COMMANDS:
        parts.append(_command(name, importlib.import_module(module)))
    parts += ["## Exit codes", table(("code", "means"), EXIT_CODES.items())]
    return join(parts)


def _command(name: str, module: Any) -> str:
    options = options_of(name)
    text, examples = _help(module)
    usage = " ".join([f"forgec {name}", "[OPTIONS]", *(o.shown for o in options if not o.names)])
    rows = [(code(o.shown), code(o.default), o.help) for o in options]
    return join([
        f"## forgec {name}", text, block(usage),
        table(("argument or option", "default", "meaning"), rows) if rows else "",
        block(examples) if examples else "",
    ])  # fmt: skip


def _help(module: Any) -> tuple[str, str]:
    """Split a command's help into text and examples."""
    parser = module.parser()
    paragraphs = (parser.description or "").split("\n\n")
    text = "\n\n".join(block(each) if "\n  " in each else each for each in paragraphs)
    return text, inspect.cleandoc(parser.epilog.removeprefix("examples:\n"))
