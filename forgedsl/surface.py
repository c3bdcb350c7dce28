"""How the caller writes an option: on the command line, or in Python.

Messages of shared code name options and calls by these functions. The Python API opens `python()`
around its calls, and a run that it starts gets the variable of the environment.

                                    on the command line       in Python
    override("group=4")             --set group=4             p.set("group=4")
    option("--host", "8xH200")      --host 8xH200             host="8xH200"
    flag("--adapter")               --adapter                 adapter=True
    call("run FILE", "p.run()")     forgec run FILE           p.run()
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

VARIABLE = "FORGEDSL_CALLER"
"""environment variable of a run that Python has started; its value is then `python`"""
PYTHON_NAMES = {"--run-dir": "folder", "--set-file": "set_files", "--to": "to"}
"""arguments whose names are not those of the options"""

_python: ContextVar[bool] = ContextVar("_python", default=os.environ.get(VARIABLE) == "python")


@contextmanager
def python() -> Iterator[None]:
    """Messages that are made in the body name arguments of Python."""
    token = _python.set(True)
    try:
        yield
    finally:
        _python.reset(token)


def in_python() -> bool:
    """True if the caller is Python and not the command line."""
    return _python.get()


def override(text: str) -> str:
    """`--set group=4`, or `p.set("group=4")`."""
    if not in_python():
        return f"--set {text}"
    return f"p.set('{text}')" if '"' in text else f'p.set("{text}")'


def option(name: str, value: str = "") -> str:
    """`--host 8xH200`, or `host="8xH200"`; without a value only the name."""
    if not in_python():
        return f"{name} {value}".rstrip()
    python_name = PYTHON_NAMES.get(name, name[2:].replace("-", "_"))
    if not value:
        return f"`{python_name}`"
    if value.isdigit():
        return f"{python_name}={value}"
    return f'{python_name}=["{value}"]' if name == "--set-file" else f'{python_name}="{value}"'


def flag(name: str) -> str:
    """`--adapter`, or `adapter=True`."""
    return f"{name[2:]}=True" if in_python() else name


def call(command: str, python: str) -> str:
    """`forgec export RUN`, or the call in Python that does the same."""
    return python if in_python() else f"forgec {command}"


def typed(name: str = "") -> str:
    """The name of what the caller typed, in the place of a file: `<command line: group>`."""
    if in_python():
        return f"<Python: {name.removeprefix('--')}>" if name else "<Python>"
    return f"<command line: {name}>" if name else "<command line>"


def is_typed(file: str) -> bool:
    """True if a text is no file: the caller typed it."""
    return file.startswith(("<command line", "<Python"))
