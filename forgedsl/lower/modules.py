"""Modules that stand beside a Python file of the program and are imported by it.

    rewards.py: `from helper import same`  --modules_beside--> {"helper": helper.py}

They become files of the job. In a run, Python looks for an imported module in its standard library,
then in the job, then in the installed packages. So the file finds the same modules as it would if
Python started it directly. Files are read, never executed.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from forgedsl.shipped import PACKAGES


def modules_beside(file: Path) -> dict[str, Path]:
    """Return the files of modules in the folder of `file` that it imports, itself or through other
    such modules, by the names under which they are imported."""
    folder, found, pending = file.parent, dict[str, Path](), [file]
    while pending:
        for name in _imported(pending.pop(), folder):
            parts = name.split(".")
            if parts[0] in sys.stdlib_module_names or parts[0] in PACKAGES:
                continue
            for count in range(1, len(parts) + 1):  # a module's packages are imported before it
                inner = ".".join(parts[:count])
                path = _file_of(folder.joinpath(*parts[:count]))
                if path is not None and inner not in found and path != file:
                    found[inner] = path
                    pending.append(path)
    return found


def _file_of(place: Path) -> Path | None:
    candidates = (place / "__init__.py", place.parent / f"{place.name}.py")
    return next((path for path in candidates if path.is_file()), None)


def _imported(file: Path, folder: Path) -> Iterator[str]:
    """Yield the modules that a file imports, wherever it does; `from a import b` may mean the
    module a.b."""
    try:
        tree = ast.parse(file.read_text("utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return  # F115 reports this for the first file, and a run for the others
    package = file.parent.relative_to(folder).parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level <= len(package):
            outer = package[: len(package) + 1 - node.level] if node.level else ()
            base = ".".join((*outer, *([node.module] if node.module else ())))
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))
