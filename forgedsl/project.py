"""[tool.forgec] of the nearest pyproject.toml above a .forge file.

The files of a command, and the profiles of a file, ask for the same pyproject.toml. It is parsed
once per process, and again when it changes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from forgedsl.records import dataclass

_SECTION = re.compile(rb"""\btool["']?\s*(?:\.\s*["']?forgec\b|\]|=)""")
"""`tool.forgec`, or a table `tool`. Most projects have neither, and a TOML parser takes longer to
import than a small .forge file takes to check."""


class ProjectError(Exception):
    """A pyproject.toml cannot be read; the message names it and gives the reason."""


@dataclass(frozen=True, slots=True)
class Project:
    """A pyproject.toml, and its table [tool.forgec]."""

    path: Path
    section: dict[str, Any]


_parsed: dict[Path, tuple[tuple[int, int], dict[str, Any]]] = {}
"""path -> (time and size of the file, its section)"""


def project_of(path: Path) -> Project | None:
    """Return the nearest pyproject.toml above a file; None if there is none.

    Raises ProjectError if it is no TOML, or if `tool.forgec` is no table."""
    for folder in path.resolve().parents:
        found = folder / "pyproject.toml"
        if found.is_file():
            return Project(found, _section(found))
    return None


def _section(path: Path) -> dict[str, Any]:
    facts = path.stat()
    version = (facts.st_mtime_ns, facts.st_size)
    known = _parsed.get(path)
    if known is None or known[0] != version:
        known = _parsed[path] = (version, _parse(path))
    return known[1]


def _parse(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    if not _SECTION.search(content):
        return {}
    import tomllib

    try:
        data = tomllib.loads(content.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProjectError(f"{path}: {error}") from error
    tool = data.get("tool", {})
    section = tool.get("forgec", {}) if isinstance(tool, dict) else {}
    if not isinstance(section, dict):
        raise ProjectError(f"{path}: `tool.forgec` must be a table")
    return section
