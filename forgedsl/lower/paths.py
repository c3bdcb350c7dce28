"""Maps files of a program to names in the job, and lists the files to copy beside job.json.

    shipped with the package    forgedsl:data/arithmetic.jsonl
    any other file or folder    inputs/data/problems.jsonl    (`..` becomes `up`)
    an absolute path            inputs/3f2a9c01-problems.jsonl

A job has no absolute paths. `InputFiles` resolves, hashes and collects files; a missing one is
P210.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from pathlib import Path

from forgedsl.diagnostics import Diagnostic, Reporter, error
from forgedsl.lower.missing import gather
from forgedsl.mistakes.suggest import as_written, did_you_mean, nearest
from forgedsl.shipped import SHIPPED, locate, shipped_root
from forgedsl.source import Span

CHUNK = 1 << 20
INSIDE = 2
"""levels below a run folder at which one of its folders is known to be part of it"""
EXPORTS = ("*", "exports/*")
"""folders of a run that may be exports"""
HELP = "paths are relative to the .forge file; `forgedsl:NAME` names what ships with the package"


class InputFiles:
    """Resolves the paths of one program. `copies` lists (source path, path in the job)."""

    def __init__(self, base_dir: Path, reporter: Reporter) -> None:
        self.base_dir = base_dir
        self.reporter = reporter
        self._copies: dict[str, Path] = {}
        self._missing: list[Diagnostic] = []

    def report_missing(self) -> None:
        """Report the files that do not exist, once all are known."""
        for each in gather(dict.fromkeys(self._missing), self.base_dir):
            self.reporter.report(each)

    @property
    def copies(self) -> tuple[tuple[Path, str], ...]:
        return tuple((source, name) for name, source in sorted(self._copies.items()))

    def add(self, path: str, span: Span) -> tuple[str, str]:
        """Return (name in the job, sha256) of a file or folder as written in the program."""
        source = locate(path, self.base_dir)
        if not source.exists():
            message = f"`{path}` does not exist"
            self._missing.append(
                error("P210", "missing-file", message, span, help=missing_file_help(source, path))
            )
            return path, ""
        root = shipped_root()
        resolved = source.resolve()
        if resolved.is_relative_to(root):
            return SHIPPED + resolved.relative_to(root).as_posix(), digest(source)
        sha256 = digest(source)
        name = self._job_name(source, sha256, absolute=Path(path).is_absolute())
        # `../x` becomes `up/x`, which may be the name of another file
        if self._copies.get(name, source).resolve() != resolved:
            name = self._job_name(source, sha256, absolute=True)
        self._copies[name] = source
        return name, sha256

    def check_model(self, path: str, span: Span) -> None:
        """Report a run folder that is named where a model is meant."""
        found = run_instead(locate(path, self.base_dir), path)
        if found is not None:
            self._missing.append(error("P210", "missing-file", found[0], span, help=found[1]))

    def _job_name(self, source: Path, sha256: str, *, absolute: bool) -> str:
        if absolute:  # the job must not contain this machine's path
            return f"inputs/{sha256[:8]}-{source.name}"
        relative = Path(os.path.relpath(source.absolute(), self.base_dir.absolute()))
        return Path(
            "inputs", *("up" if part == ".." else part for part in relative.parts)
        ).as_posix()


def missing_file_help(path: Path, written: str) -> str:
    """Return the help for a path that does not exist; `written` is what the program has."""
    if re.match(r"\w+://", written):
        return "a path names a file of this machine: download it first"
    if written.startswith("~"):
        return "`~` is not expanded: write the whole path"
    if "*" in written:
        return "a path names one file; several are joined by `mixture([...], weights = [...])`"
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    close = did_you_mean(as_written(written, nearest(path.name, [found.name for found in beside])))
    if close or written.startswith((SHIPPED, "/", "..")) or not (shipped_root() / written).exists():
        return close or HELP
    return f"did you mean `{SHIPPED}{written}`, which ships with the package?"


def run_instead(path: Path, written: str) -> tuple[str, str] | None:
    """Return message and help if a folder is a run, or part of one, where a model is meant; else
    None. `written` is what the program has."""
    if not path.is_dir() or (path / "config.json").exists():
        return None
    run = next((p for p in (path, *path.parents[:INSIDE]) if (p / "job.json").is_file()), None)
    if run is None:
        return None
    inside = path.relative_to(run).parts
    named = Path(*Path(written).parts[: -len(inside) or None]).as_posix()
    what = "part of a run" if inside else "a run"
    message = f"`{written}` is {what}, not a model: it has no `config.json`"
    found = [config.parent for place in EXPORTS for config in run.glob(f"{place}/config.json")]
    if found:
        newest = max(found, key=_step_of).relative_to(run).as_posix()
        return message, f"name the weights that it has exported: `{named}/{newest}`"
    if (run / "session.json").is_file():
        return message, "write the weights of a Session with `trainer.export(FOLDER)`, name FOLDER"
    made = f"`forgec export {shlex.quote(named)}`"
    return message, f"{made} writes its weights, and prints the folder to name here"


def _step_of(export: Path) -> float:
    """The step in the name of an export; that of the end of the run has none."""
    found = re.search(r"\d+$", export.name)
    return int(found[0]) if found else math.inf


def digest(path: Path) -> str:
    """Return the sha256 of a file; for a folder, that of the sorted list of its files with their
    digests."""
    import hashlib  # loads OpenSSL; `missing_file_help` alone does not need it

    if path.is_dir():
        files = sorted(f for f in path.rglob("*") if f.is_file())
        listing = "".join(f"{f.relative_to(path).as_posix()} {digest(f)}\n" for f in files)
        return hashlib.sha256(listing.encode()).hexdigest()
    state = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            state.update(chunk)
    return state.hexdigest()
