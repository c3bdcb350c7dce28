"""Points of a sweep, and the manifest that says what became of each.

lr=1e-6,3e-6 group=4,8 and 2 seeds --axes, points--> 8 points: first 4 settings with the first seed
SWEEP/sweep.json    the manifest: folder, job and state of every point, replaced atomically
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forgedsl.cli.overrides import UsageError
from forgedsl.errors import writing
from forgedsl.records import dataclass, replace

MANIFEST = "sweep.json"
SEED = "run.seed"
ENDED = ("done", "stopped by a guard")
"""states of points that are not run again"""
OPENING, CLOSING = "([{", ")]}"
LONGEST = 80
"""characters of a point's folder name"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A setting and its values, as written."""

    path: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run of a sweep. `settings` has the values of the axes as written."""

    settings: dict[str, str]
    folder: str

    @property
    def name(self) -> str:
        said = (f"{short(path)}={value}" for path, value in self.settings.items())
        return " ".join(said) or "the file as it is"

    @property
    def overrides(self) -> tuple[str, ...]:
        return tuple(f"{path}={value}" for path, value in self.settings.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A point in the manifest. `state` is waiting, running, done, stopped by a guard, interrupted
    or failed. `how` is the text for the user on its last start: `begins`, or `resumes from the
    checkpoint of step 20`."""

    name: str
    folder: str
    settings: dict[str, str]
    job: str
    state: str = "waiting"
    how: str = ""
    starts: int = 0
    message: str = ""


def short(path: str) -> str:
    """The last name of a setting: `trainer.optimizer.lr` is `lr`."""
    return path.rpartition(".")[2]


def values_of(text: str) -> tuple[str, ...]:
    """Split at the commas outside of quotes and brackets.

    Example:
        values_of('["a", "b"],["c"]') == ('["a", "b"]', '["c"]')
    """
    parts, depth, quoted = [""], 0, False
    for letter in text:
        quoted ^= letter == '"'
        depth += 0 if quoted else (letter in OPENING) - (letter in CLOSING)
        if letter == "," and not quoted and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return tuple(part.strip() for part in parts)


def axes_of(
    given: Sequence[str], num_seeds: int | None
) -> tuple[tuple[Axis, ...], tuple[str, ...]]:
    """Return the settings that vary, and the overrides that all points share.

    Raises:
        UsageError: a setting is given twice, a value twice, or seeds in two ways.
    """
    axes: list[Axis] = []
    fixed: list[str] = []
    seen: set[str] = set()
    for text in given:
        path, equals, value = text.removeprefix("--").partition("=")
        path = path.strip().replace("-", "_")
        values = values_of(value)
        if path in seen and equals:
            raise UsageError(f"`{path}` is given twice; a setting that varies is a=1,2,3")
        seen.add(path)
        if "" in values and len(values) > 1:
            raise UsageError(f"`{text}` has a comma without a value beside it")
        twice = next((each for each in values if values.count(each) > 1), None)
        if twice is not None:
            raise UsageError(f"`{path}` has the value {twice} twice; for more seeds: --seeds N")
        if len(values) > 1:
            axes.append(Axis(path=path, values=values))
        else:
            fixed.append(text)
    if num_seeds is not None:
        if SEED in seen:
            raise UsageError(f"--seeds sets {SEED} to 1, 2, ...; leave out {SEED}")
        axes.append(Axis(path=SEED, values=tuple(map(str, range(1, num_seeds + 1)))))
    return tuple(axes), tuple(fixed)


def points_of(axes: Sequence[Axis]) -> tuple[Point, ...]:
    """Multiply the axes out. Seeds vary last, so that all settings have a run early."""
    slow = sorted(axes, key=lambda axis: axis.path != SEED)
    found: list[Point] = []
    taken: set[str] = set()
    for values in itertools.product(*(axis.values for axis in slow)):
        by_path = dict(zip((axis.path for axis in slow), values, strict=True))
        settings = {axis.path: by_path[axis.path] for axis in axes}
        folder = next(name for name in _names(settings) if name not in taken)
        taken.add(folder)
        found.append(Point(settings=settings, folder=folder))
    return tuple(found)


def _names(settings: dict[str, str]) -> Iterator[str]:
    """Names for the folder of a point, the plain one first: `lr1e-6-seed1`."""
    parts = (re.sub(r"[^\w.+-]+", "_", f"{short(p)}{v}").strip("_") for p, v in settings.items())
    plain = "-".join(parts)[:LONGEST] or "run"
    yield plain
    for number in itertools.count(2):
        yield f"{plain}-{number}"


def folder_of(file: Path, words: Sequence[str]) -> Path:
    """Return the folder of a sweep without `--dir`. The same command has the same folder, so that
    repeating it continues the sweep."""
    text = json.dumps([str(file.resolve()), *words])
    return Path("runs") / f"sweep-{file.stem}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class Manifest:
    """The entries of a sweep, in a file that is replaced atomically."""

    def __init__(self, folder: Path, file: str, *, rehearsal: bool) -> None:
        self.path = folder / MANIFEST
        self.file = file
        self.rehearsal = rehearsal
        self.entries: dict[str, Entry] = {}

    @classmethod
    def read(cls, folder: Path, file: str, *, rehearsal: bool) -> Manifest:
        """Read the manifest of a folder, or begin one.

        Raises:
            UsageError: it cannot be read, or is of rehearsals and this sweep is not.
        """
        made = cls(folder, file, rehearsal=rehearsal)
        if not made.path.is_file():
            return made
        try:
            value = json.loads(made.path.read_text(encoding="utf-8"))
            entries = [Entry(**entry) for entry in value["points"]]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{made.path} is not the manifest of a sweep: {error}") from error
        if value.get("rehearsal", False) != rehearsal:
            kind = "real runs" if rehearsal else "rehearsals"
            raise UsageError(f"{folder} is a sweep of {kind}; name another folder with --dir")
        made.entries = {entry.folder: entry for entry in entries}
        return made

    def add(self, point: Point, job: str) -> None:
        """Add a point, unless the manifest has it already.

        Raises:
            UsageError: the manifest has another point in its folder, or the point with another
                job.
        """
        entry = Entry(name=point.name, folder=point.folder, settings=point.settings, job=job)
        known = self.entries.setdefault(point.folder, entry)
        if known.settings != point.settings:
            raise UsageError(
                f"{self.path.parent} has another point in {point.folder} ({known.name}); name "
                "another folder with --dir"
            )
        if known.job != job:
            raise UsageError(
                f"the point {point.name} is another job than when {self.path.parent} was begun "
                "(the file, its Python files, its data, a setting of the command line or the "
                "version of forgec changed): name another folder with --dir"
            )

    def set(self, folder: str, **changes: Any) -> Entry:
        """Change an entry, and write the manifest."""
        self.entries[folder] = replace(self.entries[folder], **changes)
        self.write()
        return self.entries[folder]

    def write(self) -> None:
        from forgedsl_runtime.events import replace_text

        with writing(self.path):
            replace_text(self.path, json.dumps(self.document(), indent=1) + "\n")

    def document(self) -> dict[str, Any]:
        """The content of sweep.json."""
        names = ("name", "folder", "settings", "job", "state", "how", "starts", "message")
        points = [{n: getattr(e, n) for n in names} for e in self.entries.values()]
        return {"file": self.file, "rehearsal": self.rehearsal, "points": points}
