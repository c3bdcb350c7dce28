"""What the ssh launcher starts on a machine, and ends there; a real server: deep/test_ssh.py."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from forgedsl.errors import LaunchError
from forgedsl_runtime.hosts import remote
from forgedsl_runtime.hosts.ssh import SshHosts

SSH = """#!/bin/sh
case "$*" in *-G*) echo hostname 127.0.0.2; exit;; esac
while [ $# -gt 1 ]; do shift; done
exec setsid -w sh -c "$1"
"""
WAITS = "import time\ndef run_worker_loop_forever(**_):\n    time.sleep(60)\n"


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshHosts:
    """Reached by an ssh that runs everything here, where a worker of Monarch only waits."""
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    (tmp_path / "monarch").mkdir()
    (tmp_path / "monarch/actor.py").write_text(WAITS)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(remote, "attach_hosts", lambda addresses, at: addresses)
    return SshHosts()


def test_workers_listen_where_ssh_goes_and_end_with_their_input(hosts: Any, tmp_path: Path) -> None:
    hosts.start(2, {"hosts": ["n1", "n2"]}, tmp_path, tmp_path / "logs")
    assert all(address.startswith("tcp://127.0.0.2:") for address in hosts._all)
    there = [p for worker in hosts.workers for p in psutil.Process(worker.pid).children(True)]
    assert there
    hosts.stop()
    for worker in hosts.workers:
        worker.stdin.close()
    deadline = time.monotonic() + 10
    while any(p.is_running() for p in there) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(p.is_running() for p in there)


def test_a_path_that_a_machine_does_not_see_is_named(
    hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = remote.WORKER.replace("sys.argv[1:]", repr([str(tmp_path / "nowhere")]))
    monkeypatch.setattr("forgedsl_runtime.hosts.ssh.WORKER", absent)
    with pytest.raises(
        LaunchError, match=r"(?s)host 0 \(n1\) did not start.*nowhere \(the run fold"
    ):
        hosts.start(1, {"hosts": ["n1"], "python": sys.executable}, tmp_path, tmp_path / "logs")


def test_more_hosts_than_are_named_are_refused(hosts: Any, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"the plan uses 2 hosts, but .* names 1"):
        hosts.start(2, {"hosts": ["n1"]}, tmp_path, tmp_path / "logs")
