"""Check that the files of a checkpoint are intact, before a run starts from it.

RUN, step --.metadata--> positions of tensors --first and last bytes--> LaunchError | nothing
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forgedsl.errors import LaunchError
from forgedsl.runs.checkpoints import checkpoint_steps

BEGIN, END, END_SIZE = b"PK\3\4", b"PK\5\6", 22
"""first and last bytes of each tensor: torch.save writes a zip without a comment"""


def check_checkpoint(run_dir: Path, step: int, spoilt: Callable[[Path], str]) -> None:
    """Check the checkpoint from which a run is to resume. `spoilt` returns what is wrong with the
    files of a checkpoint, or "".

    Raises:
        LaunchError: a file is missing, cut or overwritten; the error names an earlier good
            checkpoint.
    """
    folder = run_dir / f"checkpoints/step-{step}"
    if problem := spoilt(folder):
        earlier = (s for s in reversed(checkpoint_steps(run_dir)) if s < step)
        left = next((s for s in earlier if not spoilt(run_dir / f"checkpoints/step-{s}")), None)
        run, aside = shlex.quote(str(run_dir)), shlex.quote(str(run_dir / f"spoilt-step-{step}"))
        raise LaunchError(
            f"the checkpoint of step {step} cannot be read: {problem}; "
            + (
                "no earlier one is whole, so start it again in another folder: "
                f"forgec run {run}/job.json"
                if left is None
                else f"the one of step {left} is whole, put this one aside to go on from it: "
                f"mv {run}/checkpoints/step-{step} {aside} && forgec run --resume {run}"
            )
        )


def spoilt(folder: Path) -> str:
    """Return what is wrong with the files of a checkpoint; "" if files have their full length and
    every tensor has its first and last bytes."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    try:
        stored = FileSystemReader(str(folder)).read_metadata().storage_data
    except OSError as error:
        return f"{folder / '.metadata'}: {error.strerror}"
    except Exception as error:  # whatever a pickle of other bytes comes to
        return f"{folder / '.metadata'} is spoilt ({type(error).__name__}: {error})"
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
                return f"{path} is cut: {size:,} of {need:,} bytes are there"
            for part in parts:
                for at, mark in ((0, BEGIN), (part.length - END_SIZE, END)):
                    file.seek(part.offset + at)
                    if file.read(len(mark)) != mark:
                        return f"{path} is spoilt at byte {part.offset + at:,}"
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""
