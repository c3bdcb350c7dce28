"""P224 path-of-this-machine: the job contains an absolute path, which other machines may not have.

    checkpoint { export = hf("/mnt/models/out") }           # fires
    checkpoint { export = hf("export") }                    # silent: below the run folder

Files that a program reads (`jsonl`, `local`, `import python`) are copied beside the job, whatever
their path. The path of an export, and arguments of a reward, an environment or an engine, stay as
written: the job runs on another machine only if that machine has the same path. Use a relative
path.
"""

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from forgedsl.ir.program import Constructor, Decl, PythonEnvironment, PythonFunction, Value
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.source import Span

finding = rule(__doc__, "I")
COPIED = frozenset({"local", "jsonl", "parquet", "csv", "json", "disk"})


def check(view: View) -> Findings:
    for text, span in _written(view):
        if _is_path(text):
            yield finding(
                f"`{text}` is a path of this machine, and the job keeps it",
                span,
                help="use a relative path, or keep it if every host of the job has this path",
            )


def _written(view: View) -> Iterator[tuple[str, Span]]:
    """Yield the strings of settings, parameters and arguments, with their spans."""
    program = view.program
    decls: tuple[Decl, ...] = (*program.services.values(), *program.singletons.values())
    settings: list[tuple[Value, Span]] = [
        (value, decl.name_span) for decl in decls for value in decl.settings.values()
    ]
    settings += [(value, program.spans[n]) for n, value in program.params.items()]
    for value, span in settings:
        if value.origin.layer == "default":
            continue  # true of most settings
        yield from ((text, value.origin.span or span) for text in _texts(value.value))
    for reward in program.rewards.values():
        if isinstance(reward.body, PythonFunction | Constructor):
            yield from ((text, reward.span) for text in _texts(reward.body.args))
    for env in program.environments.values():
        assert isinstance(env.body, PythonEnvironment)
        scripts = {*env.body.scripts}
        if env.body.is_program:  # X831 reports a command that is not here
            scripts.add(env.body.args["command"][0])
        yield from ((t, env.name_span) for t in _texts(env.body.args) if t not in scripts)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield str(value)
    elif isinstance(value, int | float | None):
        return
    elif isinstance(value, Constructor):
        yield from () if value.name in COPIED else _texts(value.args)
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def _is_path(text: str) -> bool:
    """True for `/mnt/data`, but not for a word such as `/no_think`."""
    return (
        ("/" in text or "\\" in text)
        and PurePath(text).is_absolute()
        and len(PurePath(text).parts) > 2
        and text.isprintable()
    )
