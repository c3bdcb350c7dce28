"""A replay says which settings were changed after the step that it repeats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forgedsl.runtime.replay import changed_since

CHANGE = "services.trainer.optimizer.lr: 0.0002 -> 0.0001"


@pytest.mark.parametrize(("step", "said"), [(1, [CHANGE]), (4, [CHANGE]), (5, [])])
def test_changes_after_the_step_are_said(tmp_path: Path, step: int, said: list[str]) -> None:
    entry = {"after_step": 4, "changes": [CHANGE]}
    (tmp_path / "changes.jsonl").write_text(json.dumps(entry) + "\n")
    assert changed_since(tmp_path, step) == said


def test_a_run_without_changes_has_none(tmp_path: Path) -> None:
    assert changed_since(tmp_path, 1) == []
