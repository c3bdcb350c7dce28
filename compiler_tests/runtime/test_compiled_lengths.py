"""A trainer's layers are compiled before its first step, and not again for other lengths."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_trainer_experts import MODEL
from test_trainer_ranks import recorded_loss
from test_warm_up import STEP

SCRIPT = Path(__file__).parent / "compiled_lengths.py"


@pytest.mark.full
@pytest.mark.timeout(240)
@pytest.mark.parametrize("recomputed", ["none", "selective", "full"])
def test_layers_are_compiled_once_with_and_once_without_gradients(
    make_job: Any, make_titan: Any, recomputed: str
) -> None:
    trainer = make_titan().model_copy(update={"activation_checkpoint": recomputed})
    assert compiled(make_job, trainer) == [2, 2, 2, 2, 2]


@pytest.mark.full
@pytest.mark.timeout(240)
@pytest.mark.parametrize("recomputed", ["none", "full"])
def test_layers_that_replay_routes_are_compiled_before_the_first_step(
    make_job: Any, make_titan: Any, recomputed: str
) -> None:
    """The probe has no routes, so its layers are compiled once more."""
    trainer = make_titan().model_copy(
        update={"activation_checkpoint": recomputed, "router_replay": True}
    )
    assert compiled(make_job, trainer, models={"policy": MODEL}) == [2, 3, 3, 3, 3]


def compiled(make_job: Any, trainer: Any, **parts: Any) -> list[int]:
    """Graphs that were compiled after the first passes, after the probe, and after each of three
    steps."""
    batch = trainer.batch.model_copy(update={"seq_len": 64, "rows": 4})
    trainer = trainer.model_copy(update={"dtype": "bf16", "compile": True, "batch": batch})
    job = make_job(
        services={"trainer": trainer}, losses={"recorded": recorded_loss()}, nodes=(STEP,), **parts
    )
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], input=job.model_dump_json(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[int] = json.loads(done.stdout.split("COUNTS")[1])
    return found
