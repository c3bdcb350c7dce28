"""Which launchers this version can serve, and what it says of the others."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import tolerance
import torch

from forgedsl.errors import LaunchError
from forgedsl.job.parts import Place
from forgedsl.lower import job as spec
from forgedsl_runtime import meshes
from forgedsl_runtime.launch import run
from forgedsl_runtime.service_backend import check_supported

PIPELINE = Path(__file__).parents[2] / "pipelines/grpo_math.forge"


def test_a_scheduler_is_served_inside_its_allocation(
    make_job: Any, make_titan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(services={"t": make_titan()}, launcher=spec.Launcher(kind="slurm"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(LaunchError, match="--emit sbatch"):
        check_supported(job)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    check_supported(job)


def test_a_run_in_an_event_loop_has_a_thread_of_its_own(
    make_job: Any,
    make_titan: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    job = make_job(services={"t": make_titan()}, launcher=spec.Launcher(kind="slurm"))

    async def cell() -> int:
        return run(job, tmp_path)

    assert asyncio.run(cell()) == 4
    last = (tmp_path / "events.jsonl").read_text().splitlines()[-1]
    assert "--emit sbatch" in json.loads(last)["message"]
    assert "--emit sbatch" in capsys.readouterr().err  # nobody else would say why


def test_a_folder_with_a_run_is_not_trained_in_again(make_job: Any, tmp_path: Path) -> None:
    last = tmp_path / "checkpoints/step-3/controller.json"
    last.parent.mkdir(parents=True)
    last.write_text("{}")
    job = make_job(launcher=spec.Launcher(kind="pbs"))  # else it would begin
    with pytest.raises(LaunchError, match="name another folder, or give resume=True"):
        run(job, tmp_path)


def test_a_mesh_placed_on_another_host_is_refused(make_job: Any, make_titan: Any) -> None:
    service = make_titan()
    places = (spec.Place(replica=0, host=1, gpus=(0,)),)
    far = service.model_copy(update={"mesh": service.mesh.model_copy(update={"places": places})})
    with pytest.raises(LaunchError, match="the plan uses 2 hosts"):
        check_supported(make_job(services={"t": far}))


def test_a_launcher_that_is_not_here_is_refused(make_job: Any, make_titan: Any) -> None:
    job = make_job(services={"t": make_titan()}, launcher=spec.Launcher(kind="pbs"))
    with pytest.raises(LaunchError, match="no launcher pbs; there are local, "):
        check_supported(job)


TOY = """
from forgedsl.launchers import base, registry
from forgedsl_runtime.hosts import registry as hosts
from forgedsl.settings import STR, Parameter

class Toy(hosts.Hosts):
    def start(self, count, settings, temp, logs):
        print(f"toy starts {count} for {settings['who']}", flush=True)

    def stop(self):
        print("toy stops", flush=True)

