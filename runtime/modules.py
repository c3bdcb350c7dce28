"""Load generated Python text, or a Python file of a job, as a module."""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import os
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from forgedsl.errors import LaunchError
from forgedsl.runtime.models import resolve_path
from forgedsl.runtime.tracebacks import frames


def load_module(name: str, text: str) -> types.ModuleType:
    """Execute generated source as module `name`; tracebacks show its lines."""
    filename = f"<generated {name}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    module = types.ModuleType(name)
    module.__file__ = filename
    exec(compile(text, filename, "exec"), module.__dict__)
    return module


def load_file(path: str, sha256: str, job_dir: Path) -> types.ModuleType:
    """Import a file of the job once per process; all users of the file share the module.

    Raises:
        LaunchError: it is missing, has another content than the job says, or fails on import.
    """
    file = resolve_path(path, job_dir)
    if not file.is_file():
        raise LaunchError(f"the file {path} is missing from the job")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest != sha256:
        raise LaunchError(
            f"{path} is not the file the job was built with "
            f"(sha256 {digest[:12]}, expected {sha256[:12] or 'none'}); restore it or build "
            "the job again"
        )
    name = f"forge_file_{digest[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, file)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    try:
        with _exits_are_errors():
            found.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        lines = [line for where, line in frames(error.__traceback__) if where == str(file)]
        place = f"{file.name}:{lines[-1]}" if lines else file.name
        raise LaunchError(_unimported(error, place)) from error
    return module


@contextmanager
def _exits_are_errors() -> Iterator[None]:
    """Turn `os._exit` of the imported file into SystemExit, so that the error can name the line."""
    really, process = os._exit, os.getpid()

    def leave(status: int) -> NoReturn:
        here = threading.current_thread() is threading.main_thread()
        if os.getpid() != process or not here:
            really(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = leave
    try:
        yield
    finally:
        os._exit = really


def _unimported(error: BaseException, place: str) -> str:
    """Describe why a file could not be imported, and what to do."""
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, Exception):
        return f"importing {place} failed: {said}"
    if isinstance(error, SystemExit | KeyboardInterrupt):
        return (
            f"importing {place} ends the process ({said}); put code of a script under `if "
            '__name__ == "__main__":`'
        )
    return (
        f"importing {place} did not finish and was interrupted {error}; move code that waits, "
        "serves or computes for long into the function, or into the constructor of a class"
    )
