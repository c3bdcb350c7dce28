"""`forgec sweep`: points, their checks before the first start, and going on after a kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from forge_commands import CliRunner
from test_compare import GRPO, run_folder

import forgedsl
from forgedsl.cli import sweep_runs
from forgedsl.cli.app import app
from forgedsl.cli.overrides import UsageError
from forgedsl.cli.sweep_points import Axis, Manifest, axes_of, points_of, values_of
from forgedsl.cli.sweep_runs import Sweep, Task, is_alive
from forgedsl.records import replace

# takes the lock and writes the files that `forgec run` does; it is the process that is killed here,
# since a real run takes ten seconds to start. Seeds 2 and 3 stop after step 2 while `hold` exists
RUN = """
import fcntl, json, os, pathlib, sys, time
resumes = sys.argv[1] == "--resume"
folder = pathlib.Path(sys.argv[-1])
lock = (folder / ".running").open("a+")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
lock.truncate(0)
json.dump({"pid": os.getpid()}, lock)
lock.flush()
def event(**fields):
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps(fields) + chr(10))
event(kind="run.start", time=time.time())
done = max([0, *(int(p.name[5:]) for p in folder.glob("checkpoints/step-*"))]) if resumes else 0
for step in range(done + 1, 5):
    while step == 3 and "seed1" not in folder.name and (folder.parent / "hold").exists():
        time.sleep(0.02)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "reward_mean": 0.5}) + chr(10))
    if step == 2:
        (folder / "checkpoints" / "step-2").mkdir(parents=True)
        (folder / "checkpoints" / "step-2" / "controller.json").write_text("{}")
