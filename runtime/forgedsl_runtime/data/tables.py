"""Row files that are read as a whole: CSV, a JSON list, a folder of `save_to_disk`.

path --> list of rows; for an unusable row, the reason as text | LaunchError
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forgedsl.diagnostics import counted
from forgedsl.errors import LaunchError


def csv_rows(content: bytes, name: str) -> list[tuple[int, dict[str, str] | str]]:
    """Read CSV. Return (number of the first line, row) for each row. A row is a dict from names in
    the header to text values. If it has more or fewer values than the header, the dict is replaced
    by a text: the reason why the row is unusable.

    Raises:
        LaunchError: the file is not UTF-8, is not CSV with commas, or names a column twice.
    """
    text = _text(content, name)
    if other := separator_of(text):
        shown = {"\t": r"\t"}.get(other, other)
        raise LaunchError(
            f"{name}: columns are separated by `{shown}`, but `csv` needs commas; to convert: "
            'python -c "import csv, sys; csv.writer(sys.stdout).writerows(csv.reader(sys.stdin, '
            f"delimiter='{shown}'))\" < {name} > rows.csv"
        )
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    try:
        header = next(reader, [])
        if len(set(header)) < len(header):
            twice = next(column for column in header if header.count(column) > 1)
            raise LaunchError(f"{name}: the column `{twice}` occurs twice")
        rows = []
        first = reader.line_num + 1
        for row in reader:
            if row:
                rows.append((first, row))
            first = reader.line_num + 1
    except csv.Error as error:
        raise LaunchError(f"{name}, line {reader.line_num}: not CSV: {error}") from error
    columns = counted(len(header), "column")
    return [
        (line, dict(zip(header, row, strict=True)))
        if len(row) == len(header)
        else (line, f"the row has {counted(len(row), 'value')}, but the header has {columns}")
        for line, row in rows
    ]


def separator_of(text: str) -> str:
    """Return what separates the columns of a header if it is no comma; else ""."""
    header = text.partition("\n")[0]
    found = [mark for mark in (";", "\t", "|") if mark in header]
    return found[0] if found and "," not in header else ""


def json_rows(content: bytes, name: str) -> list[Any]:
    """Read a JSON list and return its members.

    Raises:
        LaunchError: the file is not UTF-8, or holds no JSON list.
    """
    try:
        found = json.loads(_text(content, name))
    except ValueError as error:
        lines = "; if each line is one object, write `jsonl(...)`" if b"\n{" in content else ""
        raise LaunchError(f"{name}: not JSON: {error}{lines}") from error
    if isinstance(found, list):
        return found
    held = found.items() if isinstance(found, dict) else ()
    lists = [key for key, value in held if isinstance(value, list)]
    inside = (
        f"; it has a list in `{lists[0]}`, to extract it: jq '.{lists[0]}' {name} > rows.json"
        if lists
        else ""
    )
    raise LaunchError(f"{name}: `json` reads a list of rows, but the file holds no list{inside}")


def disk_rows(path: Path, name: str) -> Sequence[Any]:
    """Load the dataset in a folder that `Dataset.save_to_disk` wrote.

    Raises:
        LaunchError: the folder holds something else, or several splits.
    """
    from datasets import Dataset, load_from_disk

    try:
        found = load_from_disk(str(path))
    except (OSError, ValueError) as error:
        why = str(error).replace(str(path), name)
        raise LaunchError(f"{name}: not a folder written by `save_to_disk`: {why}") from error
    if isinstance(found, Dataset):
        rows: Sequence[Any] = found
        return rows
    one = next(iter(found))
    splits = ", ".join(found)
    raise LaunchError(f'{name} has the splits {splits}: name one, such as `disk("{name}/{one}")`')


def _text(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        kind = "UTF-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "latin1"
        said = (
            f"not UTF-8 (byte 0x{content[error.start]:02x}); convert it, for example with "
            f"`iconv -f {kind} -t UTF-8`"
        )
        raise LaunchError(f"{name}: {said}") from error
