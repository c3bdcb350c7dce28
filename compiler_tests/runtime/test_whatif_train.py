"""Steps trained again: which can be, under which files, and what is shown of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forge_commands import CliRunner

import forgedsl
from forgedsl.cli.app import app
from forgedsl.errors import LaunchError, RunError
from forgedsl.runs.retrained import Retrained, as_data, render
from forgedsl.shipped import shipped_root
from forgedsl_runtime.whatif.train import startable, trained_node


@pytest.fixture(scope="module")
def run() -> Any:
    """The job of a run of grpo_math."""
    path = shipped_root() / "grpo_math.forge"
    return forgedsl.load(path, profile="none", host="8xH200").plan().job


def run_folder(folder: Path, recorded: list[int], saved: list[int]) -> dict[int, Path]:
    for step in saved:
        path = folder / f"checkpoints/step-{step}/controller.json"
        path.parent.mkdir(parents=True)
        path.touch()
    return {step: folder / f"{step}.parquet" for step in recorded}


@pytest.mark.parametrize(
    ("recorded", "saved", "chosen", "steps"),
    [
        ([1, 2, 3], [], True, [1, 2, 3]),
        ([1, 2, 3], [], False, [1, 2, 3]),
        ([4, 5, 6, 7], [4, 6], False, [7]),
        ([4, 5, 6, 7], [4, 7], False, [5, 6, 7]),
        ([5, 6], [4, 5], True, [5, 6]),
    ],
)
def test_steps_begin_where_a_trainer_can_be_brought_to(
    recorded: list[int], saved: list[int], chosen: bool, steps: list[int], tmp_path: Path
) -> None:
    files = run_folder(tmp_path, recorded, saved)
    assert [*startable(tmp_path, files, chosen=chosen)] == steps


def test_a_step_without_a_start_or_with_a_gap_is_refused(tmp_path: Path) -> None:
    files = run_folder(tmp_path, [4, 5, 7], [5])
    with pytest.raises(LaunchError, match=r"checkpoints of 5, so no recorded step has"):
        startable(tmp_path, files, chosen=True)
    files = run_folder(tmp_path / "other", [2, 3, 5], [1])
    with pytest.raises(LaunchError, match=r"step 4 of .* is not recorded"):
        startable(tmp_path / "other", files, chosen=True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lora": {"rank": 4, "alpha": 8.0}}, "does not fit `trainer`: `lora` differs"),
        ({"optimizer": {"kind": "sgd", "lr": 1e-3}}, "`optimizer.kind` differs"),
        ({"router_replay": True}, "the experts that tokens chose are not recorded"),
    ],
)
def test_a_file_whose_trainer_is_another_is_refused(
    change: dict[str, Any], said: str, run: Any
) -> None:
    assert trained_node(run, run).target == "trainer"
    values = run.model_dump(mode="json")
    values["services"]["trainer"] |= change
    with pytest.raises(RunError, match=said):
        trained_node(run, type(run).model_validate(values))


def test_a_file_of_another_model_or_service_is_refused(run: Any) -> None:
    values = run.model_dump(mode="json")
    name = values["services"]["trainer"]["model"]
    values["models"][name]["source"] = {"kind": "random", "seed": 1}
    other = type(run).model_validate(values)
    with pytest.raises(RunError, match="its model differs"):
        trained_node(run, other)
    lacks = run.model_copy(update={"services": {}})
    with pytest.raises(RunError, match="the run trains no service `trainer`"):
        trained_node(lacks, run)


def test_the_table_has_the_run_beside_the_step_trained_again() -> None:
    recorded = {"loss": 0.5, "grad_norm": 1.0, "gap/age_0": 1e-6}
    again = {"loss": 0.25, "kernel": "torch/linear", "gap/age_0": 0.02, "gap/age_0_max": 0.5}
    found = [
        Retrained(step=3, recorded=recorded, metrics=again, samples=8),
        Retrained(step=4, recorded=recorded, metrics={}),
    ]
    text = render(found, "a with b")
    assert "3     loss                  0.500          0.250" in text
    assert "no group is left in the batch of step 4: not trained" in text
    assert "differ from their sampler's by 0.0200 at the last step" in text
    first, second = as_data(found)
    assert first["metrics"] == {"loss": {"run": 0.5, "again": 0.25}}
    assert first["gap"] == 0.02
    assert second == {"step": 4, "samples": 0, "gap": None, "metrics": {}}


@pytest.mark.parametrize("words", [("--procs", "2"), ("--device", "gpu"), ("--most-gap", "0.1")])
def test_an_option_of_the_trainer_needs_one(words: tuple[str, ...], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["whatif", str(tmp_path), "--with", "a.forge", *words])
    assert done.exit_code == 2
    assert f"{words[0]} needs --train: add --train, or leave {words[0]} out" in done.stderr
