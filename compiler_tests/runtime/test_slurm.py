"""A run through a real Slurm: that of SLURM_CONF, or one of two nodes that are this machine, where
Debian's packages are installed (apt-get install slurm-wlm munge; root)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PIPELINE = Path(__file__).parents[2] / "pipelines/grpo_math.forge"
CONF = """ClusterName=forge
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.socket
CredType=cred/munge
SlurmctldPort=16817
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.%n.pid
StateSaveLocation={dir}/ctld
SlurmdSpoolDir={dir}/slurmd.%n
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
KillWait=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.11 Port=17001 CPUs=1 RealMemory=2000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.12 Port=17002 CPUs=1 RealMemory=2000
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""


def said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two idle nodes."""
    if "SLURM_CONF" in os.environ and said("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2":
        yield
        return
    missing = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing or os.geteuid():
        pytest.skip(f"no Slurm to start: {', '.join(missing) or 'root'} is missing")
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    name = os.uname().nodename.partition(".")[0]
    (tmp_path / "slurm.conf").write_text(CONF.format(host=name, dir=tmp_path))
    (tmp_path / "munge.key").write_bytes(os.urandom(128))
    (tmp_path / "munge.key").chmod(0o600)
    options = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid",
               "log-file": "munge.log", "seed-file": "munge.seed"}  # fmt: skip
    words = [f"--{option}={tmp_path / file}" for option, file in options.items()]
    subprocess.run(["munged", "--force", *words], check=True)
    subprocess.run(["slurmctld"], check=True)
    for node in ("n1", "n2"):
        subprocess.run(["slurmd", "-N", node], check=True)
    while said("sinfo", "-h", "-t", "idle", "-o", "%D").strip() != "2":
        time.sleep(0.1)
    yield
    for pid in tmp_path.glob("*.pid"):
        os.kill(int(pid.read_text()), signal.SIGTERM)


@pytest.mark.timeout(400)
@pytest.mark.usefixtures("slurm")
def test_a_run_over_two_nodes_ends_with_a_checkpoint_when_its_time_is_up(tmp_path: Path) -> None:
    """The signal is the one that Slurm sends before a time limit."""
    words = (
        "run", str(PIPELINE), "--profile", "cpu", "--run-dir", "run", "--set",
        'launcher=slurm("main", time=20min)', "cluster.hosts=2", "prompts=4", "group=4",
        "held_out.limit=4",
    )  # fmt: skip
    command = [sys.executable, "-m", "forgedsl.cli.main", *words]
    output = (tmp_path / "output.txt").open("w")
    with subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output) as run:
        metrics = tmp_path / "run/metrics.jsonl"
        while run.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.2)
        job = said("squeue", "-h", "-n", "grpo_math", "-o", "%A").split()[-1]
        subprocess.run(["scancel", "--signal=TERM", "--batch", job], check=True)
        assert run.wait(120) == 75, (tmp_path / "output.txt").read_text()
    assert list(tmp_path.glob("run/checkpoints/step-*/controller.json"))
    assert {path.name for path in tmp_path.glob("run/logs/host*")} == {"host0.log", "host1.log"}
    assert said("squeue", "-h") == ""
