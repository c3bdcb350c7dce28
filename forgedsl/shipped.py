"""Resolves paths of a program: beside its file, or, as `forgedsl:NAME`, in the package."""

from __future__ import annotations

from pathlib import Path

SHIPPED = "forgedsl:"


def shipped_root() -> Path:
    """The folder that `forgedsl:` names."""
    import forgedsl.pipelines

    return Path(forgedsl.pipelines.__path__[0]).resolve()


def locate(path: str, base_dir: Path) -> Path:
    """Return the location of a path of a program; it need not exist."""
    if path.startswith(SHIPPED):
        return shipped_root() / path.removeprefix(SHIPPED)
    return base_dir / path
