"""Resolves paths of a program: relative to its folder, or, as `forgedsl:NAME`, in the package."""

from __future__ import annotations

from pathlib import Path

SHIPPED = "forgedsl:"
PACKAGES = frozenset({"forgedsl", "forgedsl_runtime"})
"""the import packages of this project"""


def shipped_root() -> Path:
    """Return the folder that `forgedsl:` stands for."""
    import forgedsl.pipelines

    return Path(forgedsl.pipelines.__path__[0]).resolve()


def locate(path: str, base_dir: Path) -> Path:
    """Return where a path of a program points. The file need not exist."""
    if path.startswith(SHIPPED):
        return shipped_root() / path.removeprefix(SHIPPED)
    return base_dir / path
