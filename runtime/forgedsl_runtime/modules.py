"""Load generated Python text, or a Python file of a job, as a module."""

from __future__ import annotations

import builtins
import hashlib
import importlib
import importlib.machinery
import importlib.util
import linecache
import os
import sys
import threading
import types
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from forgedsl.errors import LaunchError
from forgedsl.lower.job import Module
from forgedsl.lower.paths import digest as digest_of
from forgedsl_runtime.models import resolve_path
from forgedsl_runtime.tracebacks import frames

NONE: Mapping[str, Module] = types.MappingProxyType({})


class LateModule(types.ModuleType):
    """A module that is imported when one of its attributes is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


def load_module(name: str, text: str, *, late: Collection[str] = ()) -> types.ModuleType:
    """Execute generated source as module `name`; tracebacks show its lines. The modules `late` are
    imported only when one of its functions uses them."""
    filename = f"<generated {name}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    module = types.ModuleType(name)
    module.__file__ = filename
    if late:

        def import_(wanted: str, *others: Any) -> Any:
            return LateModule(wanted) if wanted in late else __import__(wanted, *others)

        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": import_}
    exec(compile(text, filename, "exec"), module.__dict__)
    return module


def load_file(
    path: str, sha256: str, job_dir: Path, modules: Mapping[str, Module] = NONE
) -> types.ModuleType:
    """Import a file of the job once per process; all users of the file share the module. It may
    import `modules`, files of the job too, by their names.

    Raises:
        LaunchError: it is missing, has another content than the job says, or fails on import; or
            another module of the same name was imported before.
    """
    file = _checked(path, sha256, job_dir)
    name = f"forge_file_{sha256[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, file)
    assert found is not None
    assert found.loader is not None
    JOB_MODULES.add({n: _checked(m.path, m.sha256, job_dir) for n, m in modules.items()})
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


def _checked(path: str, sha256: str, job_dir: Path) -> Path:
    """Return the path of a file of the job.

    Raises:
        LaunchError: the file is missing, or its content is not that of the job.
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
    return file


def check_files(files: Mapping[str, str], job_dir: Path) -> None:
    """Check that the files and folders that a reward reads are those of the job; `files` has their
    sha256.

    Raises:
        LaunchError: one is missing, or its content is not that of the job.
    """
    for path, sha256 in files.items():
        place = resolve_path(path, job_dir)
        if not place.exists():
            raise LaunchError(f"{path}, which a reward reads, is missing from the job")
        if digest_of(place) != sha256:
            raise LaunchError(
                f"{path}, which a reward reads, is not what the job was built with; restore it or "
                "build the job again"
            )


class JobModules:
    """Finds modules of the job that its Python files import, before installed packages."""

    def __init__(self) -> None:
        self._files: dict[str, Path] = {}

    def add(self, files: Mapping[str, Path]) -> None:
        """Let imports find these files, by module name.

        Raises:
            LaunchError: a name stands for another file in this process already.
        """
        for name, file in files.items():
            loaded = getattr(sys.modules.get(name), "__file__", None)
            other = self._files.get(name) or (Path(loaded) if loaded else None)
            if other is not None and other.resolve() != file.resolve():
                raise LaunchError(
                    f"the module `{name}` beside a Python file of the job is hidden by {other}; "
                    "give it another name"
                )
        if files and self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        self._files |= files

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a module of the job; Python calls this on import."""
        file = self._files.get(name)
        # a package without a file of its own
        if file is None and any(known.startswith(f"{name}.") for known in self._files):
            return importlib.machinery.ModuleSpec(name, None, is_package=True)
        if file is None:
            return None
        inner = [str(file.parent)] if file.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=inner)


JOB_MODULES = JobModules()


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
    if isinstance(error, ModuleNotFoundError) and error.name and str(error).startswith("No module"):
        top = error.name.partition(".")[0]
        install = f"to install a package of this name: pip install {top}"
        return f"importing {place} failed: {said}; {install}"
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
