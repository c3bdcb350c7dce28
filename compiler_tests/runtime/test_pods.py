"""The pods of a Job as hosts of a run: two workers, as the manifest starts them, on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forgedsl.errors import LaunchError
from forgedsl.launchers.registry import carrier
from forgedsl.lower import job as spec
from forgedsl_runtime.hosts import kubernetes
from forgedsl_runtime.hosts.kubernetes import PodHosts
from forgedsl_runtime.service_backend import check_supported

CLIENT = """
import asyncio, os
from pathlib import Path
from monarch.actor import Actor, endpoint
from forgedsl_runtime.hosts.kubernetes import PodHosts

class Where(Actor):
    @endpoint
    async def host(self):
        return os.environ["FORGEDSL_ADDRESS"], os.getppid()

async def ask():
    hosts = PodHosts()
    hosts.start(2, {}, Path("."), Path("."))
    for which in (range(1), range(1, 2), range(2)):
        procs = hosts.attach(which).spawn_procs(per_host={"procs": 1}, name=f"m{which}"[-4:-1])
        found = await procs.spawn("where", Where).host.call()
        print(*(":".join(map(str, value)) for _, value in found.items()), flush=True)
    os._exit(0)

asyncio.run(ask())
"""


@pytest.fixture
def pods(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("0.0.0.0", 0))
            ports.append(free.getsockname()[1])
    names = ["127.0.0.11", "127.0.0.12"]
    workers = ",".join(f"tcp://{n}:{p}" for n, p in zip(names, ports, strict=True))
    monkeypatch.setenv("FORGE_WORKERS", workers)
    command = [sys.executable, "-m", "forgedsl_runtime.hosts.kubernetes"]
    started = [
        subprocess.Popen(
            command,
            env=os.environ | {"JOB_COMPLETION_INDEX": str(index), "FORGEDSL_ADDRESS": name},
        )
        for index, name in enumerate(names)
    ]
    yield started
    for worker in started:
        worker.kill()
        worker.wait()


@pytest.mark.timeout(180)
def test_processes_start_in_the_pod_they_were_placed_in(pods: Any, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    first, second = (f"127.0.0.1{i + 1}:{pod.pid}" for i, pod in enumerate(pods))
    assert done.stdout.splitlines() == [first, second, f"{first} {second}"], done.stderr


def test_fewer_pods_than_the_plan_has_hosts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_WORKERS", "tcp://a-0.a:26600")
    with pytest.raises(LaunchError, match=r"uses 2 hosts, but there are 1 pods: .*--emit k8s"):
        PodHosts().start(2, {}, Path(), Path())


def test_a_pod_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_WORKERS", "tcp://127.0.0.1:1,tcp://127.0.0.1:1")
    monkeypatch.setattr(kubernetes, "START_SECONDS", 0.0)
    with pytest.raises(LaunchError, match=r"tcp://127.0.0.1:1 after .*refused.*kubectl describe"):
        PodHosts().start(2, {}, Path(), Path())


def test_outside_of_a_pod_a_run_says_what_to_do(
    make_job: Any, make_titan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FORGE_WORKERS", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    job = make_job(services={"t": make_titan()}, launcher=spec.Launcher(kind="kubernetes"))
    with pytest.raises(LaunchError, match="build FILE -o DIR --emit k8s"):
        check_supported(job)
    monkeypatch.setenv("FORGE_WORKERS", "tcp://a-0.a:26600")
    check_supported(job)


def test_a_job_that_was_planned_for_another_scheduler_runs_where_it_was_submitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("FORGE_WORKERS", "tcp://a-0.a:26600")
    assert [carrier(name).name for name in ("slurm", "local")] == ["kubernetes", "local"]
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert carrier("slurm").name == "slurm"
