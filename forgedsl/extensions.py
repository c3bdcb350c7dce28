"""Extensions: packages outside of this one that add operations and kinds of services.

    [tool.forgec]
    extensions = ["my_rank"]        in the pyproject.toml above the .forge file

An extension is a Python package beside that pyproject.toml. What it defines under these names is
added to the tuples of the same names here:

    my_rank             OPERATIONS (operations/registry), KINDS (services/registry)
    my_rank.runtime     OPERATIONS, KINDS (the same registries in forgedsl_runtime)

The compiler imports `my_rank` alone, which must not import torch. Runs and rehearsals import
both. A job names its extensions and has copies of their files in `inputs/extensions`; runs, resumed
runs and reports import those copies. Processes of a run get the folder by an environment variable
(`VARIABLE`).

Raises ExtensionError where a package cannot be imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from forgedsl.project import Project, ProjectError, project_of

T = TypeVar("T")
VARIABLE = "FORGEDSL_EXTENSIONS"
"""environment variable that names the extensions of a process: FOLDER:NAME,NAME"""
KEYS = ("extensions", "lint")
"""keys of [tool.forgec] in pyproject.toml"""
FOLDER = "inputs/extensions"
"""folder of the extensions in a job"""

_names: list[str] = []
_folders: dict[str, Path] = {}


class ExtensionError(Exception):
    """An extension cannot be used; the message names it and gives the reason."""


def use_near(path: Path) -> None:
    """Install the extensions that the nearest pyproject.toml above a .forge file names."""
    try:
        project = project_of(path)
    except ProjectError as error:
        raise ExtensionError(str(error)) from error
    if project is not None:
        install(_named(project), project.path.parent)


def _named(project: Project) -> list[str]:
    path, section = project.path, project.section
    if unknown := sorted(section.keys() - set(KEYS)):
        raise ExtensionError(
            f"{path}: [tool.forgec] has no `{unknown[0]}`; it has {' and '.join(KEYS)}"
        )
    names = section.get("extensions", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ExtensionError(f"{path}: `extensions` of [tool.forgec] is a list of package names")
    return names


def install(names: Iterable[str], folder: Path) -> None:
    """Import extension packages from a folder, and register what they define."""
    for name in names:
        if name not in _names:
            _import(name, folder)
            _names.append(name)
        _folders[name] = folder / name
    if _names:
        os.environ[VARIABLE] = f"{folder.resolve()}:{','.join(_names)}"


def inherit() -> None:
    """Install the extensions of the parent process, as `VARIABLE` names them."""
    folder, _, names = os.environ.get(VARIABLE, "").rpartition(":")
    if folder:
        install(filter(None, names.split(",")), Path(folder))


def _import(name: str, folder: Path) -> None:
    place = str(folder.resolve())
    if place not in sys.path:
        sys.path.insert(0, place)
    importlib.invalidate_caches()
    _module(name)


def _module(name: str) -> ModuleType:
    """Import a module of an extension. Raises ExtensionError, with the line that failed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ExtensionError(
            f"extension `{name}` cannot be imported: {error}; `extensions` of [tool.forgec] must "
            "name packages in the folder of its pyproject.toml"
        ) from error
    except Exception as error:  # code of the package may raise anything while it is imported
        if isinstance(error, SyntaxError):
            place = f"{error.filename}:{error.lineno}"
        else:
            import traceback

            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{last.filename}:{last.lineno}"
        raise ExtensionError(
            f"extension `{name}` fails while it is imported, at {place}: "
            f"{type(error).__name__}: {error}"
        ) from error


def installed() -> tuple[str, ...]:
    """Return the names of the installed extensions."""
    return tuple(_names)


def files() -> dict[str, Path]:
    """Return the files of the installed extensions, by their names in a job."""
    return {
        f"{FOLDER}/{name}/{path.relative_to(_folders[name]).as_posix()}": path
        for name in _names
        for path in sorted(_folders[name].rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def added(table: str, kind: type[T], module: str = "") -> Iterator[Any]:
    """Return the units that installed extensions add to the tuple `table`, such as OPERATIONS.
    Units are instances or subclasses of `kind`; `module` is the submodule that has the tuple.
    Raises ExtensionError."""
    for name in _names:
        part = f"{name}.{module}" if module else name
        units = getattr(_module(part), table, ())
        for unit in units if isinstance(units, tuple | list) else (units,):
            of_kind = issubclass(unit, kind) if isinstance(unit, type) else isinstance(unit, kind)
            if not of_kind:
                raise ExtensionError(
                    f"`{table}` of `{part}` has {unit!r}, which is not of class {kind.__name__}"
                )
            yield unit
