"""The script of pipelines/harbor.forge, between the endpoint of agents and a command that does
what `harbor trial start` of 0.26.0 does: it asks the policy from the host, runs tests/test.sh of
the task, and writes result.json. Harbor itself needs Python 3.12 and containers."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from agent_loopback import Client, Engine, Played, play

from forgedsl.environment import Task
from forgedsl.templates import project

HARBOR = """#!PYTHON
import argparse, json, os, pathlib, subprocess, tomllib, urllib.request

parser = argparse.ArgumentParser()
parser.add_argument("words", nargs=2)
for name in ("path", "agent", "model", "env", "trials-dir", "trial-name"):
    parser.add_argument(f"--{name}", required=True)
parser.add_argument("--agent-kwarg", action="append", default=[])
given = parser.parse_args()
assert given.words == ["trial", "start"], given.words
task, trial = pathlib.Path(given.path), pathlib.Path(given.trials_dir, given.trial_name)
(trial / "verifier").mkdir(parents=True)
result = {"verifier_result": None, "exception_info": None}
try:
    assert (task / "environment").is_dir() and tomllib.loads((task / "task.toml").read_text())
    kwargs = dict(each.split("=", 1) for each in given.agent_kwarg)
    kwargs.setdefault("api_base", os.environ["OPENAI_BASE_URL"])
    assert os.environ["HARBOR_TELEMETRY"] == "0"
    body = {"model": given.model.removeprefix("openai/"),
            "messages": [{"role": "user", "content": (task / "instruction.md").read_text()}]}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = kwargs["api_base"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
    (trial / "answer.txt").write_text(said)
    test = (task / "tests/test.sh").read_text()
    test = test.replace("/app/", f"{trial}/").replace("/logs/", f"{trial}/")
    subprocess.run(["bash", "-c", test], check=True)
    reward = float((trial / "verifier/reward.txt").read_text())
    result["verifier_result"] = {"rewards": {"reward": reward}}
except Exception as error:
    result["exception_info"] = {"exception_message": str(error) or type(error).__name__}
(trial / "result.json").write_text(json.dumps(result))
"""


def played(folder: Path, answer: str, *words: str, harbor: str = HARBOR) -> Played:
    """Play a trajectory of the script, with a folder of its own."""
    (folder / "agent.py").write_text(project("harbor")["agents/trial.py"])
    (folder / "task.json").write_text(json.dumps({"text": "2+5=", "target": "7"}))
    (folder / "bin").mkdir()
    python = folder / "bin/python"
    python.symlink_to(sys.executable)
    if harbor:
        (folder / "bin/harbor").write_text(harbor.replace("PYTHON", sys.executable))
        (folder / "bin/harbor").chmod(0o755)
    (folder / "work").mkdir()

    async def run(client: Client, task: Task) -> dict[str, float]:
        variables = {
            "PATH": os.environ["PATH"], "FORGE_TASK": str(folder / "task.json"),
            "FORGE_MODEL": "m", "OPENAI_API_KEY": client.model.key,
            "OPENAI_BASE_URL": client.model.url,
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            str(python), str(folder / "agent.py"), *words, env=variables, cwd=folder / "work",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, error = await process.communicate()
        if process.returncode:
            raise RuntimeError(error.decode()[-300:])
        return dict(json.loads(out.splitlines()[-1]))

    return play(run, Engine([answer]))


@pytest.mark.parametrize(("answer", "reward"), [("7", 1.0), (" 7\n", 1.0), ("8", 0.0), ("", 0.0)])
def test_the_verifier_of_the_task_gives_the_reward(
    answer: str, reward: float, tmp_path: Path
) -> None:
    found = played(tmp_path, answer)
    assert (found.error, found.rollout.rewards) == ("", {"solved": reward})
    written = tmp_path / "work/task"
    assert "the value of 2+5 into" in (written / "instruction.md").read_text()
    assert {p.name for p in written.iterdir()} == {
        "instruction.md", "task.toml", "environment", "tests"
    }  # fmt: skip


def test_a_task_may_be_a_folder(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.mkdir()
    played(first, "7")
    shutil.move(first / "work/task", tmp_path / "tasks/7")
    second = tmp_path / "second"
    second.mkdir()
    found = played(second, "7", "--task", str(tmp_path / "tasks/7"))
    assert (found.error, found.rollout.rewards) == ("", {"solved": 1.0})
    assert not (second / "work/task").exists()


def test_a_trial_that_failed_is_an_error_of_the_agent_with_its_reason(tmp_path: Path) -> None:
    found = played(tmp_path, "7", "--task", str(tmp_path / "absent"))
    assert "the trial has no reward" in found.error


def test_a_harbor_that_is_missing_or_dies_is_told(tmp_path: Path) -> None:
    for name, harbor, said in (
        ("a", "", "-m pip install harbor==0.26.0"),
        ("b", "#!/bin/sh\nexit 3\n", "harbor left no result (exit code 3)"),
    ):
        (tmp_path / name).mkdir()
        assert said in played(tmp_path / name, "7", harbor=harbor).error


def test_an_agent_that_runs_what_the_policy_writes_is_refused_on_the_host(tmp_path: Path) -> None:
    assert "needs a container" in played(tmp_path, "7", "--environment", "host").error


def test_an_agent_that_runs_nothing_plays_on_the_host(tmp_path: Path) -> None:
    found = played(tmp_path, "7", "--environment", "host", "--agent", "once")
    assert (found.error, found.rollout.rewards) == ("", {"solved": 1.0})
