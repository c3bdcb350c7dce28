"""`forgec replay`: what it prints, and what it writes beside the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from forge_commands import CliRunner

import forgedsl_runtime.replay
from forgedsl.cli.app import app
from forgedsl_runtime.recording import FOLDER


def test_log_probs_are_written_and_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "step-1.json").write_text("{}")
    (tmp_path / "job.json").write_text("{}")
    step = {"version": 1, "loss": 0.5, "logprobs": [[[[-0.25, -0.5]]]]}
    found: dict[str, Any] = {"recorded": step, "replayed": step | {"loss": 0.75}}

    def replayed(*_: object, out: Path, **__: object) -> dict[str, Any]:
        out.mkdir(parents=True, exist_ok=True)
        return found

    monkeypatch.setattr(forgedsl_runtime.replay, "replay", replayed)
    done = CliRunner().invoke(app, ["replay", str(tmp_path)])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["recorded"] == {"version": 1, "loss": 0.5}
    assert told["replayed"]["loss"] == 0.75
    assert json.loads(Path(told["logprobs"]).read_text()) == found
