"""Readers of the event stream, fed with the events of a made-up run (synthetic.py)."""

import io
import json
import os
import re
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from synthetic import make_events, make_job

from forgedsl.lower import job as spec
from forgedsl.runs.text import clock, duration, number, sparkline
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.launch import kill_children
from forgedsl_runtime.readers import close_readers, open_readers, progress
from forgedsl_runtime.readers.progress import (
    Live,
    Plain,
    eval_line,
    event_line,
    phase_text,
    smoothed_metrics,
)
from forgedsl_runtime.readers.sinks import JsonlSink, keep_rows, open_sinks
from forgedsl_runtime.readers.view import View

CONTRACT = (
    "step", "policy_version", "reward_mean", "reward_std", "loss", "grad_norm", "entropy",
    "tokens", "tokens_per_s", "age_max", "age_mean", "step_s", "wall_s", "loss/clip_frac",
)  # fmt: skip


def feed(folder: Path, job: spec.Job, *, steps: int | None = None, resumed: int = 0) -> None:
    readers = open_readers(job, folder, quiet=True)
    for event in make_events(job, steps=steps):
        if event["kind"] == "run.start" and resumed:
            event = event | {"resumed_from": resumed, "recorded": resumed}
        for reader in readers:
            reader.on_event(event)
    close_readers(readers)


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_metrics_jsonl_has_the_fields_of_the_contract(tmp_path: Path) -> None:
    feed(tmp_path, make_job(steps=5))
    rows = lines(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert not set(CONTRACT) - rows[0].keys()


def test_a_resume_on_a_full_disk_keeps_the_rows(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(before := "".join(f'{{"step": {step}}}\n' for step in range(1, 9)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))  # as a disk with 20 bytes left
    try:
        with pytest.raises(OSError, match="File too large"):
            keep_rows(path, 6)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert path.read_text() == before


def test_a_resumed_run_replaces_rows_after_its_checkpoint(tmp_path: Path) -> None:
    job = make_job(steps=9)
    feed(tmp_path, job, steps=7)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 8, "lo')  # killed in the middle of a line
    readers = open_readers(job, tmp_path, quiet=True)
    start = {"time": 0.0, "kind": "run.start", "resumed_from": 4, "recorded": 4}
    for reader in readers:
        reader.on_event(start)
    close_readers(readers)
    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]
    assert {row["step"] for row in lines(tmp_path / "samples.jsonl")} == {1, 2, 3, 4}


def test_samples_carry_their_step(tmp_path: Path) -> None:
    feed(tmp_path, make_job(steps=2))
    samples = lines(tmp_path / "samples.jsonl")
    assert [sample["step"] for sample in samples] == [1, 1, 1, 2, 2, 2]
    assert samples[0].keys() >= {"prompt", "response", "target", "score", "version"}


def test_tensorboard_reads_back_what_was_written(tmp_path: Path) -> None:
    feed(tmp_path, make_job(steps=3, tensorboard=True))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    rows = lines(tmp_path / "metrics.jsonl")
    written = [(e.step, e.value) for e in found.Scalars("run/reward_mean")]
    assert written == [(r["step"], pytest.approx(r["reward_mean"])) for r in rows]
    assert "loss/clip_frac" in found.Tags()["scalars"]


def test_wandb_without_a_key_is_one_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    job = make_job(wandb=spec.Wandb(project="p", mode="online"))
    sinks, notices = open_sinks(job, tmp_path)
    assert len(sinks) == 1
    assert len(notices) == 1
    assert "wandb" in notices[0]


def test_wandb_without_its_package_is_one_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    _, notices = open_sinks(make_job(wandb=spec.Wandb(project="p")), tmp_path)
    assert notices == ["wandb is not installed, so nothing is sent (pip install wandb)"]


@pytest.mark.parametrize(
    ("module", "settings", "package"),
    [
        ("mlflow", {"mlflow": spec.Mlflow(experiment="p")}, "mlflow-skinny"),
        ("trackio", {"trackio": spec.Trackio(project="p")}, "trackio"),
    ],
)
def test_a_tracker_without_its_package_is_one_notice(
    module: str, settings: Any, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (module, f"{module}.tracking"):
        monkeypatch.setitem(sys.modules, name, None)
    _, notices = open_sinks(make_job(**settings), tmp_path)
    said = f"{module} is not installed, so nothing is sent (pip install {package})"
    assert notices == [said]


def test_mlflow_reads_back_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a server would do the same
    from mlflow.tracking import MlflowClient

    uri = str(tmp_path / "mlruns")
    feed(tmp_path, make_job(steps=3, mlflow=spec.Mlflow(experiment="p", uri=uri)))
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("p").experiment_id])
    found = client.get_metric_history(run.info.run_id, "run/reward_mean")
    rows = lines(tmp_path / "metrics.jsonl")
    written = sorted((each.step, each.value) for each in found)
    assert written == [(row["step"], pytest.approx(row["reward_mean"])) for row in rows]
    assert run.info.status == "FINISHED"
    assert run.data.params["seed"] == "17"


