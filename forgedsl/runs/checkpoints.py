"""Checkpoints of a run folder: finds complete ones, and the command that continues from the newest.

A checkpoint is complete if it has controller.json, which is written last. One that a crash of the
host has corrupted is skipped.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path

from forgedsl import surface
from forgedsl.mistakes.suggest import did_you_mean, nearest

WHOLE = "controller.json"
SWEEP = "sweep.json"
"""the manifest of a sweep, in the folder of its runs"""
SESSION = "session.json"
"""in the folder of a Session: the states that it saved, by name"""
REPLAY = "replay.npz"
"""file of the groups in replay buffers"""


def checkpoint_steps(run_dir: Path) -> list[int]:
    """Return the steps of complete checkpoints, the newest last."""
    return sorted(step for step, path in _found(run_dir) if _reads(path))


def spoilt_steps(run_dir: Path) -> list[int]:
    """Return the steps of checkpoints that were complete but are corrupted."""
    return sorted(step for step, path in _found(run_dir) if not _reads(path))


def _found(run_dir: Path) -> list[tuple[int, Path]]:
    found = run_dir.glob(f"checkpoints/step-*/{WHOLE}")
    return [(int(path.parent.name.removeprefix("step-")), path) for path in found]


def _reads(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except ValueError:
        return False


def last_step(run_dir: Path) -> int:
    """Return the step of the newest complete checkpoint; 0 if there is none."""
    return max(checkpoint_steps(run_dir), default=0)


def drop_partial(run_dir: Path) -> None:
    """Remove incomplete checkpoints of a killed run, which would count among those to keep."""
    for folder in run_dir.glob("checkpoints/step-*"):
        if not (folder / WHOLE).exists():
            shutil.rmtree(folder)


def with_points(named: Iterable[Path]) -> list[Path]:
    """Return run folders, with the runs of a sweep in the place of its folder, in the order of the
    sweep. The manifest is left out, since `runs/sweep/*` names it too."""
    found: list[Path] = []
    for path in named:
        if path.name == SWEEP and path.is_file():
            continue
        try:
            points = json.loads((path / SWEEP).read_text(encoding="utf-8"))["points"]
        except (FileNotFoundError, NotADirectoryError):
            found.append(path)
            continue
        runs = (path / point["folder"] for point in points)
        found += [run for run in runs if (run / "job.json").is_file()]
    return found


def no_run(folder: Path) -> str:
    """Return the message for a folder that is no run, with a suggestion."""
    if folder.is_file():
        named = f": {folder.parent}" if folder.suffix == ".json" else ""
        return f"{folder} is a file, but a run is a folder{named}"
    if not folder.is_dir():
        runs = [*folder.parent.glob("*/job.json"), *Path("runs").glob("*/job.json")]
        by_name = {path.parent.name: path.parent for path in runs}
        close = did_you_mean(tuple(str(by_name[n]) for n in nearest(folder.name, by_name)))
        return f"there is no folder {folder}{'; ' * bool(close)}{close}"
    inside = sorted(folder.glob("*/job.json"), key=lambda path: path.stat().st_mtime)
    newest = f"; the newest run in it is {inside[-1].parent}" if inside else ""
    return f"{folder} is not a run folder: it has no job.json{newest}"


def keep_newest(run_dir: Path, count: int) -> None:
    """Remove complete checkpoints except the newest `count`. If the process is killed meanwhile,
    the remains are an incomplete checkpoint."""
    for step in checkpoint_steps(run_dir)[:-count]:
        folder = run_dir / f"checkpoints/step-{step}"
        (folder / WHOLE).unlink()
        shutil.rmtree(folder, ignore_errors=True)


def resume_command(run_dir: Path) -> str:
    """Return the command that continues the run; empty if there is nothing to continue from."""
    if not last_step(run_dir):
        return ""
    here = Path.cwd()
    run_dir = run_dir.resolve()
    shown = run_dir.relative_to(here) if run_dir.is_relative_to(here) else run_dir
    python = f'forgedsl.open_run("{shown}").resume()'
    return surface.call(f"run --resume {shlex.quote(str(shown))}", python)
