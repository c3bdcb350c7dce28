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
    titan = make_titan()
    titan = titan.model_copy(
        update={"dtype": "bf16", "compile": True, "activation_checkpoint": recomputed,
                "batch": titan.batch.model_copy(update={"seq_len": 64, "rows": 4})}
    )  # fmt: skip
    job = make_job(services={"trainer": titan}, losses={"recorded": recorded_loss()}, nodes=(STEP,))
    assert compiled(job) == [2, 2, 2, 2, 2]


@pytest.mark.full
@pytest.mark.timeout(240)
@pytest.mark.parametrize("recomputed", ["none", "full"])
def test_layers_that_replay_routes_are_compiled_before_the_first_step(
    make_job: Any, make_titan: Any, recomputed: str
) -> None:
    titan = make_titan()
    titan = titan.model_copy(
        update={"dtype": "bf16", "compile": True, "router_replay": True,
                "activation_checkpoint": recomputed,
                "batch": titan.batch.model_copy(update={"seq_len": 64, "rows": 4})}
    )  # fmt: skip
    job = make_job(services={"trainer": titan}, losses={"recorded": recorded_loss()}, nodes=(STEP,),
                   models={"policy": MODEL})  # fmt: skip
    counts = compiled(job)
    assert counts[0] > 0
    assert counts[1:] == [counts[1]] * 4


def compiled(job: Any) -> list[int]:
    """Graphs that were compiled: by the first passes, then the probe, then three steps."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], input=job.model_dump_json(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[int] = json.loads(done.stdout.split("COUNTS")[1])
    return found
