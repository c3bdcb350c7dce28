"""Digests of published weights, by step: `forgec bisect` compares those of two runs.

    sync after a step --append--> recorded/weights.jsonl --read--> step -> tensor -> digest

The names of the tensors are in a line of their own, once. A digest takes 16 characters, so a
publication of 400 tensors takes 6 KiB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from forgedsl_runtime.recorded.files import FOLDER, HIDDEN

FILE = "weights.jsonl"
WIDTH = 16
"""characters of a digest of 64 bits"""
Key = tuple[int, str]
"""a publication: the step after which it was made (0: before the first), and its trainer"""


class WeightsWriter:
    """Appends to the file of a run that goes on after `step`. Publications of later steps, which
    the run will make again, are removed."""

    def __init__(self, run_dir: Path, step: int) -> None:
        self._path = run_dir / FOLDER / FILE
        self._names: dict[str, tuple[str, ...]] = {}
        if self._path.exists():
            kept = [line for line in _lines(self._path) if line.get("step", 0) <= step]
            hidden = self._path.with_suffix(HIDDEN)
            hidden.write_text("".join(map(_text, kept)), encoding="utf-8")
            hidden.replace(self._path)  # a kill leaves the old or the new file

    def append(self, step: int, trainer: str, digests: Mapping[str, int]) -> None:
        """Append the digests of a publication.

        Raises:
            OSError: there is no room, or the folder is gone.
        """
        names = tuple(digests)
        lines: list[dict[str, Any]] = []
        if self._names.get(trainer) != names:
            lines.append({"trainer": trainer, "names": names})
        joined = "".join(f"{value:0{WIDTH}x}" for value in digests.values())
        lines.append({"trainer": trainer, "step": step, "digests": joined})
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(map(_text, lines))
        self._names[trainer] = names


def read_weights(run_dir: Path) -> dict[Key, dict[str, str]]:
    """Return the digest of each tensor of the recorded publications."""
    path = run_dir / FOLDER / FILE
    found: dict[Key, dict[str, str]] = {}
    names: dict[str, list[str]] = {}
    for line in _lines(path) if path.exists() else ():
        trainer = line["trainer"]
        if "names" in line:
            names[trainer] = line["names"]
            continue
        text = line["digests"]
        cut = [text[at : at + WIDTH] for at in range(0, len(text), WIDTH)]
        found[line["step"], trainer] = dict(zip(names[trainer], cut, strict=True))
    return found


def _lines(path: Path) -> Iterator[Any]:
    """Yield the lines of the file; a kill may have cut the last one."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                return


def _text(line: Any) -> str:
    return json.dumps(line) + "\n"
