"""`forgec export --best EVAL`: the checkpoint whose weights an eval liked best."""

import json
from pathlib import Path

import pytest

from forgedsl.cli import export
from forgedsl.cli.export import chosen
from forgedsl.cli.overrides import UsageError
from forgedsl.lower import job as spec

MEASURED = {2: 0.9, 4: 0.4, 6: 0.4, 8: 0.7}


@pytest.fixture
def run(tmp_path: Path, make_job) -> Path:
    """A run with checkpoints of steps 2, 4, 6 and 7, and two evals of the same values."""
    common = {"dataset": "d", "service": "s", "every": 2}
    sampling = spec.Sampling(max_tokens=4)
    evals = {
        "nll": spec.Eval(loss="sft", **common),
        "score": spec.Eval(score="r", sampling=sampling, **common),
    }
    (tmp_path / "job.json").write_text(make_job(evals=evals).model_dump_json())
    events = [
        {"kind": f"eval.{edge}", "id": f"{name}{step}", "time": float(step), "name": name,
         "step": step, "value": value}
        for name in evals for step, value in MEASURED.items() for edge in ("start", "end")
    ]  # fmt: skip
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    for step in (2, 4, 6, 7):
        folder = tmp_path / f"checkpoints/step-{step}"
        folder.mkdir(parents=True)
        (folder / "controller.json").write_text("{}")
    return tmp_path


def test_less_is_better_in_a_loss_and_worse_in_a_score(run: Path) -> None:
    assert (chosen(run, None, "nll"), chosen(run, None, "score")) == (4, 2)


@pytest.mark.parametrize(
    ("step", "best", "message"),
    [(2, "nll", "give one of them"), (None, "nil", "has no eval nil; its evals are nll, score")],
)
def test_what_cannot_be_chosen(run: Path, step: int | None, best: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        chosen(run, step, best)


def test_a_checkpoint_that_nobody_measured_is_none(run: Path) -> None:
    for step in (2, 4, 6):
        (run / f"checkpoints/step-{step}/controller.json").unlink()
    with pytest.raises(UsageError, match=r"nll was not evaluated at the step of .* \(7\)"):
        chosen(run, None, "nll")


def test_a_better_step_without_checkpoint_is_named(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export, "_write", lambda run, step, *_, **__: str(step))
    assert export.export_run(run, best="score") == "2"
    assert capsys.readouterr().err == ""
    for step in (2, 4):
        (run / f"checkpoints/step-{step}/controller.json").unlink()
    assert export.export_run(run, best="score") == "6"
    keep = json.loads((run / "job.json").read_text())["checkpoint"]["keep"] + 2
    assert capsys.readouterr().err == (
        "note: score was better where there is no checkpoint: 0.900 at step 2, 0.700 at step 8; "
        "exported is step 6, 0.400; to keep more checkpoints, set "
        f"`checkpoint {{ keep = {keep} }}`\n"
    )
