"""Copies the files that a job reads into a run folder, and checks them there.

sources --copy_inputs--> RUN/inputs/...        large ones as symbolic links
RUN/inputs/... --inputs_beside--> sources      when a job.json is run again
job + RUN --check_inputs--> LaunchError        if a model, or what a link names, has changed
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgedsl.errors import LaunchError

if TYPE_CHECKING:
    from forgedsl.lower.job import Job

LARGE = 64 << 20
"""bytes above which a run folder has a link to a file or folder instead of a copy"""


def copy_inputs(inputs: dict[str, Path], folder: Path, *, link: bool = False) -> None:
    """Copy files and folders to their names under `folder`; with `link`, link those above LARGE."""
    import shutil

    for name, source in inputs.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.resolve() == target.resolve():
            continue
        # a link of the run that is resumed: writing through it would change the user's file
        if target.is_symlink():
            target.unlink()
        if link and size(source) > LARGE:
            target.symlink_to(source.resolve(), target_is_directory=source.is_dir())
        elif source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, target)


def size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files if file.is_file())


def inputs_beside(folder: Path) -> dict[str, Path]:
    """Return the files and links in `inputs/` of a folder, by their names in the job."""
    return {
        path.relative_to(folder).as_posix(): path
        for path in sorted((folder / "inputs").rglob("*"))
        if (path.is_file() or path.is_symlink()) and "__pycache__" not in path.parts
    }


def check_inputs(job: Job, folder: Path) -> None:
    """Compare models, Python files and linked files of a job with the hashes from its compilation.
    Copies of data must be there; they are compared when they are read.

    Raises:
        LaunchError: a file is missing or has changed.
    """
    from forgedsl.lower.paths import digest
    from forgedsl.shipped import SHIPPED

    for name, sha256, always in _files(job):
        path = folder / name
        if name.startswith(SHIPPED) or not sha256:
            continue
        where = f"{path} (a link to {os.readlink(path)})" if path.is_symlink() else str(path)
        if not path.exists():
            raise LaunchError(
                f"{where} is missing; restore it, or start a new run from the .forge file"
            )
        if not (always or path.is_symlink()):
            continue
        if (now := digest(path)) != sha256:
            raise LaunchError(
                f"{where} has changed since the job was compiled (sha256 {sha256[:12]}, now "
                f"{now[:12]}); restore it, or start a new run from the .forge file"
            )


def _files(job: Job) -> Iterator[tuple[str, str, bool]]:
    """Yield the local sources of a job: path, sha256, and True if a copy is checked too."""
    codes = {(e.path, e.sha256) for e in job.environments.values()}
    codes |= {script for e in job.environments.values() for script in e.scripts.items()}
    codes |= {(r.path, r.sha256 or "") for r in job.rewards.values() if r.path is not None}
    modules = [m for e in job.environments.values() for m in e.modules.values()]
    modules += [m for r in job.rewards.values() for m in r.modules.values()]
    codes |= {(module.path, module.sha256) for module in modules}
    codes |= set(job.extensions.items())
    yield from ((path, sha256, True) for path, sha256 in sorted(codes))
    for model in job.models.values():
        for source in (model.source, model.tokenizer):
            if source is not None and source.kind == "local":
                yield source.path, source.sha256, True
    for dataset in job.datasets.values():
        files = (part for part in parts_of(dataset.source) if hasattr(part, "path"))
        yield from ((part.path, part.sha256, False) for part in files)


def parts_of(source: Any) -> Iterator[Any]:
    """Yield the sources that a source of rows mixes, or itself."""
    if source.kind == "mixture":
        for part in source.sources:
            yield from parts_of(part)
    else:
        yield source
