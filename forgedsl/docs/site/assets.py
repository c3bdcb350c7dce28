"""What the playground loads: Pyodide, the compiler as an archive, the page's scripts.

    docs/site/package-lock.json  --npm-->  pyodide/          the exact version, by its digest
    forgedsl, grammar, pipelines, lark, jinja2, markupsafe  -->  forgedsl.zip
    the patterns of forgedsl/docs/textmate.py               -->  colours.json

Weights of models stay out of the archive: lint reads none.
"""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PYODIDE = (
    "pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json",
)  # fmt: skip
PAGE = ("playground.js", "colours.js", "worker.js", "playground.css")
LIBRARIES = ("lark", "jinja2", "markupsafe")
LINKED = ("grammar", "pipelines")
"""folders that the package has as links"""
LEFT_OUT = (".safetensors", ".pyc", ".so", ".pyi", ".typed", ".c")
NO_PARTS = {"__pycache__", "requirements"}
DATE = (1980, 1, 1, 0, 0, 0)


class AssetError(Exception):
    """Pyodide cannot be installed."""


def write(root: Path, folder: Path) -> None:
    """Write everything that playground/ of the site has."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in PAGE:
        shutil.copy(root / "docs/site/playground" / name, folder / name)
    (folder / "colours.json").write_text(json.dumps(colours()) + "\n", encoding="utf-8")
    _pyodide(root, folder / "pyodide")
    archive(root, folder / "forgedsl.zip")
    loaded = [folder / "forgedsl.zip", *(folder / "pyodide" / name for name in PYODIDE)]
    size = sum(path.stat().st_size for path in loaded if path.suffix != ".mjs")
    (folder / "size.json").write_text(json.dumps({"bytes": size}) + "\n", encoding="utf-8")


def colours() -> list[dict[str, Any]]:
    """Return the patterns that colour the text of the editor, with the classes of Pygments.

    The first that matches counts. `match` has a `class`, and `groups` for parts of it; a string
    with an end has `begin`, `end` and the patterns `inside`.
    """
    from pygments.token import STANDARD_TYPES

    from forgedsl.docs import lexer, textmate

    def class_of(scope: str) -> str:
        return str(STANDARD_TYPES[lexer.token_of(scope)])

    found: list[dict[str, Any]] = []
    for pattern in textmate.patterns():
        name = pattern.get("name")
        made: dict[str, Any] = {"class": class_of(name) if name else ""}
        if "begin" in pattern:
            inside = [
                {"match": p["match"], "class": class_of(p["name"])} for p in pattern["patterns"]
            ]
            found.append(
                {**made, "begin": pattern["begin"], "end": pattern["end"], "inside": inside}
            )
            continue
        groups = {n: class_of(c["name"]) for n, c in pattern.get("captures", {}).items()}
        found.append({**made, "match": pattern["match"], "groups": groups})
    return found


def _pyodide(root: Path, folder: Path) -> None:
    """Install Pyodide as the lock file says, and copy what a browser needs."""
    work = root / "build/pyodide"
    work.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(root / "docs/site" / name, work / name)
    command = ["npm", "ci", "--ignore-scripts", "--no-fund", "--no-audit"]
    try:
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise AssetError("no npm: install Node 20, or give --without-playground") from error
    if done.returncode:
        raise AssetError(f"npm cannot install Pyodide:\n{done.stderr}")
    folder.mkdir(exist_ok=True)
    for name in PYODIDE:
        shutil.copy(work / "node_modules/pyodide" / name, folder / name)


def archive(root: Path, target: Path) -> None:
    """Write the compiler and the libraries that it imports; the same tree gives the same bytes."""
    found = {**dict(_package(root)), **dict(_libraries())}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for name in sorted(found):
            info = zipfile.ZipInfo(name, DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            made.writestr(info, found[name].read_bytes())


def _package(root: Path) -> Iterator[tuple[str, Path]]:
    folders = {root / "forgedsl": "forgedsl"}
    folders |= {root / name: f"forgedsl/{name}" for name in LINKED}
    for folder, name in folders.items():
        for path, inner in _files(folder):
            yield f"{name}/{inner}", path


def _libraries() -> Iterator[tuple[str, Path]]:
    for name in LIBRARIES:
        folder = Path(str(importlib.import_module(name).__file__)).parent
        for path, inner in _files(folder):
            yield f"{name}/{inner}", path


def _files(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of a folder that the compiler may read, with their paths in it."""
    for path in folder.rglob("*"):
        inner = path.relative_to(folder)
        if path.is_file() and path.suffix not in LEFT_OUT and not NO_PARTS & {*inner.parts}:
            yield path, inner.as_posix()
