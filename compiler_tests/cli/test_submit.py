"""What `forgec run` does with a scheduler, with one of our own in Slurm's place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PIPELINE = Path(__file__).parents[2] / "pipelines/grpo_math.forge"
WORDS = (
    "run", str(PIPELINE), "--profile", "cpu", "--run-dir", "run", "--set",
    'launcher=slurm("main", time=1h)', "cluster.hosts=2",
)  # fmt: skip
EVENTS = [
    {"time": 1e9, "kind": "run.start", "name": "x", "steps": 4, "resumed_from": None,
     "recorded": 0, "profile": "cpu", "run_dir": "run", "content_hash": ""},
    {"time": 1e9 + 5, "kind": "run.end", "code": 75, "status": "interrupted", "seconds": 5.0,
     "message": "", "origin": "", "remedy": "", "service": ""},
]  # fmt: skip
SCONTROL = """
if [ -f asked ]; then echo "JobId=17 JobState=COMPLETED Reason=None"
else touch asked; echo "JobId=17 JobState=PENDING Reason=Resources Dependency=(null)"; fi
"""


def forgec(
    folder: Path, sbatch: str, words: tuple[str, ...] = WORDS
) -> subprocess.CompletedProcess[str]:
    """`forgec run` where these are `sbatch` and `scontrol`."""
    for name, text in (("sbatch", sbatch), ("scontrol", SCONTROL)):
        (folder / name).write_text("#!/bin/bash\n" + text)
        (folder / name).chmod(0o755)
    left = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    environment = left | {"PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", *words], cwd=folder, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_job_is_submitted_and_followed_to_its_own_exit_code(tmp_path: Path) -> None:
    (tmp_path / "said").write_text("".join(json.dumps(event) + "\n" for event in EVENTS))
    done = forgec(tmp_path, 'cp said "$(dirname "$2")/events.jsonl"; echo "17;cluster"')
    assert done.returncode == 75, done.stderr
    assert "submitted as job 17" in done.stderr
    assert "job 17 waits in the queue (Resources)" in done.stderr
    assert done.stdout.startswith("grpo_math (profile cpu) preempted: 0 steps in ")
    script = (tmp_path / "run/job.sbatch").read_text()
    assert {"#SBATCH --nodes=2", "#SBATCH --signal=B:TERM@120"} <= set(script.splitlines())
    assert script.splitlines()[-1].endswith(f"{tmp_path}/run/job.json --run-dir {tmp_path}/run")


def test_what_the_scheduler_refuses_is_said(tmp_path: Path) -> None:
    done = forgec(tmp_path, "echo 'error: invalid partition specified: main' >&2; exit 1")
    assert done.returncode == 4
    assert "job.sbatch: error: invalid partition specified: main" in done.stderr


def test_a_job_that_lies_in_its_folder_is_run_there_once(tmp_path: Path) -> None:
    """As the script does; a second time is refused."""
    from forgedsl.cli.overrides import UsageError
    from forgedsl.cli.running import new_run_dir

    job = tmp_path / "run/job.json"
    job.parent.mkdir()
    job.write_text("{}")
    assert new_run_dir(job.parent, "x", job) == job.parent
    (job.parent / "events.jsonl").touch()
    (job.parent / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(UsageError, match="already contains a run"):
        new_run_dir(job.parent, "x", job)


def test_a_start_that_was_interrupted_leaves_its_name_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was trained; what it wrote goes, what was there before stays."""
    from forgedsl.cli.running import new_run_dir

    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)
    for name in ("job.json", "events.jsonl", "metrics.jsonl", "notes.txt"):
        (run / name).touch()
    assert new_run_dir(run, "x") == run
    assert sorted(path.name for path in run.iterdir()) == [".running", "notes.txt"]
    assert "ended before its first step" in capsys.readouterr().err


def test_the_environment_of_a_job_is_set_up_where_it_runs(tmp_path: Path) -> None:
    """What is loaded and activated comes before the command, a container in front of it."""
    launcher = 'launcher=slurm("main", setup=["module load x", "activate y"], container="in it")'
    words = (*WORDS, "--set", launcher, "checkpoint.grace=5min")
    done = forgec(tmp_path, "echo 'error: full' >&2; exit 1", words)
    assert done.returncode == 4
    script = (tmp_path / "run/job.sbatch").read_text()
    assert "#SBATCH --signal=B:TERM@300" in script
    lines = script.splitlines()
    assert lines.index("module load x") + 1 == lines.index("activate y")
    path = f'PATH="$PATH":{Path(sys.executable).parent}'
    assert lines.index(path) < lines.index("module load x")
    assert lines[-1].startswith("exec in it forgec run ")


def test_a_script_with_a_set_up_is_one(tmp_path: Path) -> None:
    """Bash runs it to the command, also where set-up reads variables that are not set."""
    launcher = (
        'launcher=slurm("main", setup=["export FOUND=${NOT_SET}yes"], container="echo $FOUND")'
    )
    forgec(tmp_path, "exit 1", (*WORDS, "--set", launcher))
    environment = os.environ | {"SLURM_SUBMIT_DIR": str(tmp_path)}
    done = subprocess.run(
        ["bash", str(tmp_path / "run/job.sbatch")], env=environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.startswith("yes forgec run ")
