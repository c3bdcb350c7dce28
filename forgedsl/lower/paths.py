"""Maps files of a program to names in the job, and lists the files to copy beside job.json.

    shipped with the package    forgedsl:data/arithmetic.jsonl
    any other file or folder    inputs/data/problems.jsonl    (`..` becomes `up`)
    an absolute path            inputs/3f2a9c01-problems.jsonl

A job has no absolute paths. `InputFiles` resolves, hashes and collects files; a missing one is
P210.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from forgedsl.diagnostics import Diagnostic, Reporter, error
from forgedsl.lower.missing import gather
from forgedsl.mistakes.suggest import as_written, did_you_mean, nearest
from forgedsl.shipped import SHIPPED, locate, shipped_root
from forgedsl.source import Span

CHUNK = 1 << 20
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
