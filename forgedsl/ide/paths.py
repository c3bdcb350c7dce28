"""Files and folders that a string names, relative to where the compiler looks for them.

import "       modules of the library and of the folder     import python "    Python files
jsonl("        files of that form, also those that ship     local("            folders
files = ["     all files and folders; also the command of a `program`
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

from forgedsl.hir.modules import standard_modules
from forgedsl.ide.context import Context
from forgedsl.ide.names import Name
from forgedsl.shipped import SHIPPED, locate, shipped_root

MOST = 1000
"""maximum number of entries that are read of a folder"""
FOLDERS = ("local", "disk")
FORMS = ("jsonl", "json", "csv", "parquet")
SHIPPED_FOLDERS = ("models", "tokenizers")


def paths(where: Context, folder: Path, typed: str) -> Iterator[Name]:
    """Yield what may stand in the string at the cursor, of which `typed` is written; nothing if it
    is no path."""
    if where.words[:1] == ("import",):
        if "python" in where.words:
            yield from entries(folder, typed, ".py")
        else:
            yield from (Name(name=name, kind="module") for name in standard_modules())
            yield from entries(folder, typed, ".forge")
        return
    called = where.call[-1] if where.call else ""
    if where.words[1:2] == ("=",) and where.words[0] != "path":
        return
    if called in FORMS:
        yield from entries(folder, typed, f".{called}")
        yield from _shipped(f".{called}")
    elif called in FOLDERS:
        yield from entries(folder, typed, "/")
        yield from _shipped("/")
    elif called == "file" or _lists_files(where):
        yield from entries(folder, typed, "")
        yield Name(name=SHIPPED, kind="folder", detail="ships with it")


def _lists_files(where: Context) -> bool:
    """True in `files = [`, and in the command of a `program`."""
    if not where.stack or where.stack[-1].bracket != "[":
        return False
    head = where.stack[-1].head
    in_program = len(where.stack) > 1 and where.stack[-2].head[-1:] == ("program",)
    return head[:2] == ("files", "=") or (in_program and head[:2] in ((), ("command", "=")))


def entries(folder: Path, typed: str, suffix: str) -> Iterator[Name]:
    """Yield the files with a suffix, and the folders, that continue a path. The suffix `/` stands
    for folders alone, "" for all files."""
    if typed in (".", ".."):
        yield Name(name="../", kind="folder")
        return
    inner = typed[: max(typed.rfind("/"), typed.find(":") if typed.startswith(SHIPPED) else -1) + 1]
    for name, is_folder in _listed(locate(inner, folder) if inner else folder):
        shown = f"{inner}{name}"
        if is_folder:
            yield Name(name=shown if suffix == "/" else f"{shown}/", kind="folder")
        elif suffix != "/" and name.endswith(suffix):
            yield Name(
                name=shown.removesuffix(".forge") if suffix == ".forge" else shown, kind="file"
            )


def _listed(folder: Path) -> list[tuple[str, bool]]:
    """Return the entries of a folder by name, with True for folders; [] if it cannot be read."""
    try:
        with os.scandir(folder) as found:
            shown = (entry for entry in found if not entry.name.startswith((".", "__")))
            return sorted((entry.name, entry.is_dir()) for entry in islice(shown, MOST))
    except OSError:
        return []


@cache
def _shipped(suffix: str) -> tuple[Name, ...]:
    """Return what ships with the package: data of a form, or folders of models and tokenizers."""
    root = shipped_root()
    if suffix == "/":
        parents = [root / name for name in SHIPPED_FOLDERS]
        found = [each for parent in parents for each in parent.iterdir() if _is_model(each)]
        kind = "folder"
    else:
        found, kind = [*root.joinpath("data").glob(f"*{suffix}")], "file"
    names = sorted(each.relative_to(root).as_posix() for each in found)
    return tuple(Name(name=f"{SHIPPED}{name}", kind=kind, detail="ships with it") for name in names)


def _is_model(path: Path) -> bool:
    return any((path / name).is_file() for name in ("config.json", "tokenizer.json"))