def test_an_mlflow_server_that_is_away_is_one_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    job = make_job(mlflow=spec.Mlflow(experiment="p", uri="http://127.0.0.1:9"))
    _, notices = open_sinks(job, tmp_path)
    assert len(notices) == 1
    assert notices[0].startswith("mlflow cannot be reached, so nothing is sent (")


def test_trackio_reads_back_what_was_written(tmp_path: Path) -> None:
    """In a process of its own: Trackio reads its folder when it is imported."""
    pytest.importorskip("trackio")
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from pathlib import Path; from test_readers import feed, make_job, spec\n"
        "feed(Path(sys.argv[1]), make_job(steps=3, trackio=spec.Trackio(project='p')))\n"
    )
    env = {**os.environ, "TRACKIO_DIR": str(tmp_path / "trackio")}
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env=env, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout == ""
    read = sqlite3.connect(tmp_path / "trackio/p.db").execute("select step, metrics from metrics")
    found = {step: json.loads(metrics)["run/reward_mean"] for step, metrics in read}
    rows = lines(tmp_path / "metrics.jsonl")
    assert found == {row["step"]: pytest.approx(row["reward_mean"]) for row in rows}


def wandb_records(path: Path) -> Iterator[bytes]:
    """The records of a .wandb file: a LevelDB log after a header of 7 bytes."""
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # what is left of a block holds no record's head
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield whole
            whole = b""


def test_wandb_offline_reads_back_what_was_written(tmp_path: Path) -> None:
    feed(tmp_path, make_job(steps=3, wandb=spec.Wandb(project="p", mode="offline")))
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    records = [Record.FromString(record) for record in wandb_records(path)]
    seen = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in r.history.item}
        for r in records
        if r.WhichOneof("record_type") == "history"
    ]
    rows = lines(tmp_path / "metrics.jsonl")
    assert [(s["_step"], s["run/loss"]) for s in seen] == [(r["step"], r["loss"]) for r in rows]
    assert [r.exit.exit_code for r in records if r.WhichOneof("record_type") == "exit"] == [0]


def test_a_sink_that_fails_is_told_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(sink: JsonlSink, row: object) -> None:
        raise OSError("gone")

    monkeypatch.setattr(JsonlSink, "write", write)
    readers = open_readers(make_job(), tmp_path, quiet=True)
    log = EventLog(tmp_path / "events.jsonl")
    for reader in readers:
        log.subscribe(reader.on_event)
    for event in make_events(make_job(steps=3)):
        log.emit(event.pop("kind"), **{k: v for k, v in event.items() if k != "time"})
    close_readers(readers)
    told = [e["text"] for e in lines(tmp_path / "events.jsonl") if e["kind"] == "warning"]
    assert told == ["metrics.jsonl failed (OSError: gone); it gets no more events of this run"]
    assert len(lines(tmp_path / "samples.jsonl")) == 9, "the others go on"


def test_the_end_of_a_run_leaves_the_processes_of_its_sinks_alone() -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    sink = subprocess.Popen(sleep)
    others = frozenset(child.pid for child in psutil.Process().children())
    service = subprocess.Popen(sleep)
    kill_children(others)
    assert (service.wait(60), sink.poll()) == (-9, None)
    sink.kill()
    sink.wait(60)


def plain_lines(steps: int) -> list[str]:
    stream = io.StringIO()
    plain = Plain(View("example", steps), stream)
    for event in make_events(make_job(steps=steps)):
        plain.on_event(event)
    return stream.getvalue().splitlines()