who = Parameter(name="who", type=STR)
toy = base.Launcher(signature=base.signature("toy", "of a test", who), one_machine=True)
registry.LAUNCHERS += (toy,)
hosts.HOSTS += (("toy", Toy),)
from forgedsl.cli.main import main
main()
"""


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_launcher_from_outside_runs_a_flow(tmp_path: Path) -> None:
    """As docs/design/launchers.md says to add one; the flow is rehearsed on its hosts."""
    words = (
        "run", "--stub", str(PIPELINE), "--profile", "cpu", "--set", 'launcher=toy("me")',
        "schedule.steps=2", "prompts=2", "group=2", "held_out.limit=2",
    )  # fmt: skip
    command = [sys.executable, "-c", TOY, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "toy" in line] == [
        "toy starts 1 for me",
        "toy stops",
    ]


WIDE = (
    "launcher=process", "cluster.hosts=3", "trainer.hosts=2", "reference.hosts=2",
    "schedule.steps=12", "prompts=4", "group=4", "held_out.limit=4",
)  # fmt: skip


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_a_run_over_three_hosts_lives_through_the_loss_of_one(tmp_path: Path) -> None:
    """Trainer and reference have a rank on two, the rest is on the third; what a rank on each
    computes is what one would."""
    command = [sys.executable, "-m", "forgedsl.cli.main"]
    words = ("run", str(PIPELINE), "--profile", "cpu", *WIDE, "--run-dir", "run")
    output = (tmp_path / "output.txt").open("w")
    with subprocess.Popen([*command, *words], cwd=tmp_path, stdout=output, stderr=output) as run_:
        metrics = tmp_path / "run/metrics.jsonl"
        while run_.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.2)
        children = psutil.Process(run_.pid).children()
        (host,) = [p for p in children if p.cmdline()[-1].endswith("/host2")]
        host.kill()
        assert run_.wait(500) == 0, (tmp_path / "output.txt").read_text()
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 13))
    events = [json.loads(x) for x in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    lost = {e["mesh"] for e in events if e["kind"] == "service.lost"}
    assert lost == {"gen", "rewards"}
    assert {e["transport"] for e in events if e["kind"] == "sync.end"} == {"tcp"}
    logs = {path.name for path in (tmp_path / "run/logs").glob("host*")}
    assert logs == {"host0.log", "host1.log", "host2.log"}
    again = subprocess.run(
        [*command, "replay", "run", "--procs", "1"], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stdout + again.stderr
    found = json.loads(again.stdout)
    near = tolerance.near(torch.float32, tolerance.of_shipped("tiny_math", length=64, tokens=256))
    wanted = pytest.approx(found["recorded"]["grad_norm"], **near)
    assert found["replayed"]["grad_norm"] == wanted


def test_hosts_of_one_machine_divide_its_gpus(
    make_job: Any, make_titan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on(*hosts: int, **named: int) -> Any:
        places = [Place(replica=0, host=host, gpus=(0, 1)) for host in hosts]
        service = make_titan()
        mesh = service.mesh.model_copy(update={"gpus": 2, "places": places, **named})
        return service.model_copy(update={"mesh": mesh})

    services = {"near": on(0), "far": on(1), "wide": on(0, 1, hosts=2)}
    job = make_job(services=services, launcher=spec.Launcher(kind="process"))
    monkeypatch.setattr(meshes, "_num_gpus", lambda: 4)
    found = {name: spots[0].gpus for name, spots in meshes.place(job).items()}
    assert found == {"near": (0, 1), "far": (2, 3), "wide": (0, 1, 2, 3)}
    monkeypatch.setattr(meshes, "_num_gpus", lambda: 2)
    with pytest.raises(LaunchError, match="GPUs 0 to 3 of this host, but it has 2"):
        meshes.place(job)


TREE = """
import ctypes, os, subprocess, sys, time
from pathlib import Path
from forgedsl_runtime.hosts.process import ProcessHosts
child = '''
import ctypes, subprocess, sys, time
follow = lambda: ctypes.CDLL(None).prctl(1, 9)  # as Monarch does
print(subprocess.Popen(["sleep", "900"], preexec_fn=follow).pid, flush=True)
time.sleep(900)
'''
worker = ProcessHosts.start_host([sys.executable, "-c", child], Path(sys.argv[1]))
print(worker.pid, flush=True)
time.sleep(900)
"""


def test_a_host_that_is_stopped_ends_with_the_controller_and_so_does_what_is_on_it(
    tmp_path: Path,
) -> None:
    log = tmp_path / "host0.log"
    command = [sys.executable, "-c", TREE, str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as controller:
        assert controller.stdout is not None
        worker = psutil.Process(int(controller.stdout.readline()))
        while not (log.exists() and log.read_text().endswith("\n")):
            time.sleep(0.05)
        there = [worker, psutil.Process(int(log.read_text()))]
        for process in there:
            process.suspend()
        controller.kill()
    left = psutil.wait_procs(there, timeout=20)[1]
    for process in left:
        process.kill()
    assert left == []
