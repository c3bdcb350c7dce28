"""`forgedsl.load`: what the commands say, as objects; and one run of its own process."""

from __future__ import annotations

import builtins
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import forgedsl
from forgedsl.cli.main import main
from forgedsl.cli.running import MADE, PREPARED
from forgedsl.errors import RunError, SourceError
from forgedsl.python.results import RunResult
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.interrupt import Interrupt

PIPELINES = Path(__file__).parents[2] / "pipelines"
GRPO = PIPELINES / "grpo_math.forge"
HOT = "generator.sampling.temperature=0.7"


def command(capsys: Any, monkeypatch: Any, *words: str) -> tuple[str, str]:
    """(stdout, stderr) of `forgec WORDS`."""
    monkeypatch.setattr("sys.argv", ["forgec", *words])
    with pytest.raises(SystemExit):
        main()
    out, err = capsys.readouterr()
    return out, err


def in_python(said: str) -> str:
    """What a command says, with the override as Python writes it."""
    said = said.replace("by --fix", "by forgec lint --fix")
    return said.replace(f"--set {HOT}", f'p.set("{HOT}")')


def test_the_pages_are_those_of_the_commands(capsys: Any, monkeypatch: Any) -> None:
    cpu = forgedsl.load(GRPO, profile="cpu", set=[HOT], group=4)
    words = (str(GRPO), "--profile", "cpu", "--set", HOT, "--set", "group=4")
    said = command(capsys, monkeypatch, "lint", *words)[0]
    assert repr(cpu.lint()) + "\n" == in_python(said)
    good = forgedsl.load(GRPO, profile="cpu", group=4)
    words = (str(GRPO), "--profile", "cpu", "--set", "group=4")
    assert repr(good.plan()) == command(capsys, monkeypatch, "plan", *words)[0]
    assert (
        repr(good.graph("mesh"))
        == command(capsys, monkeypatch, "graph", *words, "--view", "mesh")[0]
    )


def test_bad_input_prints_as_the_command(capsys: Any, monkeypatch: Any) -> None:
    pipeline = forgedsl.load(GRPO, profile="cpu", set=[HOT])
    with pytest.raises(forgedsl.PipelineError) as raised:
        pipeline.run()
    said = command(capsys, monkeypatch, "run", str(GRPO), "--profile", "cpu", "--set", HOT)[1]
    assert str(raised.value).strip() == in_python(said).strip()
    assert "error[L411]" in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"groop": 4}, r"error\[F1\d\d\].*groop"),
        ({"set": ["group"]}, r"error\[F121\]: `group` is not an override"),
        ({"profile": "cpus"}, r"error\[F1\d\d\].*cpus"),
        ({"host": "8xBanana"}, 'host="8xBanana": unknown GPU'),
    ],
)
def test_a_mistake_in_the_arguments(given: dict[str, Any], said: str) -> None:
    with pytest.raises(forgedsl.PipelineError, match=said):
        forgedsl.load(GRPO, **given)


def test_a_missing_file_and_a_broken_one(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="S016"):
        forgedsl.load(tmp_path / "none.forge")
    (tmp_path / "a.forge").write_text("forge 1\nparam b : int = c\n")
    with pytest.raises(forgedsl.PipelineError, match=r"error\[F101\]: undefined name `c`"):
        forgedsl.load(tmp_path / "a.forge")


def test_a_notebook_shows_the_diagnostics_and_no_frames(tmp_path: Path) -> None:
    (tmp_path / "a.forge").write_text("forge 1\nparam b : int = c\n")
    with pytest.raises(forgedsl.PipelineError) as raised:
        forgedsl.load(tmp_path / "a.forge")
    (text,) = raised.value._render_traceback_()
    assert "undefined name `c`" in text
    assert "Traceback" not in text