def test_a_start_of_several_phases_says_what_took_a_second_or_more() -> None:
    facts = {"seconds": {"imports": 9.2, "model": 0.4, "graphs": 61.0}}
    event = {"kind": "service.ready", "service": "generator", "seconds": 71.0, "facts": facts}
    line = event_line(View("example", 1), event)
    assert line is not None
    assert line[1] == "generator is ready (1 min 11 s: imports 9.2 s, graphs 1 min 1 s)"


def test_plain_progress_says_what_it_waits_for_then_each_tenth_step() -> None:
    said = plain_lines(25)
    assert said[0].endswith("starting services: trainer, generator, reference")
    assert said[1].endswith("trainer is ready (3.0 s)")
    steps = [line.split("step ")[1].split("/")[0] for line in said if "] step " in line]
    assert steps == ["1", "10", "20", "25"]
    assert "] step 25/25 (mean of 20)  reward " in said[-1]
    assert all(word in said[-1] for word in ("reward", "loss", "entropy", "tok/s", "age", "left"))


def test_a_long_silence_is_broken_by_what_is_going_on() -> None:
    stream = io.StringIO()
    plain = Plain(View("example", 25), stream)
    for event in make_events(make_job(steps=25)):
        if event["kind"] == "metrics":
            break
        plain.on_event(event)
        plain.break_silence(event["time"] + 11.0)
    said = stream.getvalue()
    assert "starting services: trainer, generator, reference\n" in said
    assert "step 1: 1 completion being sampled\n" in said
    assert ", 1 batch training\n" in said


def test_a_panel_counts_from_when_it_was_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "can_redraw", lambda stream: True)
    live = progress.open_progress(make_job(steps=3))
    assert isinstance(live, Live)
    (spinner,) = live._starting()
    live.close()
    assert re.fullmatch(r"starting \.\.\. \d+ s", str(spinner.text))


def test_colours_make_no_terminal_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as kernels of Jupyter set it
    plain = progress.open_progress(make_job(steps=3))
    plain.close()
    assert isinstance(plain, Plain)


def test_a_run_that_is_read_later_has_its_own_times(capfd: pytest.CaptureFixture[str]) -> None:
    reader = progress.open_progress(make_job(steps=3), began=0.0)
    reader.on_event({"time": 1e9, "kind": "run.start"})
    reader.on_event({"time": 1e9 + 7, "kind": "note", "text": "here"})
    reader.close()
    assert capfd.readouterr().err == "[    7.0 s] note: here\n"


def test_a_session_is_watched_without_the_steps_of_its_file() -> None:
    view = View("example", 25)
    view.on_event({"time": 1.0, "kind": "run.start"})
    assert view.steps == 25
    view.on_event({"time": 2.0, "kind": "run.start", "steps": None})
    assert view.steps is None


def test_the_rate_is_that_of_all_tokens_in_all_seconds() -> None:
    view = View("example", 25)
    view.recent += [{"tokens_per_s": 4.0, "step_s": 100.0}, {"tokens_per_s": 4000.0, "step_s": 0.1}]
    assert view.tokens_per_second == pytest.approx(800 / 100.1)


def test_what_is_going_on_counts_what_has_begun_and_not_ended() -> None:
    view = View("example", 25)
    begun = ["eval", "sample", "sample", "logprobs", "sample"]
    for kind in [*(f"{kind}.start" for kind in begun), "sample.end"]:
        view.on_event({"time": 0.0, "kind": kind, "name": "held_out"})
    assert view.activity == (
        "eval held_out, 2 completions being sampled, 1 group waiting for log-probabilities"
    )


def test_a_start_that_was_interrupted_is_no_start_any_more() -> None:
    view = View("example", 25)
    view.on_event({"time": 1.0, "kind": "phase", "text": "starting", "services": ["trainer"]})
    view.on_event({"time": 2.0, "kind": "notice", "text": "interrupted before the first step"})
    assert phase_text(view) == "stopping services"


def test_the_watcher_of_silences_ends_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_SECONDS", 0.01)
    said = threading.Event()
    plain = Plain(View("example", 25), io.StringIO())
    monkeypatch.setattr(plain, "break_silence", lambda now: said.set())
    plain.on_event({"time": 1.0, "kind": "run.start"})
    plain.watch()
    assert said.wait(60)
    plain.close()
    plain._watcher.join(60)
    assert not plain._watcher.is_alive()


