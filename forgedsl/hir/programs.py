"""Resolves `environment desk = program(["python", "desk.py"])`: an agent that is a command.

Only mistakes that are wrong on every machine are reported here: names, relative paths, forms of
variables. Rule X831 and the start of a run check if the command exists on this machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forgedsl.hir.context import ERROR
from forgedsl.hir.file import File
from forgedsl.ir.program import PythonEnvironment
from forgedsl.mistakes.suggest import as_written, did_you_mean, nearest
from forgedsl.records import dataclass
from forgedsl.schema.constructors import PROGRAM
from forgedsl.source import Span
from forgedsl.syntax import ast

SHAPE = '`environment NAME = program(["/venvs/a/bin/python", "agents/a.py"]) { deadline = 120s }`'
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(=.*)?", re.S)
SCRIPTS = (".py", ".sh", ".js", ".mjs", ".ts", ".rb", ".pl")
"""endings of words that name a file to be run"""
OWN_PREFIX = "FORGE"
"""first letters of the variables that a run sets; VARIABLE=... may set all others"""
TARGET = "{target}"
WORDS = ("url", "anthropic_url", "model", "task", "task_file", "target")
"""placeholders in words of the command: `{url}`"""
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong with the argument `name`, or with its word number `word`, and what to write
    instead."""

    name: str
    message: str
    help: str = ""
    word: int | None = None


def resolve_program(resolver: File, call: ast.Call | None, span: Span) -> PythonEnvironment | None:
    """Return the agent; None after reporting a mistake."""
    if call is None:
        resolver.ctx.error("F114", "`program` needs a command", span, help=SHAPE)
        return None
    bound = resolver.coercer.bind(PROGRAM, call.args, span, resolver.scope)
    if bound is ERROR:
        return None
    problem = next(_problems(bound, resolver.folder), None)
    if problem is not None:
        place = _place(call, problem)
        resolver.ctx.error("F113", problem.message, place, help=problem.help)
        return None
    files = [*_files(bound, resolver.folder)]
    moved = {word: resolver.rebase(word) for word in files}
    command = [
        resolver.rebase(word) if target_folder(word) else moved.get(word, word)
        for word in bound["command"]
    ]
    return PythonEnvironment(
        module="",
        name=PROGRAM.name,
        init=(),
        tools=(),
        scripts=tuple(dict.fromkeys(moved.values())),
        parts=() if bound["reward"] == "none" else tuple(bound["parts"]),
        agent=True,
        args={**bound, "command": command},
        span=span,
    )


def _place(call: ast.Call, problem: Problem) -> Span:
    """Return the span of an argument or of its word, or of the call where its default applies."""
    order = [parameter.name for parameter in PROGRAM.params]
    given = {arg.name or order[index]: arg.value for index, arg in enumerate(call.args)}
    value = given.get(problem.name)
    if isinstance(value, ast.List) and problem.word is not None:
        return value.items[problem.word].span
    return call.span if value is None else value.span


def _problems(bound: dict[str, Any], folder: Path | None) -> Iterator[Problem]:
    yield from _forms(bound)
    yield from _placeholders(bound["command"])
    if folder is not None and bound["command"]:
        yield from _first_word(bound["command"], folder)
        yield from _missing(bound, folder)
        yield from _arguments(bound["command"], folder)


def _forms(bound: dict[str, Any]) -> Iterator[Problem]:
    command, parts = bound["command"], bound["parts"]
    if not command or not command[0].strip():
        yield Problem(name="command", message="the command is empty", help=SHAPE)
    elif len(command) == 1 and any(space in command[0] for space in " \t"):
        listed = ", ".join(f'"{word}"' for word in command[0].split())
        yield Problem(
            name="command",
            message=f"`{command[0]}` is one word: no shell splits a command",
            help=f"`program([{listed}])`",
        )
    bad = [part for part in parts if not NAME.fullmatch(part)]
    if bad:
        yield Problem(name="parts", message=f"`{bad[0]}` is no name of a reward part")
    if len({*parts}) != len(parts) or not parts:
        yield Problem(name="parts", message="name one reward part or several different ones")
    if bound["reward"] == "exit" and len(parts) != 1:
        message = f"an exit code is one reward, but `parts` names {len(parts)}"
        yield Problem(name="parts", message=message, help="`reward = last_line`")
    for variable in bound["variables"]:
        if not VARIABLE.fullmatch(variable):
            message = f"`{variable}` is not a variable: write NAME=VALUE, or NAME to keep the run's"
            yield Problem(name="variables", message=message)
        elif variable.startswith(OWN_PREFIX):
            message = f"`{variable.partition('=')[0]}` is set by the run"
            yield Problem(name="variables", message=message)


