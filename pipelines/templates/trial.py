"""The agent: a trial of Harbor. Its agent asks the policy, and its verifier gives the reward.

    python3.12 -m venv /venvs/harbor
    /venvs/harbor/bin/python -m pip install harbor==0.26.0
    forgec run harbor.forge interpreter=/venvs/harbor/bin/python

Harbor runs a task in a container (Docker, unless ENVIRONMENT says another kind), so the host needs
Docker. The agent is Terminus 2, which runs outside of the container: an agent in the container
cannot reach the endpoint, which is on the host's loopback address.

A task is a folder: instruction.md, task.toml, environment/, tests/test.sh. If TASKS is a folder of
tasks, `target` of the dataset is the name of one. Without it, each sum becomes a task.
"""

import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

TASKS = ""
ENVIRONMENT = "docker"
TURNS = 8
REWARD = "reward"
"""the reward of the verifier that counts"""

TEST = """#!/bin/bash
answer=$(tr -d '[:space:]' < /app/answer.txt)
if [ "$answer" = "{target}" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
FILES = {
    "instruction.md": "Write the value of {text} into the file /app/answer.txt.\n",
    "task.toml": 'schema_version = "1.4"\n\n[agent]\ntimeout_sec = 300.0\n',
    "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\n",
    "tests/test.sh": TEST,
}


def task_folder(text: str, target: str) -> Path:
    """Return the folder of a task: one of TASKS, or a new one whose task is the sum."""
    if TASKS:
        return Path(TASKS) / target
    for name, content in FILES.items():
        path = Path("task", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content.format(text=text.rstrip("="), target=target), "utf-8")
    return Path("task")


def main() -> None:
    harbor = shutil.which("harbor", path=str(Path(sys.executable).parent))
    if harbor is None:
        sys.exit(f"there is no harbor here: {sys.executable} -m pip install harbor==0.26.0")
    with open(os.environ["FORGE_TASK"], encoding="utf-8") as file:
        task = json.load(file)
    trial = f"forge-{uuid.uuid4().hex[:12]}"  # Docker names the containers after it
    command = [
        harbor, "trial", "start", "--path", str(task_folder(task["text"], task["target"])),
        "--agent", "terminus-2", "--model", "openai/" + os.environ["FORGE_MODEL"],
        "--agent-kwarg", "api_base=" + os.environ["OPENAI_BASE_URL"],
        "--agent-kwarg", f"max_turns={TURNS}",
        "--env", ENVIRONMENT, "--trials-dir", "trials", "--trial-name", trial,
    ]  # fmt: skip
    local = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # or it downloads a file for each trial
    done = subprocess.run(command, stdout=sys.stderr, env={**os.environ, **local}, check=False)
    result = Path("trials", trial, "result.json")
    if not result.is_file():
        sys.exit(f"harbor left no result (exit code {done.returncode})")
    found = json.loads(result.read_text("utf-8"))
    rewards = (found.get("verifier_result") or {}).get("rewards")
    if not rewards:
        failed = found.get("exception_info") or {}
        why = " ".join(failed.get("exception_message", "no exception").split())
        sys.exit(f"the trial has no reward: {why}")  # one line, as a run shows the last one
    if REWARD not in rewards:
        sys.exit(f"the verifier gives no {REWARD}, but {', '.join(rewards)}: change REWARD")
    print(json.dumps({"solved": float(rewards[REWARD])}))


if __name__ == "__main__":
    main()
