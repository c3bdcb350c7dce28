"""What ends a run over several hosts, and what is left then: nothing but its folder.

FORGE_DEEP=1 runs them, each a minute or two on two cores.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from hurt import FORGEC, PIPELINES, SMALL, WIDE, Hurt, hard

pytestmark = [
    pytest.mark.skipif(os.environ.get("FORGE_DEEP") != "1", reason="minutes; FORGE_DEEP=1"),
    pytest.mark.timeout(1200),
]
GRPO = PIPELINES / "grpo_math.forge"
LONG = (*SMALL, "schedule.steps=2000", "checkpoint.every=5")
TWO_RANKS = (*WIDE, "trainer.hosts=2", "reference.hosts=2", "generator.replicas=1")
PLACE = r"grpo_math\.forge:\d+:\d+"


def trained(tmp_path: Path, *words: str) -> Hurt:
    """A run that has a checkpoint."""
    run = Hurt(tmp_path, GRPO, (*LONG, *words))
    run.step(6)
    run.until(lambda: (run.dir / "checkpoints/step-5/controller.json").exists())
    return run


def rank(run: Hurt, number: int) -> int:
    """The process of a rank of the trainer, which has one on each host."""
    started = [e for e in run.events("process.start") if e["mesh"] == "trainer"]
    run.tree()
    return next(int(e["pid"]) for e in started if e["rank"] == number)


def test_a_trainer_rank_that_is_killed_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    run = trained(tmp_path, *TWO_RANKS)
    second = rank(run, 1)
    hard(second)
    start = time.monotonic()
    assert run.end(60) == 5, run.said()
    assert time.monotonic() - start < 30
    assert "service trainer failed" in run.said()
    assert f"rank 1 on host 1, pid {second}" in run.said()
    assert re.search(PLACE, run.said())
    assert run.left(10) == []


def test_a_trainer_rank_that_stops_is_named_after_a_deadline_and_the_run_resumes(
    tmp_path: Path,
) -> None:
    run = trained(tmp_path, *TWO_RANKS)
    second = rank(run, 1)
    os.kill(second, signal.SIGSTOP)
    assert run.end(300) == 5, run.said()
    assert f"rank 1 on host 1, pid {second}" in run.said()
    assert re.search(PLACE, run.said())
    assert run.left(10) == []
    step = len(run.history())
    run.resume()
    run.step(step + 3)
    run.ran.send_signal(signal.SIGTERM)
    assert run.end(120) == 75, run.said()


@pytest.mark.parametrize(
    ("words", "stopped"),
    [((), False), (WIDE, False), (WIDE, True)],
    ids=["local", "three hosts", "three hosts, one stopped"],
)
def test_the_end_of_the_controller_ends_everything(
    tmp_path: Path, words: tuple[str, ...], stopped: bool
) -> None:
    run = trained(tmp_path, *words)
    run.tree()
    if stopped:
        for process in (run.host(1), *run.host(1).children(recursive=True)):
            process.suspend()
    before = leftovers(run.ran.pid)
    assert before, "a run has shared memory and a temporary folder"
    hard(run.ran.pid)
    run.end(5)
    assert run.left(30) == []
    command = [*FORGEC, "run", "--stub", str(GRPO), "--profile", "cpu", "--run-dir", "next"]
    asked = ["--set", "schedule.steps=1", "prompts=2", "group=2", "held_out.limit=2"]
    subprocess.run([*command, *asked], cwd=tmp_path, check=True, capture_output=True)
    assert leftovers(run.ran.pid) == []


def leftovers(pid: int) -> list[Path]:
    """What a run keeps outside of its folder."""
    temp = Path(os.environ.get("TMPDIR", "/tmp"))
    return [*Path("/dev/shm").glob(f"*forgedsl-{pid}-*"), *temp.glob(f"forgedsl-{pid}-*")]


def test_ctrl_c_saves_and_a_third_one_stops_at_once_on_all_hosts(tmp_path: Path) -> None:
    run = trained(tmp_path, *WIDE)
    run.tree()
    run.ran.send_signal(signal.SIGINT)
    assert run.end(120) == 130, run.said()
    assert run.left(10) == []
    saved = max(run.history())
    assert (run.dir / f"checkpoints/step-{saved}/controller.json").exists()
    run.resume()
    run.step(saved + 2)
    run.tree()
    for _ in range(3):
        run.ran.send_signal(signal.SIGINT)
        time.sleep(0.1)
    assert run.end(10) == 130, run.said()
    assert run.left(10) == []
    assert leftovers(run.ran.pid) == []


def test_sigterm_to_the_worker_of_a_host_is_the_loss_of_that_host(tmp_path: Path) -> None:
    run = trained(tmp_path, *WIDE)
    run.host(2).terminate()
    run.until(lambda: run.events("host.lost"), 30)
    run.until(lambda: run.events("restart.end"))
    run.step(max(run.history()) + 5)
    assert [event["host"] for event in run.events("host.lost")] == [2]
    run.ran.send_signal(signal.SIGTERM)
    assert run.end(120) == 75, run.said()
    assert run.left(10) == []


def test_a_host_that_stalls_for_twenty_seconds_is_waited_for(tmp_path: Path) -> None:
    """As a busy machine does, on which nothing of ours gets a turn."""
    run = trained(tmp_path, *WIDE)
    worker = run.host(0)
    stalled = (worker, *worker.children(recursive=True))
    for process in stalled:
        process.suspend()
    time.sleep(20)
    step = max(run.history())
    for process in stalled:
        process.resume()
    run.step(step + 5)
    assert run.events("service.lost", "host.lost", "failure") == []
    run.ran.send_signal(signal.SIGTERM)
    assert run.end(120) == 75, run.said()


def test_a_host_that_hangs_is_left_and_its_services_go_on_elsewhere(tmp_path: Path) -> None:
    """Its worker and all on it are stopped, as where a machine swaps or a network is gone."""
    run = trained(tmp_path, *WIDE)
    worker = run.host(2)
    for process in (worker, *worker.children(recursive=True)):
        process.suspend()
    run.until(lambda: [e for e in run.events("restart.end") if "error" not in e], 300)
    assert worker.pid not in {p.pid for pid in run.pids("gen1")[-1:] for p in parents(pid)}
    run.step(max(run.history()) + 5)
    run.ran.send_signal(signal.SIGTERM)
    assert run.end(120) == 75, run.said()
    assert run.left(10) == []


def parents(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).parents()


@pytest.mark.parametrize(
    ("mesh", "words", "sign", "named"),
    [
        ("gen1", WIDE, "as long per token", "gen1 on host 2 takes"),
        ("trainer", TWO_RANKS, "wait for it in every step", "rank 1 on host 1, pid"),
    ],
    ids=["generator", "trainer"],
)
def test_a_slow_host_is_named_in_the_report(
    tmp_path: Path, mesh: str, words: tuple[str, ...], sign: str, named: str
) -> None:
    """What is on it gets a turn of four."""
    run = Hurt(tmp_path, GRPO, (*LONG, *words))
    run.step(3)
    slow = psutil.Process(rank(run, 1) if mesh == "trainer" else run.pids(mesh)[0])

    def warned() -> list[str]:
        slow.suspend()
        time.sleep(0.3)
        slow.resume()
        time.sleep(0.1)
        return [e["text"] for e in run.events("warning") if sign in e["text"]]

    run.until(warned, 400)
    run.ran.send_signal(signal.SIGTERM)
    assert run.end(120) == 75, run.said()
    assert named in (run.dir / "report.html").read_text()


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="a small disk takes root"
)
def test_a_full_disk_ends_the_run_with_the_last_checkpoint_whole(tmp_path: Path) -> None:
    run = [*FORGEC, "run", str(GRPO), "--profile", "cpu", "--run-dir", "disk/run"]
    script = f"""
        mkdir disk keep; mount -t tmpfs -o size=64m tmpfs disk
        (until [ -e disk/run/checkpoints/step-5/controller.json ]; do sleep 1; done
         dd if=/dev/zero of=disk/filler bs=1M) 2>/dev/null &
        {shlex.join([*run, "--set", *LONG, *WIDE])}
        code=$?; cp -r disk/run keep; exit $code
    """
    command = ["unshare", "--mount", "sh", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "No space left on device" in done.stderr
    assert list(tmp_path.glob("keep/run/checkpoints/step-*/controller.json"))
    running = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    assert not [words for words in running if str(tmp_path) in words]