def test_an_eval_says_how_far_it_has_come() -> None:
    view = View("example", 60)
    for event in make_events(make_job(steps=60)):
        view.on_event(event)
    assert eval_line(view) == "eval held_out at step 50: 0.808 (+0.278 since step 0)"


def test_after_a_resume_an_eval_is_compared_with_the_first_of_the_run() -> None:
    view = View("example", 60)
    view.on_event({"time": 1.0, "kind": "controller.start", "first": {"held_out": [0, 0.5]}})
    end = {"time": 2.0, "kind": "eval.end", "name": "held_out", "step": 50, "value": 0.75}
    view.on_event(end)
    assert eval_line(view) == "eval held_out at step 50: 0.750 (+0.250 since step 0)"


@pytest.mark.parametrize(("step_s", "shown"), [
    (20.0, ("sync generator", "2.4 s at 1.25 GB/s")), (60.0, None),
])  # fmt: skip
def test_weights_are_told_where_they_take_a_tenth_of_a_step(step_s: float, shown: object) -> None:
    view = View("example", 60)
    came = {"sync_s/generator": 2.4, "sync_bytes_per_s/generator": 1.25e9, "step_s": step_s}
    row = {"time": 1.0, "kind": "metrics", "step": 1, "reward_mean": None, "age_max": None, **came}
    view.on_event(row)
    assert [pair for pair in smoothed_metrics(view) if "sync" in pair[0]] == (
        [shown] if shown else []
    )


def test_scores_that_fail_are_shown_beside_what_they_leave() -> None:
    view = View("example", 60)
    fields = {"reward_mean": 1.0, "scores_failed": 18, "sequences": 18, "rollouts_dropped": 18}
    row = {"time": 1.0, "kind": "metrics", "step": 1, "age_max": None, **fields}
    view.on_event(row)
    end = {"kind": "eval.end", "name": "held_out", "step": 1, "value": 1.0, "failed": 3}
    view.on_event({"time": 2.0, **end})
    assert ("failed scores", "50%") in smoothed_metrics(view)
    assert eval_line(view) == "eval held_out at step 1: 1.000; 3 of its answers could not be scored"


def test_live_progress_shows_the_figures_and_gives_the_terminal_back() -> None:
    from rich.console import Console

    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120)
    live = Live(View("example", 30), console)
    for event in make_events(make_job(steps=30)):
        live.on_event(event)
    with console.capture() as drawn:
        console.print(live._draw())
    live.close()
    assert "step 30/30" in drawn.get()
    assert all(name in drawn.get() for name in ("clip_frac", "kl_ref"))
    assert stream.getvalue().count("\x1b[?25h") == 1  # the cursor is shown again


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"), (0.0, "0.000"), (0.5713, "0.571"), (0.01321, "0.0132"), (16204.3, "16,204"),
        (2, "2"), (1.2e-7, "1.2e-07"), (12.34, "12.3"), (345.6, "346"), (-0.25, "-0.250"),
        (1.5625e298, "1.56e+298"),
    ],
)  # fmt: skip
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert number(value) == text


def test_times_are_readable() -> None:
    assert (clock(7), clock(750), clock(11100)) == ("0:07", "12:30", "3:05:00")
    assert (duration(7.41), duration(58), duration(750)) == ("7.4 s", "58 s", "12 min 30 s")


def test_sparkline_averages_down_to_its_width() -> None:
    assert sparkline([0, 0, 1, 1], 2) == "\u2581\u2588"
    assert sparkline([3.0], 10) == "\u2581"


def test_prometheus_gets_the_last_row() -> None:
    from urllib.request import urlopen

    from forgedsl_runtime.readers.prometheus import PrometheusSink

    sink = PrometheusSink(0, "x-1")
    sink.write({"step": 2, "reward_mean": 0.5, "eval/held_out": 0.25, "note": None})
    with urlopen(f"http://127.0.0.1:{sink.port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    sink.close(0)
    assert lines[1::2] == [
        'forgedsl_step{run="x-1"} 2.0',
        'forgedsl_reward_mean{run="x-1"} 0.5',
        'forgedsl_eval_held_out{run="x-1"} 0.25',
    ]
