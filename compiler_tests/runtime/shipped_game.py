"""A run of the shipped game (pipelines/guess_math.forge) from a folder of its own, for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PIPELINES = Path(__file__).parents[2] / "pipelines"


def played(
    folder: Path,
    *,
    steps: int,
    edits: Sequence[tuple[str, str]] = (),
    environment: Callable[[str], str] = lambda source: source,
) -> Path:
    """Run the game with `edits` of its file and of the source of its `environment`. Every batch is
    recorded. Return the run folder."""
    text = (PIPELINES / "guess_math.forge").read_text("utf-8")
    for form in ("local", "jsonl"):
        text = text.replace(f'{form}("', f'{form}("forgedsl:')
    for old, new in edits:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "game.forge").write_text(text, "utf-8")
    (folder / "environments").mkdir()
    source = environment((PIPELINES / "environments/sums.py").read_text("utf-8"))
    (folder / "environments/sums.py").write_text(source, "utf-8")
    command = [
        "run", "game.forge", f"schedule.steps={steps}", "prompts=6", "held_out.limit=8",
        "--run-dir", "run", "--record-batches", str(steps),
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", *command],
        cwd=folder, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run"


def lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
