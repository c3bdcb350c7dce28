"""Versions of the packages that Python files import, in the interpreter that will run them.

    desk.py --imported--> {"openai", "sums"} --versions--> {"openai": "3.51.0"}

Files are read, never executed, and packages are not imported. No version is recorded for modules of
the standard library, for this project, and for files beside the importing one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from forgedsl.shipped import PACKAGES

MCP = "forgedsl.mcp"
"""module of this package that needs the package `mcp`"""


def versions(files: Iterable[Path], command: str = "") -> dict[str, str]:
    """Return the versions of the installed packages that files import. `command` is the
    interpreter that runs them, if it is not this one but that of another virtual environment."""
    imported = sorted({name for file in files for name in _imported(file)})
    site = _site_packages(command)
    if not imported or site is None:
        return {}
    return {name: version for each in imported for name, version in _installing(each, site)}


def installed(modules: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that install modules."""
    return {name: found for module in modules for name, found in _installing(module, sys.path)}


def lacking(file: Path, command: str) -> list[str]:
    """Return the top-level modules that a Python file needs and that the interpreter `command` does
    not have; none if it is not the absolute path of a Python on this machine."""
    site = _site_packages(command) if command else None
    needed = sorted({*_imported(file, needed=True)}) if site else []
    return [name for name in needed if not any(_is_in(Path(each), name) for each in site or ())]


def _is_in(folder: Path, module: str) -> bool:
    """Return True if a folder of packages has a module, or may have it: an editable install."""
    names = (module, f"{module}.py", "*.egg-link", "__editable__*", f"{module}.*.so")
    return any(next(folder.glob(name), None) is not None for name in names)


def changed(recorded: Mapping[str, str], command: str = "") -> dict[str, tuple[str, str | None]]:
    """Return recorded packages whose installed version differs: (recorded, installed or None)."""
    site = _site_packages(command)
    if site is None:
        return {}
    found = {name: (version, _version(name, site)) for name, version in recorded.items()}
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]}


def _imported(file: Path, *, needed: bool = False) -> Iterator[str]:
    """Yield the top-level modules that a Python file imports, wherever it does. With `needed`,
    leave out those that it goes on without."""
    try:
        tree = ast.parse(file.read_text("utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return  # F115 and P210 report it
    optional = {id(node) for part in ast.walk(tree) for node in _optional(part)} if needed else ()
    for node in ast.walk(tree):
        modules: list[str] = []
        if id(node) in optional:
            continue
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            modules = [node.module]
        for module in modules:
            name = "mcp" if module == MCP else module.partition(".")[0]
            beside = (file.parent / f"{name}.py").exists() or (file.parent / name).is_dir()
            if name not in sys.stdlib_module_names and name not in PACKAGES and not beside:
                yield name


def _optional(part: ast.AST) -> Iterator[ast.AST]:
    """Yield what is only imported for types, or in a `try` that does not end without it."""
    if isinstance(part, ast.If) and "TYPE_CHECKING" in ast.unparse(part.test):
        yield from ast.walk(part)
    elif isinstance(part, ast.Try):
        handled = [node for handler in part.handlers for node in ast.walk(handler)]
        ends = any(
            isinstance(node, ast.Raise)
            or (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("exit"))
            for node in handled
        )
        if not ends:
            yield from ast.walk(part)


def _site_packages(command: str) -> list[str] | None:
    """Return the folders with the packages of an interpreter; None if `command` is not the absolute
    path of a Python on this machine."""
    if not command:
        return sys.path
    path = Path(command)
    if not path.is_absolute() or not path.name.startswith("python"):
        return None
    return [str(found) for found in path.parents[1].glob("lib/python3*/site-packages")] or None


def _version(name: str, site: list[str]) -> str | None:
    found = next(iter(metadata.distributions(name=name, path=site)), None)
    return None if found is None else str(found.version)


def _installing(module: str, site: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, version) of the packages that install a module. Most packages have the
    name of their module. For others the lists of installed files are searched, as text, since
    parsing them takes seconds."""
    version = _version(module, site)
    if version is not None:
        yield module.replace("_", "-"), version
        return
    for package in metadata.distributions(path=site):
        files = "\n" + (package.read_text("RECORD") or "")
        if f"\n{module}/" in files or f"\n{module}.py," in files:
            yield package.name, str(package.version)