event(kind="run.end", time=time.time(), status="done", code=0)
"""
AXES = (
    Axis(path="trainer.optimizer.lr", values=("1e-5", "3e-5")),
    Axis(path="run.seed", values=("1", "2", "3")),
)


def invoke(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


# ---- points


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-6, 3e-6", ("1e-6", "3e-6")),
        ("[a, b],[c]", ("[a, b]", "[c]")),
        ('"a, b","c"', ('"a, b"', '"c"')),
        ("hf(org/name, rev)", ("hf(org/name, rev)",)),
    ],
)
def test_values_are_split_at_commas_outside_of_brackets(text: str, values: Any) -> None:
    assert values_of(text) == values


def test_every_setting_has_a_run_before_the_second_seed() -> None:
    axes, fixed = axes_of(["lr=1e-5,3e-5", "steps=4"], 2)
    assert fixed == ("steps=4",)
    assert [point.folder for point in points_of(axes)] == [
        "lr1e-5-seed1", "lr3e-5-seed1", "lr1e-5-seed2", "lr3e-5-seed2",
    ]  # fmt: skip


def test_folders_of_values_that_look_alike_are_apart() -> None:
    points = points_of((Axis(path="stop", values=('"a b"', '"a_b"')),))
    assert [point.folder for point in points] == ["stop_a_b", "stop_a_b-2"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("group=4,4",), "`group` has the value 4 twice"),
        (("group=4,8", "group=2"), "`group` is given twice"),
        (("group=4,",), "has a comma without a value"),
        (("run.seed=4", "--seeds", "2"), "leave out run.seed"),
        (("schedule.steps=4",), "there is nothing to sweep"),
        (("group=4,4.0", "--seeds", "0"), "--seeds must be at least 1"),
        (("--assume", "generator.tokens=4"), "add --stub"),
        (("trainer.optimizer.lr=1e-5,0.00001",), "are the same run: leave out one"),
    ],
)
def test_a_mistake_in_the_words(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = invoke("sweep", GRPO, "--profile", "cpu", "--dir", tmp_path / "s", *words)
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "s").exists()


def test_a_point_with_an_error_keeps_all_from_starting(tmp_path: Path) -> None:
    words = ("group=4,-1", "schedule.steps=2", "--dir", tmp_path / "s")
    done = invoke("sweep", GRPO, "--profile", "cpu", *words)
    assert done.exit_code == 1
    assert "group=-1:\nerror[F113]: `n` must be at least 1, not -1" in done.stderr
    assert "1 of 2 points cannot run (group=-1): nothing was started" in done.stderr
    assert not (tmp_path / "s").exists()


def test_a_dry_run_shows_the_points(tmp_path: Path) -> None:
    words = ("--profile", "cpu", "group=4,8", "--dir", tmp_path / "s", "--dry-run")
    done = invoke("sweep", GRPO, *words)
    assert done.exit_code == 0
    head, *rows = [line.split() for line in done.stdout.splitlines()[2:5]]
    assert head == ["group", "steps", "step", "run", "GPUs", "state"]
    assert [row[0] for row in rows] == ["4", "8"]
    assert "nothing was started" in done.stdout
    found = json.loads(invoke("sweep", GRPO, *words, "--format", "json").stdout)
    assert [point["settings"] for point in found["points"]] == [{"group": "4"}, {"group": "8"}]
    assert not (tmp_path / "s").exists()


# ---- runs


@pytest.fixture
def finished(tmp_path: Path) -> tuple[list[object], Path]:
    """The words of a sweep whose runs are all done, and its folder."""
    folder = tmp_path / "s"
    for lr, gain in (("1e-5", 0.0), ("3e-5", 0.2)):
        for seed in (1, 2):
            value = 0.6 + gain + 0.01 * seed
            overrides = (f"trainer.optimizer.lr={lr}", f"run.seed={seed}")
            run_folder(folder / f"lr{lr}-seed{seed}", value, value, *overrides)
    words = ["sweep", GRPO, "--profile", "cpu", "trainer.optimizer.lr=1e-5,3e-5", "--seeds", 2]
    return [*words, "--dir", folder], folder


def test_the_table_names_the_better_rate_and_nothing_runs_twice(finished: Any) -> None:
    words, folder = finished
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.jsonl")}
    done = invoke(*words)
    assert done.exit_code == 0, done.stderr
    assert "4 runs, 2 groups" in done.stdout
    assert "held_out: trainer.optimizer.lr=3e-05 is better than" in done.stdout
    assert "95% interval" in done.stdout
    assert "4 of 4 runs done" in done.stdout
    assert done.stderr.count("done in an earlier call") == 4
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.jsonl")} == before
    found = json.loads(invoke(*words, "--quiet", "--format", "json").stdout)
    assert {point["state"] for point in found["points"]} == {"done"}
    assert found["comparison"]["best"][0]["group"] == "trainer.optimizer.lr=3e-05"


def test_another_job_in_the_folder_is_refused(finished: Any) -> None:
    words, _ = finished
    invoke(*words)
    done = invoke(*words, "eps=0.3")
    assert done.exit_code == 2
    assert "lr=1e-5 seed=1 is another job than when" in done.stderr


@pytest.fixture(scope="module")
def job(tmp_path_factory: Any) -> Path:
    path = tmp_path_factory.mktemp("job") / "job.json"
    path.write_text(forgedsl.load(GRPO, profile="cpu").plan().job.model_dump_json())
    return path


def sweep_of(folder: Path, job: Path, *, say: Any = print) -> Sweep:
    """A sweep of six runs of RUN, two at once."""
    points = points_of(AXES)
    manifest = Manifest.read(folder, "a.forge", rehearsal=False)
    for point in points:
        manifest.add(point, point.name)
    tasks = [
        Task(point=each, steps=4, words=("job.json",),
             prepare=lambda to: shutil.copy(job, to))
        for each in points
    ]  # fmt: skip
    return Sweep(folder, manifest, tasks, at_once=2, say=say, command=(sys.executable, "-c", RUN))


def states(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "sweep.json").read_text())["points"]


def steps(folder: Path) -> list[int]:
    return [
        json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def until(condition: Any) -> None:
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("did not come about in 60 s")


def started(folder: Path, job: Path) -> subprocess.Popen[bytes]:
    """A process that runs `sweep_of`: two of its runs are done, and two wait after step 2."""
    # a shell ignores SIGINT in what it starts in the background, and so would this process
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += f"import sys, pathlib; sys.path[:0] = {sys.path!r}; import test_sweep as t; "
    code += f"sys.exit(t.sweep_of(pathlib.Path({str(folder)!r}), pathlib.Path({str(job)!r})).run())"
    folder.mkdir()
    (folder / "hold").touch()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    until(lambda: len(list(folder.glob("*-seed2/checkpoints/step-2/controller.json"))) == 2)
    return process


def test_six_runs_killed_in_the_middle_each_run_exactly_once(tmp_path: Path, job: Path) -> None:
    folder = tmp_path / "s"
    process = started(folder, job)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert [p["state"] for p in states(folder)] == ["done"] * 2 + ["running"] * 2 + ["waiting"] * 2
    # of the two runs that the killed sweep left behind, one is killed as well
    left = folder / "lr1e-5-seed2"
    os.kill(json.loads((left / ".running").read_text())["pid"], signal.SIGKILL)
    until(lambda: not is_alive(left))
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if "still runs" in line:
            (folder / "hold").unlink()

    assert sweep_of(folder, job, say=say).run() == 0
    points = {p["folder"]: p for p in states(folder)}
    assert [p["state"] for p in points.values()] == ["done"] * 6
    assert [steps(folder / name) for name in points] == [[1, 2, 3, 4]] * 6
    assert {name: p["starts"] for name, p in points.items() if p["starts"] > 1} == {left.name: 2}
    told = [line.partition("seed=")[2] for line in said]
    assert [line for line in told if ", 4 steps" not in line] == [
        "1: done in an earlier call",
        "1: done in an earlier call",
        "2: resumes from the checkpoint of step 2",
        "2: still runs since an earlier call: the sweep waits for it",
        "3: begins",
        "3: begins",
    ]


def test_a_sweep_says_how_far_its_runs_are(
    tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "hold").touch()
    monkeypatch.setattr(sweep_runs, "PROGRESS_SECONDS", 0.0)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if "step 2/4" in line:
            (folder / "hold").unlink(missing_ok=True)

    assert sweep_of(folder, job, say=say).run() == 0
    told = [line for line in said if "step 2/4, reward" in line]
    assert len(told) == len(set(told)) >= 1
    assert "lr=" in told[0]


def test_progress_is_that_of_the_last_whole_line(tmp_path: Path) -> None:
    assert sweep_runs.progress(tmp_path, 9) == ""
    rows = [{"step": 1, "reward_mean": 0.25}, {"step": 2, "reward_mean": None, "loss": 0.5}]
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:1]) + '{"step": 2, "rew')
    assert sweep_runs.progress(tmp_path, 9) == "step 1/9, reward 0.250"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert sweep_runs.progress(tmp_path, None) == "step 2, loss 0.500"


def test_start_up_is_the_last_whole_line_that_the_run_printed(tmp_path: Path) -> None:
    log = tmp_path / sweep_runs.LOG
    log.parent.mkdir(parents=True)
    log.write_text("sums: run folder runs/a\n")
    assert sweep_runs.start_up(tmp_path) == ""
    log.write_text(
        "sums: run folder runs/a\n[    1.0 s] starting services: trainer\n"
        "[   20.1 s] still starting services: trainer\n[   21.0 s] trainer is re"
    )
    assert sweep_runs.start_up(tmp_path) == "still starting services: trainer"


def test_a_run_with_a_checkpoint_is_resumed_and_another_begins_anew(
    tmp_path: Path, job: Path
) -> None:
    folder = tmp_path / "s"
    for name, checkpoint in (("lr1e-5-seed1", True), ("lr3e-5-seed1", False)):
        (folder / name / "logs").mkdir(parents=True)
        shutil.copy(job, folder / name)
        (folder / name / "events.jsonl").write_text('{"kind": "run.start", "time": 1.0}\n')
        (folder / name / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
        if checkpoint:
            (folder / name / "checkpoints/step-2").mkdir(parents=True)
            (folder / name / "checkpoints/step-2/controller.json").write_text("{}")
    said: list[str] = []
    assert sweep_of(folder, job, say=said.append).run() == 0
    text = "\n".join(said)
    assert "lr=1e-5 seed=1: resumes from the checkpoint of step 2" in text
    assert "lr=3e-5 seed=1: begins anew, since it has no checkpoint" in text
    assert [steps(folder / p["folder"]) for p in states(folder)] == [[1, 2, 3, 4]] * 6


def test_an_interrupt_ends_the_runs_and_starts_no_more(tmp_path: Path, job: Path) -> None:
    folder = tmp_path / "s"
    process = started(folder, job)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == signal.SIGINT
    found = [p["state"] for p in states(folder)]
    assert found == ["done"] * 2 + ["interrupted"] * 2 + ["waiting"] * 2
    assert b"waits for 2 runs to save a checkpoint; interrupt again to end now" in out


def test_a_failed_run_is_told_and_the_rest_goes_on(tmp_path: Path, job: Path) -> None:
    made = sweep_of(tmp_path, job, say=(said := []).append)
    broken = replace(made.tasks[1], prepare=lambda to: (to / ".running").mkdir())
    made.tasks = [made.tasks[0], broken, *made.tasks[2:]]
    assert made.run() == 0
    found = {p["name"]: p for p in states(tmp_path)}
    assert [p["state"] for p in found.values()].count("done") == 5
    assert "IsADirectoryError" in found[broken.point.name]["message"]
    assert any(line.endswith("logs/forgec.log") for line in said)


def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(UsageError, match="is not the manifest of a sweep"):
        Manifest.read(tmp_path, "a.forge", rehearsal=False)


# ---- real runs


@pytest.mark.deep
def test_a_sweep_of_six_real_runs_killed_in_the_middle(tmp_path: Path) -> None:
    """Supervised runs: the sweep is killed, and a run of it that has a checkpoint."""
    assert invoke("init", tmp_path / "sft", "--template", "sft").exit_code == 0
    folder = tmp_path / "s"
    words = [
        "sweep",
        tmp_path / "sft" / "sft.forge",
        "trainer.optimizer.lr=1e-4,2e-3",
        "--seeds",
        3,
    ]
    words += ["schedule.steps=8", "checkpoint.every=1", "trainer.optimizer.warmup=1"]
    words += ["--at-once", 2, "--dir", folder]
    command = [sys.executable, "-m", "forgedsl", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    until(lambda: list(folder.glob("*/checkpoints/step-2/controller.json")))
    process.send_signal(signal.SIGKILL)
    process.wait()
    saved = next(folder.glob("*/checkpoints/step-2/controller.json")).parents[2]
    os.kill(json.loads((saved / ".running").read_text())["pid"], signal.SIGKILL)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ": resumes from the checkpoint of step" in done.stderr
    assert "still runs since an earlier call" in done.stderr
    assert "6 runs, 2 groups" in done.stdout
    points = states(folder)
    assert [p["state"] for p in points] == ["done"] * 6
    assert [p["starts"] for p in points if p["folder"] != saved.name] == [1] * 5
    for point in points:
        assert steps(folder / point["folder"]) == list(range(1, 9))
