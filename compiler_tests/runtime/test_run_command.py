"""`forgec run`: command line, run folder, job.json, resume. Nothing is launched here."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from synthetic import make_job

from forgedsl.cli import inputs
from forgedsl.cli import run as command
from forgedsl.cli.host import detect_host
from forgedsl.cli.overrides import UsageError
from forgedsl.cli.resuming import (
    Difference,
    differences,
    load_run_job,
    note_changes,
    path_of,
    refused,
    rehashed,
    split,
    with_changes,
)
from forgedsl.cli.running import Prepared, RunOptions
from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl.lower.job import Job
from forgedsl.lower.paths import digest
from forgedsl.plan.gpus import detect_gpus

SHIPPED = spec.LocalModel(path="forgedsl:models/tiny_math", sha256="")


def request(**parts: object) -> RunOptions:
    empty = {"file": None, "overrides": (), "profile": "auto", "run_dir": None, "resume": None}
    return RunOptions(**(empty | {"quiet": True} | parts))


def test_run_folders_do_not_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = {command.new_run_dir(None, "example") for _ in range(3)}
    assert len(folders) == 3
    assert all(folder.parent == Path("runs") for folder in folders)


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match=r"continue that run with .*--resume"):
        command.new_run_dir(tmp_path, "example")


HOLD = """
import pathlib, sys
from forgedsl.cli.run_lock import claim
claim(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has `tmp_path` for its run."""
    held = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert held.stdout is not None
    assert held.stdout.readline() == "held\n"
    yield held
    held.kill()
    held.communicate()


def test_a_run_that_is_alive_is_not_resumed(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    (tmp_path / "job.json").write_text(make_job().model_dump_json())
    with pytest.raises(UsageError, match=rf"in use by process {holder.pid} on .*, since "):
        command.execute(request(resume=tmp_path))


def test_two_runs_do_not_share_a_folder(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(UsageError, match=rf"in use by process {holder.pid}"):
        command.new_run_dir(tmp_path, "example")


def test_a_killed_run_gives_its_folder_free(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait(60)
    assert command.new_run_dir(tmp_path, "example") == tmp_path


def test_a_run_folder_is_enough_to_run_the_job_again(tmp_path: Path) -> None:
    source = tmp_path / "grading.py"
    source.write_text("x = 1\n")
    job = make_job()
    first, second = tmp_path / "first", tmp_path / "second"
    command.write_run_dir(first, Prepared(job=job, inputs={"inputs/rewards/grading.py": source}))
    again = command.prepare(request(), first / "job.json")
    assert isinstance(again, Prepared)
    command.write_run_dir(second, again)
    names = [sorted(p.relative_to(f) for f2 in [f] for p in f2.rglob("*")) for f in (first, second)]
    assert names[0] == names[1]
    assert again.job == job


def with_a_model(folder: Path) -> tuple[spec.Job, Path]:
    """A job with a local model in `folder`."""
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    source = spec.LocalModel(path="inputs/model", sha256=digest(model))
    models = {"policy": spec.Model(source=source, dtype="f32", context=64)}
    return make_job().model_copy(update={"models": models}).sealed(), model


def test_a_large_model_is_referred_to_and_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "LARGE", 8)
    job, model = with_a_model(tmp_path)
    first, second = tmp_path / "first", tmp_path / "second"
    command.write_run_dir(first, Prepared(job=job, inputs={"inputs/model": model}))
    assert (first / "inputs/model").readlink() == model
    again = command.prepare(request(), first / "job.json")
    assert isinstance(again, Prepared)
    command.write_run_dir(second, again)
    assert (second / "inputs/model").readlink() == model


def test_a_model_that_changed_or_went_away_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "LARGE", 8)
    job, model = with_a_model(tmp_path)
    command.write_run_dir(tmp_path / "run", Prepared(job=job, inputs={"inputs/model": model}))
    (model / "model.safetensors").write_bytes(b"others!")
    with pytest.raises(LaunchError, match=r"\(a link to .*model\) has changed since"):
        command.prepare(request(), tmp_path / "run/job.json")
    shutil.rmtree(model)
    with pytest.raises(LaunchError, match=r"\(a link to .*model\) is missing"):
        inputs.check_inputs(job, tmp_path / "run")


def test_a_python_file_that_changed_is_told_before_anything_starts(tmp_path: Path) -> None:
    sha256 = hashlib.sha256(b"as it was").hexdigest()
    reward = spec.Reward(kind="python", function="f", path="inputs/r.py", sha256=sha256)
    job = make_job().model_copy(update={"rewards": {"right": reward, "same": reward}})
    path = tmp_path / "inputs/r.py"
    path.parent.mkdir()
    path.write_bytes(b"as it was")
    inputs.check_inputs(job, tmp_path)
    path.write_bytes(b"as it is")
    with pytest.raises(
        LaunchError, match=r"inputs/r\.py has changed since .*; restore it, or start"
    ):
        inputs.check_inputs(job, tmp_path)


def test_missing_data_is_told_by_its_path_in_the_run(tmp_path: Path) -> None:
    source = spec.FileSource(kind="csv", path="inputs/data/minus.csv", sha256="0" * 64)
    dataset = spec.Dataset(source=source, tokenizer="policy", shuffle=17)
    job = make_job().model_copy(update={"datasets": {"minus": dataset}})
    with pytest.raises(LaunchError, match=r"run/inputs/data/minus\.csv is missing; restore it"):
        inputs.check_inputs(job, tmp_path / "run")


def test_a_compiled_job_takes_no_overrides(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"already compiled, so a\.b=1 cannot be applied"):
        command.prepare(request(overrides=("a.b=1",)), tmp_path / "job.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a job"),
        (make_job().model_copy(update={"seed": 3}).model_dump_json(), "was changed after"),
    ],
)
def test_a_broken_job_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        command.prepare(request(), tmp_path / "job.json")


def test_a_missing_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        command.prepare(request(), tmp_path / "job.json")


def test_resume_needs_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(make_job().model_dump_json())
    with pytest.raises(UsageError, match="no checkpoint to continue from"):
        load_run_job(tmp_path)


def longer(job: Job) -> Job:
    schedule = job.schedule.model_copy(update={"steps": 300})
    return job.model_copy(update={"schedule": schedule, "summary": ("other words",)}).sealed()


def test_the_file_of_a_run_is_found_above_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, run = make_job(), tmp_path / "runs" / "first"
    node = made.nodes[0].model_copy(update={"origin": "a.forge:3:1"})
    job = made.model_copy(update={"nodes": (node,)})
    run.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "runs")
    assert path_of(job, Path("first")) == "a.forge"
    (tmp_path / "a.forge").touch()
    assert path_of(job, Path("first")) == "../a.forge"
    (run.parent / "a.forge").touch()
    assert path_of(job, Path("first")) == "a.forge"
    assert path_of(made, Path("first")) == ""


def test_resume_may_run_longer() -> None:
    job = make_job()
    assert differences(job, longer(job)) == []
    changed = with_changes(job, longer(job))
    assert changed.schedule.steps == 300
    assert changed.content_hash == changed.digest()
    assert changed.summary == ("other words",)  # it names the number of steps


def test_what_stops_a_resume_is_said_as_it_is_set() -> None:
    rate = Difference("services.trainer.optimizer.lr", 0.1, 0.2)
    said = "--allow numerics accepts these changes:\n  trainer.optimizer.lr: 0.1 -> 0.2"
    assert refused([rate]) == said
    inner = [Difference("nodes.1.n", 8, 4), Difference("params.group", 8, 4)]
    first, *others = refused(inner).splitlines()
    assert "may change its length" in first
    assert others == ["  group: 8 -> 4"]


def test_a_resume_that_is_refused_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = longer(make_job())
    schedule = job.schedule.model_copy(update={"steps": 200})
    shorter = job.model_copy(update={"schedule": schedule}).sealed()
    (tmp_path / "job.json").write_text(job.model_dump_json())
    last = tmp_path / "checkpoints/step-300/controller.json"
    last.parent.mkdir(parents=True)
    last.write_text("{}")
    monkeypatch.setattr(command, "prepare", lambda *_: Prepared(job=faster(shorter), inputs={}))
    with pytest.raises(
        UsageError, match="has done 300 steps, but only 200 are asked for; for more, set schedule"
    ):
        command.execute(request(resume=tmp_path, file=Path("a.forge"), allow="numerics"))
    assert (tmp_path / "job.json").read_text() == job.model_dump_json()
    assert not (tmp_path / "changes.jsonl").exists()


def with_data(folder: Path, text: str, max_bad_rows: float = 0.05) -> Job:
    """A job whose dataset is a file beside it."""
    path = folder / "inputs/rows.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    source = spec.FileSource(kind="jsonl", path="inputs/rows.jsonl", sha256=digest(path))
    data = spec.Dataset(source=source, tokenizer="policy", shuffle=None, max_bad_rows=max_bad_rows)
    return make_job().model_copy(update={"datasets": {"sums": data}}).sealed()


def test_a_difference_of_times_or_sizes_has_its_unit() -> None:
    assert str(Difference("rewards.a.timeout", 10.0, 600.0)) == (
        "rewards.a.timeout: 10.0 s -> 600.0 s"
    )
    assert str(Difference("rewards.a.memory", None, 1024)) == "rewards.a.memory: null -> 1024 bytes"


def test_a_file_that_changed_is_named(tmp_path: Path) -> None:
    old, new = with_data(tmp_path, "{"), with_data(tmp_path, "{}")
    assert [str(found) for found in differences(old, new)] == [
        "inputs/rows.jsonl, which datasets.sums.source reads, has changed since the run began"
    ]


def test_a_resume_with_overrides_says_the_command_that_can_have_them(tmp_path: Path) -> None:
    step = tmp_path / "checkpoints/step-3/controller.json"
    step.parent.mkdir(parents=True)
    step.write_text("{}")
    (tmp_path / "job.json").write_text(make_job().model_dump_json())
    asked = request(resume=tmp_path, file=None, overrides=("schedule.steps=6",))
    wanted = rf"forgec run \S+ --resume {tmp_path} schedule\.steps=6"
    with pytest.raises(UsageError, match=wanted):
        command.execute(asked)


def test_resume_may_tolerate_more_bad_rows(tmp_path: Path) -> None:
    old, new = with_data(tmp_path, "{}"), with_data(tmp_path, "{}", max_bad_rows=0.5)
    assert differences(old, new) == []
    assert with_changes(old, new).datasets["sums"].max_bad_rows == 0.5


def test_resume_may_change_data_when_it_is_allowed(tmp_path: Path) -> None:
    old = with_data(tmp_path, "{")
    new = with_data(tmp_path, "{}")
    (found,) = differences(old, new)
    assert found.setting == "datasets.sums.source.sha256"
    assert split([found], "numerics") == ([found], [])
    assert split([found], "data") == ([], [found])
    assert with_changes(old, new).datasets == old.datasets
    assert with_changes(old, new, allowed="data").datasets == new.datasets
    assert rehashed(old, tmp_path) == new


def test_data_that_a_run_would_refuse_are_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {"policy": spec.Model(source=SHIPPED, dtype="f32", context=64)}
    run, mended = tmp_path / "run", tmp_path / "mended"
    old = with_data(run, '{"q": "1+1="}\n').model_copy(update={"models": models}).sealed()
    new = with_data(mended, "no JSON\n" * 200).model_copy(update={"models": models}).sealed()
    (run / "job.json").write_text(old.model_dump_json())
    (run / "checkpoints/step-3").mkdir(parents=True)
    (run / "checkpoints/step-3/controller.json").write_text("{}")
    inputs = {"inputs/rows.jsonl": mended / "inputs/rows.jsonl"}
    monkeypatch.setattr(command, "prepare", lambda *_: Prepared(job=new, inputs=inputs))
    with pytest.raises(LaunchError, match=r"rows\.jsonl"):
        command.execute(request(resume=run, file=Path("a.forge"), allow="data"))
    assert (run / "inputs/rows.jsonl").read_text() == '{"q": "1+1="}\n'


def test_a_line_that_moved_is_no_difference() -> None:
    job = make_job()
    moved = job.model_copy(update={"program": "return 1  # a.forge:3:4"})
    assert differences(moved, moved.model_copy(update={"program": "return 1  # a.forge:5:4"})) == []
    assert differences(moved, moved.model_copy(update={"program": "return 2  # a.forge:3:4"}))


def test_resume_may_not_change_what_is_trained() -> None:
    job = make_job()
    other = job.model_copy(update={"seed": 3, "params": job.params | {"eps": 0.3}})
    said = [str(found) for found in differences(job, other)]
    assert said == ["params.eps: 0.2 -> 0.3", "seed: 17 -> 3"]


def faster(job: Job) -> Job:
    trainer = job.services["trainer"]
    optimizer = trainer.optimizer.model_copy(update={"lr": 1e-3})
    services = job.services | {"trainer": trainer.model_copy(update={"optimizer": optimizer})}
    return job.model_copy(update={"services": services}).sealed()


def test_resume_changes_the_optimizer_when_that_is_said(tmp_path: Path) -> None:
    job = make_job()
    found = differences(job, faster(job))
    change = {"setting": "services.trainer.optimizer.lr", "before": 0.0002, "after": 0.001}
    assert split(found, "") == ([Difference(**change)], [])
    left, taken = split(found, "numerics")
    note_changes(tmp_path, taken)
    assert (left, (tmp_path / "changes.jsonl").read_text()) == ([], json.dumps(
        {"after_step": 0, "changes": [change]}
    ) + "\n")  # fmt: skip
    changed = with_changes(job, faster(job), allowed="numerics")
    assert changed.services["trainer"].optimizer.lr == 1e-3


def test_resume_changes_nothing_else_even_then() -> None:
    job = make_job()
    other = faster(job).model_copy(update={"seed": 3})
    assert split(differences(job, other), "numerics")[0] == [Difference("seed", 17, 3)]


def test_an_optimizer_takes_on_what_the_job_says_after_a_load() -> None:
    import torch

    from forgedsl_runtime.services.titan.upstream.optimizers import set_optimizer

    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
    optimizer.step()
    scheduler.step()
    opt = spec.Optimizer(lr=0.5, weight_decay=0.25)
    set_optimizer([optimizer], SimpleNamespace(schedulers=[scheduler]), opt)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.25, 0.25)
    scheduler.step()
    assert group["lr"] == 0.5 / 3


def test_host_has_what_a_plan_asks_for() -> None:
    found = detect_host()
    assert found["cpus"] >= 1
    assert found["memory"] > 2**28
    assert found["gpus"] == len(detect_gpus())


def test_gpus_are_read_from_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    lines = (
        "NVIDIA H200, 143771, GPU-aa",
        "NVIDIA H200, 143771, GPU-bb",
        "NVIDIA L4, 23034, GPU-bc",
    )
    tool.write_text("".join(["#!/bin/sh\n", *(f"echo '{line}'\n" for line in lines)]))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    h200, l4 = ("H200", 143771 * 2**20), ("L4", 23034 * 2**20)
    masks = {"2,0": [l4, h200], "GPU-bc": [l4], "1,7": [h200], "0,-1,1": [h200], "": []}
    assert detect_gpus() == [h200, h200, l4]
    for mask, seen in masks.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
        assert detect_gpus() == seen, mask
