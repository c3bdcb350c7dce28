"""A run folder of a version with other settings: what cannot read it says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic import make_job

from forgedsl.errors import LaunchError
from forgedsl.lower.job import OLD_RUNTIME
from forgedsl.runs.data import load_run
from forgedsl_runtime.export import export
from forgedsl_runtime.replay import replay

COMMANDS: dict[str, Callable[[Path], object]] = {
    "report": load_run,
    "export": lambda run: export(run, 1, run / "to"),
    "replay": lambda run: replay(run, 1, procs=None, out=run / "to"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_job_with_a_setting_that_is_gone_is_no_bug_of_ours(tmp_path: Path, command: str) -> None:
    job = make_job().model_dump(mode="json") | {"offload": "none"}
    (tmp_path / "job.json").write_text(json.dumps(job))
    (tmp_path / "batches").mkdir()
    batch = {"service": "trainer", "loss": "l", "batch": {"samples": []}, "result": {}}
    (tmp_path / "batches/step-1.json").write_text(json.dumps(batch))
    with pytest.raises(LaunchError, match=r"not a job of this version of ForgeDSL \(offload: "):
        COMMANDS[command](tmp_path)


def test_a_program_for_the_runtime_under_its_old_name_is_of_another_version(tmp_path: Path) -> None:
    job = make_job().model_dump(mode="json") | {"program": f"from {OLD_RUNTIME}.losses import f\n"}
    (tmp_path / "job.json").write_text(json.dumps(job))
    with pytest.raises(LaunchError, match=r"this version of ForgeDSL \(its program imports "):
        load_run(tmp_path)