def test_findings_are_a_sequence() -> None:
    found = forgedsl.load(GRPO, profile="cpu", set=[HOT]).lint()
    assert [each.code for each in found.errors] == ["L411"]
    assert len(found) == len([*found.errors, *found.warnings])
    assert found._repr_html_().startswith("<pre")


def test_values_of_python_are_values_of_the_file() -> None:
    pipeline = forgedsl.load(GRPO, profile="cpu", group=6).set("schedule.steps=3", eps=0.1)
    values = pipeline.program.params
    assert (values["group"].value, values["eps"].value) == (6, 0.1)
    assert pipeline.plan().document["job"]["schedule"]["steps"] == 3


def test_a_picture_is_saved_by_its_name(tmp_path: Path) -> None:
    picture = forgedsl.load(GRPO, profile="cpu").graph()
    assert picture.save(tmp_path / "g.html").read_text().startswith("<!")
    assert picture._repr_html_().lstrip().startswith("<svg")
    with pytest.raises(forgedsl.PipelineError, match="there is no format 'pdf'"):
        picture.save(tmp_path / "g.pdf")
    with pytest.raises(forgedsl.PipelineError, match="there is no view 'flow'"):
        forgedsl.load(GRPO, profile="cpu").graph("flow")


def test_a_loss_is_the_one_that_trains() -> None:
    import torch

    pipeline = forgedsl.load(PIPELINES / "dapo_math.forge", profile="cpu")
    name = next(iter(pipeline.plan().job.losses))
    loss = pipeline.loss(name)
    logits = torch.zeros(1, 2, 4, requires_grad=True)
    ones = torch.ones(1, 2)
    out = loss(
        logits=logits, labels=torch.zeros(1, 2, dtype=torch.long), mask=ones.bool(),
        behavior=-ones, adv=torch.ones(1),
    )  # fmt: skip
    assert out.loss.isfinite()
    with pytest.raises(forgedsl.PipelineError, match="there is no loss 'dap'"):
        pipeline.loss("dap")


def test_another_host_is_planned_for_and_not_run_on() -> None:
    pipeline = forgedsl.load(GRPO, host="8xH200")
    assert "H200" in repr(pipeline.plan())
    with pytest.raises(forgedsl.PipelineError, match="planned for 8xH200"):
        pipeline.run()


def test_a_folder_that_holds_no_run(tmp_path: Path) -> None:
    with pytest.raises(forgedsl.PipelineError, match="not a run folder"):
        forgedsl.open_run(tmp_path)


def without_pandas(monkeypatch: Any) -> None:
    whole = builtins.__import__

    def fails(name: str, *args: Any) -> Any:
        if name == "pandas":
            raise ModuleNotFoundError(name)
        return whole(name, *args)

    monkeypatch.setattr(builtins, "__import__", fails)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: Any) -> RunResult:
    """A supervised run of two steps, in the background."""
    folder = tmp_path_factory.mktemp("python") / "run"
    pipeline = forgedsl.load(PIPELINES / "sft_math.forge", steps=2, set=["trainer.batch.rows=4"])
    running = pipeline.start(folder)
    assert running.folder == folder
    return running.result(timeout=240)


def test_a_run_leaves_what_a_command_leaves(trained: RunResult) -> None:
    assert (trained.status, trained.steps) == ("done", 2)
    assert [row["step"] for row in trained.metrics()] == [1, 2]
    assert "report.html" in repr(trained)
    assert "sft_math finished: 2 steps" in repr(trained)
    assert "<svg" in trained._repr_html_()
    assert (trained.folder / "export" / "tiny_math").is_dir()


@pytest.mark.parametrize("page", ["README.md", "docs/guide/1-first-run.md"])
def test_the_table_of_a_run_folder_names_what_a_run_leaves(trained: RunResult, page: str) -> None:
    text = (PIPELINES.parent / page).read_text("utf-8")
    rows = re.findall(r"^\| (`[^|]+`) \|", text[text.index("| `report.html` |") :], re.M)
    named = {name.rstrip("/") for row in rows for name in re.findall(r"`([^`]+)`", row)}
    left = {path.name for path in trained.folder.iterdir()} - {".running", "export"}
    assert left | {*PREPARED, *MADE, "changes.jsonl"} <= named


