"""A few rows of a local data file, read without the packages that runs need."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

CHUNK = 1 << 17
"""bytes read at each place of a file"""
COUNT = 20
"""rows read at each place"""


def some_rows(path: Path, form: str) -> list[dict[str, Any]]:
    """Return a few rows of a file whose form is `jsonl`, `json` or `csv`. Of a long `jsonl` they
    are from its beginning, middle and end, of a long `csv` from its beginning; of a `json` longer
    than CHUNK there are none. Lines that are not rows are left out.

    Raises OSError if the file cannot be read, ValueError if it is not text or not JSON."""
    with path.open("rb") as file:
        content = file.read(CHUNK)
        size = file.seek(0, 2)
        if form == "json":
            return _listed(content) if size <= CHUNK else []
        chunks = [content if size <= CHUNK else content[: content.rfind(b"\n") + 1]]
        for begin in (size // 2, size - CHUNK) if form == "jsonl" and size > CHUNK else ():
            file.seek(begin)
            chunks.append(file.read(CHUNK).partition(b"\n")[2].rpartition(b"\n")[0])
    texts = [chunk.decode("utf-8-sig") for chunk in chunks]
    if form == "csv":
        return _table(texts[0])
    return [row for text in texts for row in islice(_objects(text), COUNT)]


def _listed(content: bytes) -> list[dict[str, Any]]:
    import json

    rows = json.loads(content)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _table(text: str) -> list[dict[str, Any]]:
    """Return the rows that have as many values as there are columns."""
    import csv

    try:
        rows = [*islice(csv.reader(text.splitlines(keepends=True)), COUNT + 1)]
    except csv.Error as error:
        raise ValueError(str(error)) from error
    names = rows[0] if rows else []
    if len(names) == 1 and any(mark in names[0] for mark in ";\t|"):
        return []  # a run says that columns are separated by commas
    return [dict(zip(names, row, strict=True)) for row in rows[1:] if len(row) == len(names)]


def _objects(text: str) -> Iterator[dict[str, Any]]:
    import json

    for line in StringIO(text):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row
