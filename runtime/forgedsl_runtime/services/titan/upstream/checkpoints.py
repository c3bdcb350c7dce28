"""Check that the files of torch's distributed checkpoint are intact.

FOLDER --.metadata--> positions of tensors --first and last bytes--> what is wrong, or ""
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

BEGIN, END, END_SIZE = b"PK\3\4", b"PK\5\6", 22
"""torch.save writes each tensor as a zip archive: its first bytes, the first bytes of its end
record, and the size of that record (an archive comment would make it longer; there is none)"""


def spoilt(folder: Path) -> str:
    """Return what is wrong with the files of a checkpoint; "" if files have their full length and
    every tensor has its first and last bytes."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    try:
        stored = FileSystemReader(str(folder)).read_metadata().storage_data
    except OSError as error:
        return f"{folder / '.metadata'}: {error.strerror}"
    except Exception as error:  # unpickling damaged bytes may raise anything
        return f"{folder / '.metadata'} is corrupt ({type(error).__name__}: {error})"
    parts: dict[str, list[Any]] = {}
    for part in stored.values():
        parts.setdefault(part.relative_path, []).append(part)
    problems = (_spoilt(folder / name, of) for name, of in sorted(parts.items()))
    return next(filter(None, problems), "")


def _spoilt(path: Path, parts: list[Any]) -> str:
    need = max(part.offset + part.length for part in parts)
    try:
        with path.open("rb") as file:
            if (size := os.fstat(file.fileno()).st_size) < need:
                return f"{path} is truncated: it has {size:,} of {need:,} bytes"
            for part in parts:
                for at, mark in ((0, BEGIN), (part.length - END_SIZE, END)):
                    file.seek(part.offset + at)
                    if file.read(len(mark)) != mark:
                        return f"{path} is corrupt at byte {part.offset + at:,}"
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""
