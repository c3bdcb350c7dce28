"""A run over two pods, started by the very script of the manifest; the pods are processes here.

FORGE_DEEP=1 runs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hurt import FORGEC, PIPELINES, SMALL

pytestmark = [
    pytest.mark.skipif(os.environ.get("FORGE_DEEP") != "1", reason="minutes; FORGE_DEEP=1"),
    pytest.mark.timeout(1200),
]
BIN = Path(sys.executable).parent
POD = ('launcher=kubernetes("rl", image="forge:1")', "cluster.hosts=2", "trainer.hosts=2",
       "reference.hosts=2", "schedule.steps=6")  # fmt: skip


def test_the_script_of_the_manifest_runs_the_job_on_all_pods(tmp_path: Path) -> None:
    words = ("build", str(PIPELINES / "grpo_math.forge"), "-o", "out", "--profile", "cpu")
    emit = ("--emit", "k8s", "--set", *SMALL, *POD)
    subprocess.run([*FORGEC, *words, *emit], cwd=tmp_path, check=True, capture_output=True)
    _, job = yaml.safe_load_all((tmp_path / "out/k8s.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    pods = []
    for index, address in enumerate(("127.0.0.11", "127.0.0.12")):
        # what is listened at is no part of an address of a pod's own
        own = {"FORGE_WORKERS": "tcp://127.0.0.11:26611,tcp://127.0.0.12:26612",
               "JOB_COMPLETION_INDEX": str(index), "FORGEDSL_ADDRESS": address,
               "HOSTNAME": f"grpo-math-{index}", "PATH": f"{BIN}:{os.environ['PATH']}"}  # fmt: skip
        log = (tmp_path / f"pod{index}.log").open("w")
        command = [*container["command"], *container["args"]]
        pods.append(
            subprocess.Popen(
                command, cwd=tmp_path / "out", env=os.environ | own, stdout=log, stderr=log,
                start_new_session=True,
            )
        )  # fmt: skip
    try:
        assert pods[0].wait(600) == 0, (tmp_path / "pod0.log").read_text()[-6000:]
        assert pods[1].poll() is None, "its worker serves until the Job is over"
    finally:
        for pod in pods:
            if pod.poll() is None:
                os.killpg(pod.pid, 9)
    run = tmp_path / "out/runs/grpo-math-0"
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 6
    ranks = [line for line in (run / "events.jsonl").read_text().splitlines()
             if '"process.start"' in line and '"mesh":"trainer"' in line]  # fmt: skip
    assert len(ranks) == 2
