"""A run over two machines that ssh reaches: this one, by two addresses, through Debian's sshd.

Needs openssh-server and root; FORGE_DEEP=1 runs it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hurt import PIPELINES, SMALL, Hurt, hard

pytestmark = [
    pytest.mark.skipif(os.environ.get("FORGE_DEEP") != "1", reason="minutes; FORGE_DEEP=1"),
    pytest.mark.timeout(1200),
]
SERVER = """Port 2222
ListenAddress 127.0.0.11
ListenAddress 127.0.0.12
HostKey {dir}/key
AuthorizedKeysFile {dir}/key.pub
StrictModes no
PermitRootLogin yes
UsePAM no
PidFile none
"""
CLIENT = """Host n1
  HostName 127.0.0.11
Host n2
  HostName 127.0.0.12
Host *
  Port 2222
  IdentityFile {dir}/key
  UserKnownHostsFile /dev/null
  StrictHostKeyChecking no
"""


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[str]:
    """n1 and n2; the launcher that reaches them."""
    server = shutil.which("sshd", path="/usr/sbin:/usr/bin")
    if server is None or os.geteuid():
        pytest.skip("no ssh server to start: apt-get install openssh-server; root")
    Path("/run/sshd").mkdir(exist_ok=True)
    key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")]
    subprocess.run(key, check=True)
    for name, text in (("sshd.conf", SERVER), ("ssh.conf", CLIENT)):
        (tmp_path / name).write_text(text.format(dir=tmp_path))
    started = subprocess.Popen([server, "-D", "-e", "-f", str(tmp_path / "sshd.conf")])
    time.sleep(1)
    yield f'launcher=ssh(["n1", "n2"], options=["-F", "{tmp_path}/ssh.conf"])'
    started.terminate()
    started.wait()


def test_a_run_over_two_machines_by_ssh(tmp_path: Path, machines: str) -> None:
    """Trainer over both; what the loss of the controller leaves on them is nothing."""
    words = (*SMALL, machines, "cluster.hosts=2", "trainer.hosts=2", "reference.hosts=2")
    run = Hurt(tmp_path, PIPELINES / "grpo_math.forge", (*words, "schedule.steps=6"))
    run.step(3)
    listening = [log.read_text() for log in sorted(run.dir.glob("logs/host*.log"))]
    assert [text.partition("tcp://")[2].partition(":")[0] for text in listening] == [
        "127.0.0.11",
        "127.0.0.12",
    ]
    assert run.end(300) == 0, run.said()
    assert on_hosts(run) == []
    again = Hurt(tmp_path, PIPELINES / "grpo_math.forge", (*words, "schedule.steps=500"), run="two")
    again.step(3)
    assert on_hosts(again)
    for pid in on_hosts(again):
        os.kill(pid, signal.SIGSTOP)
    hard(again.ran.pid)
    end = time.monotonic() + 30
    while (left := on_hosts(again)) and time.monotonic() < end:
        time.sleep(0.5)
    assert left == []


def on_hosts(run: Hurt) -> list[int]:
    """Processes of its meshes, wherever they were started from."""
    pids = [int(log.stem.rpartition("-")[2]) for log in run.dir.glob("logs/*-*.log")]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]
