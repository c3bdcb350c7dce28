"""Reads a .forge file from a git revision: `git:REV` or `git:REV:PATH`.

The whole folder of the file is extracted to a temporary one, so that its imports and data are those
of the revision too.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forgedsl.cli.overrides import SideError


@contextmanager
def checked_out(text: str, beside: Path | None) -> Iterator[Path]:
    """Extract the file that `text` names to a folder that is removed when the context ends."""
    _, revision, *rest = text.split(":", 2)
    if rest:
        path = Path(rest[0])
        folder = Path()
    elif beside is not None:
        path = beside.resolve()
        folder = path.parent
    else:
        raise SideError(f"{text} names no file: write git:REV:PATH")
    root = Path(_git(folder, "rev-parse", "--show-toplevel").decode().strip())
    inside = (path if path.is_absolute() else Path.cwd() / path).resolve()
    if not inside.is_relative_to(root):
        raise SideError(f"{path} is not in the repository {root}")
    name = inside.relative_to(root)
    here = name.parent.as_posix()
    archive = _git(root, "archive", "--format=tar", revision, "--", here)
    with tempfile.TemporaryDirectory(prefix="forgec-") as target:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(target, filter="data")
        file = Path(target) / name
        if not file.is_file():
            raise SideError(f"{name} is not in revision {revision}")
        yield file


def _git(folder: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=True).stdout
    except FileNotFoundError as error:
        raise SideError("git is not installed") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        raise SideError(lines[-1] if lines else f"git {arguments[0]} failed") from error