def test_metrics_are_a_frame(trained: RunResult, monkeypatch: Any) -> None:
    import pandas

    assert isinstance(trained.frame(), pandas.DataFrame)
    assert list(trained.frame()["step"]) == [1, 2]
    assert list(trained.frame("evals").columns) == ["eval", "step", "value"]
    with pytest.raises(forgedsl.PipelineError, match="there is no frame 'metric'"):
        trained.frame("metric")
    without_pandas(monkeypatch)
    with pytest.raises(ImportError, match="-m pip install pandas"):
        trained.frame()


def test_a_folder_in_use_and_a_run_to_go_on_with(trained: RunResult, capsys: Any) -> None:
    pipeline = forgedsl.load(PIPELINES / "sft_math.forge", steps=2, set=["trainer.batch.rows=4"])
    with pytest.raises(forgedsl.PipelineError, match="already contains a run"):
        pipeline.run(trained.folder)
    alone = forgedsl.open_run(trained.folder)
    with pytest.raises(forgedsl.PipelineError, match=r"pipeline=forgedsl\.load"):
        alone.resume("schedule.steps=3")
    with pytest.raises(forgedsl.PipelineError, match="has done all its 2 steps") as raised:
        alone.resume()
    assert str(raised.value).endswith('for more, resume("schedule.steps=N")')
    assert capsys.readouterr().err == ""  # it is raised, and not printed as well
    with pytest.raises(forgedsl.PipelineError, match=r'^/.*: allow="numerics" accepts'):
        alone.resume("trainer.optimizer.lr=1e-3", pipeline=pipeline)
    with pytest.raises(forgedsl.PipelineError, match=r"^`allow` must be `numerics`, `data` or"):
        alone.resume(allow="all")
    with pytest.raises(forgedsl.PipelineError, match="no checkpoint of step 7"):
        alone.export(step=7)


