"""`forgec init [FOLDER]`: writes a small project that passes lint and trains on this host.

    template  --forgedsl.templates-->  FOLDER/{grpo.forge, README.md, rewards/, pyproject.toml, ...}

Without `--force` nothing is overwritten: an existing pipeline is an error, and other existing files
are kept, with a note. Exit 0; 2 if the folder cannot be used.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from forgedsl.cli.parser import Parser
from forgedsl.errors import writing
from forgedsl.notebook import in_kernel


def parser() -> Parser:
    parser = Parser("init", command.__doc__, "[FOLDER]")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("."), metavar="FOLDER",
        help="folder of the project; created if missing",
    )  # fmt: skip
    names = "grpo, sft, dapo, agent, program, verifiers, inspect, nemo-gym, harbor, distill or dpo"
    parser.add_argument("--template", metavar="NAME", help=names)
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(folder: Path, template: str | None, force: bool) -> None:
    """Write a small working project. On a terminal, asks for the template; otherwise takes `grpo`.

    Examples:
      forgec init sums
      forgec init sums --template dapo
      forgec init --template sft
    """
    name = _template(template)
    from forgedsl.templates import project, purposes

    files = project(name)
    pipeline = folder / f"{name}.forge"
    if pipeline.exists() and not force:
        _refuse(f"{pipeline} already exists; name another folder, or overwrite it with --force")
    kept = [] if force else [path for path in files if (folder / path).exists()]
    try:
        _write(folder, {path: text for path, text in files.items() if path not in kept})
    except OSError as error:
        _refuse(f"cannot write {error.filename}: {(error.strerror or '').lower()}")
    _say(folder, name, purposes(name), kept)


def _template(given: str | None) -> str:
    """Return the template of the command line; on a terminal, ask if none is given."""
    from forgedsl.templates import TEMPLATES

    if given is None:
        asks = sys.stdin.isatty() and sys.stderr.isatty() and not in_kernel()
        return _ask() if asks else "grpo"  # `!forgec init` in a notebook cannot be answered
    if given not in TEMPLATES:
        from forgedsl.mistakes.suggest import did_you_mean, nearest

        hint = did_you_mean(nearest(given, TEMPLATES)) or f"there are {', '.join(TEMPLATES)}"
        _refuse(f"there is no template `{given}`; {hint}")
    return given


def _ask() -> str:
    from forgedsl.templates import TEMPLATES

    names = list(TEMPLATES)
    for number, name in enumerate(names, 1):
        print(f"  {number}  {name:8} {TEMPLATES[name].about}", file=sys.stderr)
    while True:
        print(f"template [{names[0]}]: ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline().strip() or names[0]
        if answer in names:
            return str(answer)
        if answer.isdecimal() and 1 <= int(answer) <= len(names):
            return names[int(answer) - 1]
        print(f"  a number from 1 to {len(names)}, or a name", file=sys.stderr)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")


def _say(folder: Path, name: str, files: Mapping[str, str], kept: list[str]) -> None:
    """Print the files that were written, and the next command."""
    from forgedsl.templates import TEMPLATES

    width = max(map(len, files))
    print(f"{folder / f'{name}.forge'}: a project from the template {name}")
    for path, what in files.items():
        print(f"  {path:{width}}  {'was there, left as it is' if path in kept else what}")
    print("next:")
    if folder.resolve() != Path.cwd():
        print(f"  cd {shlex.quote(os.path.relpath(folder))}")
    print(f"  forgec lint {name}.forge")
    template = TEMPLATES[name]
    if template.needs:
        script = next(iter(template.files))
        print(f"  head -12 {script}   # needs {template.needs}; how to install it")
    tried = template.first_try
    print(f"  forgec run {name}.forge {tried}   # three steps; without it, all of them")


def _refuse(why: str) -> None:
    print(f"forgec init: {why}", file=sys.stderr)
    raise SystemExit(2)
