"""Missing files that lie in one missing folder become one finding.

    no `data/a.jsonl`, no `data/b.jsonl`  -->  there is no folder `data`, for 2 paths of this file

That is how a .forge file looks that was copied without the folders beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from forgedsl.diagnostics import Diagnostic, Label
from forgedsl.records import replace
from forgedsl.shipped import SHIPPED, shipped_root

CODE = "P210"
MOST = 3
"""further places that one finding shows"""
_NAMED = re.compile(r"`([^`]+)`")
_NO_FOLDER = re.compile(r"\w+:|~|.*\*")
"""paths that have a remedy of their own"""


def gather(found: Iterable[Diagnostic], base_dir: Path) -> Iterator[Diagnostic]:
    """Yield the findings; those of missing files in one missing folder as one."""
    kept = list(found)
    folders: dict[Path, list[Diagnostic]] = {}
    for each in kept:
        if each.code == CODE and (folder := _missing_folder(_path(each), base_dir)) is not None:
            folders.setdefault(folder, []).append(each)
    whole = {id(group[0]): folder for folder, group in folders.items() if len(group) > 1}
    merged = {id(each) for group in folders.values() if len(group) > 1 for each in group}
    for each in kept:
        if id(each) in whole:
            folder = whole[id(each)]
            yield _as_one(folder, folders[folder], base_dir)
        elif id(each) not in merged:
            yield each


def _path(found: Diagnostic) -> str:
    """The path that a finding names first."""
    named = _NAMED.search(found.message)
    return named[1] if named else ""


def _missing_folder(written: str, base_dir: Path) -> Path | None:
    """The outermost folder of a path that does not exist; None if only the file is missing."""
    if not written or _NO_FOLDER.match(written):
        return None
    missing = None
    for folder in (base_dir / written).parents:
        if folder.exists():
            return missing
        missing = folder
    return missing


def _as_one(folder: Path, group: list[Diagnostic], base_dir: Path) -> Diagnostic:
    first, *others = sorted(group, key=lambda each: (each.span.file, each.span.start))
    paths = list(dict.fromkeys(_path(each) for each in (first, *others)))
    name = folder.relative_to(base_dir) if folder.is_relative_to(base_dir) else folder
    *most, last = [f"`{path}`" for path in paths]
    missing = f"{', '.join(most)} and {last} are missing" if most else f"{last} is missing"
    where = f"`{name.as_posix()}`" + ("" if name.is_absolute() else " beside this file")
    message = f"there is no folder {where}: {missing}"
    copy = f"paths are relative to the .forge file: copy `{name.as_posix()}` beside it"
    if name.is_absolute():
        copy = "copy it to this machine, or correct the paths"
    ships = all((shipped_root() / path).exists() for path in paths)
    say = f", or write `{SHIPPED}{paths[0]}`, which ships with the package" if ships else ""
    everywhere = any(not each.profiles for each in group)
    profiles = dict.fromkeys(name for each in group for name in each.profiles)
    return replace(
        first, message=message, help=f"{copy}{say}",
        related=tuple(Label(text="also here", span=each.span) for each in others[:MOST]),
        profiles=() if everywhere else tuple(profiles),
    )  # fmt: skip
