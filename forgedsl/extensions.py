"""Operations and kinds of services from outside of this package.

    [tool.forgec]
    extensions = ["my_rank"]        in the pyproject.toml above the .forge file

An extension is a Python package beside that pyproject.toml. What it defines under these names is
added to the tuples of the same names here:

    my_rank             OPERATIONS (operations/registry), KINDS (services/registry)
    my_rank.runtime     OPERATIONS (runtime/operations/registry), KINDS (runtime/services/registry)

The compiler imports the first, and no torch with it; what runs or rehearses a job imports both. A
job names its extensions and has copies of their files in `inputs/extensions`, which is where a run,
a resumed run and a report import them from. Processes of a run find the folder in their environment
(`VARIABLE`).

Raises ExtensionError where a package cannot be imported.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")
VARIABLE = "FORGEDSL_EXTENSIONS"
"""FOLDER:NAME,NAME of the extensions of a process"""
KEYS = ("extensions", "lint")
"""of [tool.forgec]"""
FOLDER = "inputs/extensions"
"""of a job"""

_names: list[str] = []
_folders: dict[str, Path] = {}


class ExtensionError(Exception):
    """An extension cannot be used; the text says which and why."""


def use_near(path: Path) -> None:
    """Install what the nearest pyproject.toml of a .forge file names."""
    for folder in path.resolve().parents:
        found = folder / "pyproject.toml"
        if found.is_file():
            if b"forgec" in (content := found.read_bytes()):
                install(_named(found, content), folder)
            return


def _named(path: Path, content: bytes) -> list[str]:
    import tomllib

    try:
        data = tomllib.loads(content.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExtensionError(f"{path}: {error}") from error
    section = data.get("tool", {}).get("forgec", {})
    if unknown := sorted(section.keys() - set(KEYS)):
        raise ExtensionError(
            f"{path}: [tool.forgec] has no `{unknown[0]}`; it has {' and '.join(KEYS)}"
        )
    names = section.get("extensions", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ExtensionError(f"{path}: `extensions` of [tool.forgec] is a list of package names")
    return names


def install(names: Iterable[str], folder: Path) -> None:
    """Import packages that lie in a folder, and add what they define."""
    for name in names:
        if name not in _names:
            _import(name, folder)
            _names.append(name)
        _folders[name] = folder / name
    if _names:
        os.environ[VARIABLE] = f"{folder.resolve()}:{','.join(_names)}"


def inherit() -> None:
    """Install what the process that started this one has installed."""
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
            f"extension `{name}` cannot be imported: {error}; `extensions` of [tool.forgec] names "
            "packages beside its pyproject.toml"
        ) from error
    except Exception as error:  # whatever the package does while it is imported
        if isinstance(error, SyntaxError):
            place = f"{error.filename}:{error.lineno}"
        else:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{last.filename}:{last.lineno}"
        raise ExtensionError(
            f"extension `{name}` fails while it is imported, at {place}: "
            f"{type(error).__name__}: {error}"
        ) from error


def installed() -> tuple[str, ...]:
    """The names of what is installed."""
    return tuple(_names)


def files() -> dict[str, Path]:
    """The files of what is installed, by their names in a job."""
    return {
        f"{FOLDER}/{name}/{path.relative_to(_folders[name]).as_posix()}": path
        for name in _names
        for path in sorted(_folders[name].rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def added(table: str, kind: type[T], module: str = "") -> Iterator[Any]:
    """What installed extensions add to a tuple of units, which are objects or subclasses of `kind`;
    `module` is the part of the extension that has the tuple. Raises ExtensionError."""
    for name in _names:
        part = f"{name}.{module}" if module else name
        units = getattr(_module(part), table, ())
        for unit in units if isinstance(units, tuple | list) else (units,):
            of_kind = issubclass(unit, kind) if isinstance(unit, type) else isinstance(unit, kind)
            if not of_kind:
                raise ExtensionError(
                    f"`{table}` of `{part}` holds {unit!r}, which is no {kind.__name__}"
                )
            yield unit
