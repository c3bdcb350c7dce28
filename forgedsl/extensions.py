"""Operations and kinds of services from outside of this package.

    [tool.forgec]
    extensions = ["my_rank"]        in the pyproject.toml above the .forge file

An extension is a Python package beside that pyproject.toml. What it defines under these names is
added to the tuples of the same names here:

    my_rank             OPERATIONS (operations/registry), KINDS (services/registry),
                        SERVICES (lower/parts), LOWERED (lower/services), RANKS (plan/capacity)
    my_rank.runtime     OPERATIONS (runtime/operations/registry), KINDS (runtime/kinds)

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
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

VARIABLE = "FORGEDSL_EXTENSIONS"
"""FOLDER:NAME,NAME of the extensions of a process"""
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
            if b"extensions" in (content := found.read_bytes()):
                install(_named(found, content), folder)
            return


def _named(path: Path, content: bytes) -> list[str]:
    import tomllib

    try:
        data = tomllib.loads(content.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExtensionError(f"{path}: {error}") from error
    names = data.get("tool", {}).get("forgec", {}).get("extensions", [])
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
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise ExtensionError(
            f"extension `{name}` cannot be imported from {folder}: {error}; `extensions` of "
            "[tool.forgec] names packages beside its pyproject.toml"
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


def added(table: str, module: str = "") -> Iterator[Any]:
    """What installed extensions add to a tuple of units; `module` is that part of them."""
    for name in _names:
        part = importlib.import_module(f"{name}.{module}" if module else name)
        yield from getattr(part, table, ())