def test_a_run_that_starts_holds_its_folder_and_is_stopped_quietly(
    tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    pipeline = forgedsl.load(PIPELINES / "sft_math.forge", steps=100000)
    running = pipeline.start(tmp_path / "run")
    with pytest.raises(forgedsl.PipelineError, match=f"in use by process {running._process.pid} "):
        pipeline.start(tmp_path / "run")
    with pytest.raises(forgedsl.PipelineError, match="in use by process"):
        forgedsl.open_run(tmp_path / "run").resume()
    live = forgedsl.open_run(tmp_path / "run")
    assert live.status == "running"
    assert repr(live).startswith("sft_math running: 0 steps")
    assert re.search(r"run +running ", command(capsys, monkeypatch, "runs", str(tmp_path))[0])
    result = running.stop()
    assert result.status == "interrupted"
    assert repr(result).startswith("sft_math interrupted: 0 steps")
    assert "stopped before its first step" in repr(result)
    assert "Traceback" not in running.log()
    assert re.search(r"run +interrupted ", command(capsys, monkeypatch, "runs", str(tmp_path))[0])


@pytest.mark.full
def test_an_interrupt_while_a_run_starts_ends_it(tmp_path: Path) -> None:
    running = forgedsl.load(PIPELINES / "sft_math.forge", steps=100000).start(tmp_path / "run")
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    result = running.follow(quiet=True)
    assert (result.status, result.steps) == ("interrupted", 0)


def test_a_run_that_was_killed_shows_the_end_of_its_log(tmp_path: Path) -> None:
    running = forgedsl.load(PIPELINES / "sft_math.forge", steps=100000).start(tmp_path / "run")
    while "run folder" not in running.log():
        assert running.running
    os.killpg(running._process.pid, signal.SIGKILL)
    with pytest.raises(RunError, match=r"(?s)killed by SIGKILL; the end of its log:.*run folder"):
        running.result()
    assert forgedsl.open_run(tmp_path / "run").status == "killed"


def test_an_interrupt_says_what_is_saved(tmp_path: Path) -> None:
    said: list[str] = []
    log = EventLog(tmp_path / "events.jsonl")
    log.subscribe(lambda event: said.append(event["text"]) if event["kind"] == "notice" else None)
    for kind, told in (
        ("controller.start", "interrupted: no step has been taken, so nothing is saved"),
        ("step.start", "interrupted: a checkpoint is saved after the step in progress"),
    ):
        interrupt = Interrupt(log, tmp_path, lambda: None)
        interrupt.on_event({"kind": "controller.start", "step": 0})
        interrupt.on_event({"kind": kind, "step": 0})
        interrupt()
        assert said.pop().startswith(told)
    log.close()


def test_a_folder_without_a_run_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = forgedsl.load(PIPELINES / "sft_math.forge", steps=2, set=["trainer.batch.rows=4"])
    begun: list[Path] = []
    monkeypatch.setattr(pipeline, "run", lambda folder, quiet: begun.append(folder))
    pipeline.finish(tmp_path / "new")
    (tmp_path / "empty").mkdir()
    pipeline.finish(tmp_path / "empty")
    assert begun == [tmp_path / "new", tmp_path / "empty"]


def test_a_run_that_is_done_stays_and_another_job_is_refused(
    trained: RunResult, tmp_path: Path
) -> None:
    pipeline = forgedsl.load(PIPELINES / "sft_math.forge", steps=2, set=["trainer.batch.rows=4"])
    before = (trained.folder / "events.jsonl").read_bytes()
    assert pipeline.finish(trained.folder).steps == 2
    assert (trained.folder / "events.jsonl").read_bytes() == before
    with pytest.raises(forgedsl.PipelineError, match="holds a run of another job"):
        pipeline.set("trainer.optimizer.lr=1e-5").finish(trained.folder)
    (tmp_path / "mine").touch()
    with pytest.raises(forgedsl.PipelineError, match="is no run folder, and is not empty"):
        pipeline.finish(tmp_path)


@pytest.mark.full
def test_a_run_that_was_killed_is_finished(tmp_path: Path) -> None:
    pipeline = forgedsl.load(
        PIPELINES / "sft_math.forge", steps=6, set=["trainer.batch.rows=4", "checkpoint.every=1"]
    )
    folder = tmp_path / "run"
    running = pipeline.start(folder)
    while not (folder / "checkpoints/step-2/controller.json").is_file():
        assert running.running
    os.killpg(running._process.pid, signal.SIGKILL)
    running._process.wait()
    result = pipeline.finish(folder, quiet=True)
    assert (result.status, result.steps) == ("done", 6)
    assert [row["step"] for row in result.metrics()] == [*range(1, 7)]


@pytest.mark.full
def test_a_run_goes_on_and_is_exported(trained: RunResult, capsys: Any, tmp_path: Path) -> None:
    pipeline = forgedsl.load(PIPELINES / "sft_math.forge", steps=2, set=["trainer.batch.rows=4"])
    longer = forgedsl.open_run(trained.folder, pipeline).resume("schedule.steps=3")
    assert (longer.status, longer.steps) == ("done", 3)
    assert "step 3/3" in capsys.readouterr().err
    assert (Path(longer.export(tmp_path / "out")) / "model.safetensors").is_file()


@pytest.mark.full
def test_a_run_in_the_background_is_stopped(tmp_path: Path) -> None:
    running = forgedsl.load(PIPELINES / "sft_math.forge", steps=100000).start(tmp_path / "run")
    while running.running and not running.rows():
        pass
    result = running.stop()
    assert result.status == "interrupted"
    assert result.steps >= 1