def _placeholders(command: list[str]) -> Iterator[Problem]:
    """Refuse the key as an argument, where all users of a host can read it."""
    if any("{key}" in word for word in command):
        yield Problem(
            name="command",
            message="`{key}` in an argument can be read by all users of the host",
            help='give it as a variable: `variables = ["OPENAI_KEY={key}"]`',
        )
    for index, word in enumerate(command):
        for name in PLACEHOLDER.findall(word):
            close = nearest(name, WORDS) if name not in (*WORDS, "key") else []
            if close:  # other braces stay, so that a command may contain JSON
                message = f"`{{{name}}}` is no placeholder"
                help_text = did_you_mean(tuple(f"{{{each}}}" for each in close))
                yield Problem(name="command", message=message, help=help_text, word=index)


def _first_word(command: list[str], folder: Path) -> Iterator[Problem]:
    """Check a program that is given by a path relative to the .forge file."""
    word = command[0]
    path = folder / word
    if os.path.isabs(word) or "/" not in word:
        if word.endswith(SCRIPTS) and path.is_file():
            yield Problem(
                name="command",
                message=f"`{word}` is looked up on the PATH, not beside this file",
                help=f'write `"./{word}"`, or put its interpreter before it',
            )
        return
    if not path.is_file():
        yield _not_there(word, folder, "command")
    elif (path.parent.parent / "pyvenv.cfg").is_file() or path.is_symlink():
        yield Problem(
            name="command",
            message=f"`{word}` belongs to an environment, which is not copied into a run folder",
            help=f"write its absolute path, such as `/venvs/agents/bin/{path.name}`",
        )
    elif not os.access(path, os.X_OK):
        interpreter = "python" if word.endswith(".py") else "bash"
        yield Problem(
            name="command",
            message=f"`{word}` is not executable",
            help=f'`chmod +x {word}`, or `["{interpreter}", "{word}"]`',
        )


def _missing(bound: dict[str, Any], folder: Path) -> Iterator[Problem]:
    """Report files that the command or `files` names and that are not beside the .forge file."""
    for word in bound["command"][1:]:
        scripted = word.endswith(SCRIPTS) and not word.startswith("-") and "{" not in word
        if scripted and not os.path.isabs(word) and not (folder / word).is_file():
            yield _not_there(word, folder, "command")
    for word in bound["command"]:
        place = target_folder(word)
        if place and not (folder / place).is_dir():
            yield _not_there(place, folder, "command")
    for word in bound["files"]:
        if os.path.isabs(word):
            message = f"write the path of `{word}` relative to the .forge file"
            yield Problem(name="files", message=message)
        elif not (folder / word).exists():
            yield _not_there(word, folder, "files")


def _arguments(command: list[str], folder: Path) -> Iterator[Problem]:
    """Report arguments that the script of the command refuses."""
    from forgedsl.hir.script_arguments import problem_of

    found = problem_of(command, folder)
    if found is not None:
        word, message, help_text = found
        yield Problem(name="command", message=message, help=help_text, word=word)


def target_folder(word: str) -> str:
    """Return the folder of a path beside the .forge file whose end is the target of a row,
    `tasks/{target}`; "" for another word."""
    before, target, _ = word.partition(TARGET)
    place = before.rpartition("/")[0]
    return place if target and place and not os.path.isabs(word) and "{" not in place else ""


def _not_there(word: str, folder: Path, name: str) -> Problem:
    beside = (folder / word).parent
    known = [each.name for each in beside.iterdir()] if beside.is_dir() else []
    close = did_you_mean(as_written(word, nearest(Path(word).name, known)))
    return Problem(name=name, message=f"`{word}` does not exist beside this file", help=close)


def _files(bound: dict[str, Any], folder: Path | None) -> Iterator[str]:
    """Return the words that name files beside the .forge file; they are copied to the run."""
    if folder is None:
        return
    for index, word in enumerate(bound["command"]):
        named = "/" in word or (index > 0 and Path(word).suffix)
        if named and not os.path.isabs(word) and (folder / word).is_file():
            yield word
    targets = [place for word in bound["command"] if (place := target_folder(word))]
    for word in (*bound["files"], *targets):
        path = folder / word
        if path.is_file():
            yield word
        for each in sorted(path.rglob("*")) if path.is_dir() else ():
            if each.is_file() and "__pycache__" not in each.parts:
                yield each.relative_to(folder).as_posix()
