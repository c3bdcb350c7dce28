"""The agent: a trial of Harbor. Its agent asks the policy, and its verifier gives the reward.

    python3.12 -m venv /venvs/harbor
    /venvs/harbor/bin/python -m pip install harbor==0.26.0
    forgec run harbor.forge interpreter=/venvs/harbor/bin/python

A task of Harbor is a folder: instruction.md, task.toml, environment/, tests/test.sh. With `--task
FOLDER` it is that of the row, such as "tasks/{target}"; without it, each sum becomes a task.

Harbor runs a task in a container: `--environment docker`, or another kind that Harbor has. Agents
must run outside of it, since the endpoint is on the host's loopback address; Terminus 2 does.
`--environment host --agent once` needs no container (harbor_host.py), and is for answers that are
not run.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

AGENTS = {"terminus-2": "terminus-2", "once": "harbor_host:Once"}
ENVIRONMENTS = {
    "host": "harbor_host:Host", "docker": "docker", "podman": "podman", "daytona": "daytona",
    "e2b": "e2b", "modal": "modal", "singularity": "singularity",
}  # fmt: skip

TEST = """#!/bin/bash
answer=$(tr -cd 0-9 < /app/answer.txt)
if [ "$answer" = "{target}" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
FILES = {
    "instruction.md": "Write the value of {text} into the file /app/answer.txt.\n",
    "task.toml": 'schema_version = "1.4"\n\n[agent]\ntimeout_sec = 300.0\n',
    "environment/Dockerfile": "FROM ubuntu:24.04\nWORKDIR /app\n",
    "tests/test.sh": TEST,
}


def task_folder(text: str, target: str) -> Path:
    """Return the folder of a new task: a sum."""
    for name, content in FILES.items():
        path = Path("task", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content.format(text=text.rstrip("="), target=target), "utf-8")
    return Path("task")


def main() -> None:
    parser = argparse.ArgumentParser(description="A trial of Harbor.")
    parser.add_argument("--task", help="folder of the task")
    parser.add_argument("--agent", choices=AGENTS, default="terminus-2")
    parser.add_argument("--environment", choices=ENVIRONMENTS, default="docker")
    parser.add_argument("--turns", type=int, default=8, help="most requests of Terminus 2")
    parser.add_argument("--reward", default="reward", help="that of the verifier which counts")
    given = parser.parse_args()
    if given.environment == "host" and given.agent != "once":
        sys.exit(
            f"{given.agent} runs what the policy writes, which needs a container, not the host"
        )
    harbor = shutil.which("harbor", path=str(Path(sys.executable).parent))
    if harbor is None:
        sys.exit(f"there is no harbor here: {sys.executable} -m pip install harbor==0.26.0")
    with open(os.environ["FORGE_TASK"], encoding="utf-8") as file:
        task = json.load(file)
    trial = f"forge-{uuid.uuid4().hex[:12]}"  # Docker names the containers after it
    folder = given.task or task_folder(task["text"], task["target"])
    command = [
        harbor, "trial", "start", "--path", str(folder),
        "--agent", AGENTS[given.agent], "--model", "openai/" + os.environ["FORGE_MODEL"],
        "--env", ENVIRONMENTS[given.environment], "--trials-dir", "trials", "--trial-name", trial,
    ]  # fmt: skip
    if given.agent == "terminus-2":
        command += ["--agent-kwarg", "api_base=" + os.environ["OPENAI_BASE_URL"]]
        command += ["--agent-kwarg", f"max_turns={given.turns}"]
    own = {
        "HARBOR_TELEMETRY": "0",  # or it sends what was run to its makers
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it downloads a file for each trial
        "PYTHONPATH": str(Path(__file__).parent),  # for harbor_host
    }
    done = subprocess.run(command, stdout=sys.stderr, env={**os.environ, **own}, check=False)
    result = Path("trials", trial, "result.json")
    if not result.is_file():
        sys.exit(f"harbor left no result (exit code {done.returncode})")
    found = json.loads(result.read_text("utf-8"))
    rewards = (found.get("verifier_result") or {}).get("rewards")
    if not rewards:
        failed = found.get("exception_info") or {}
        why = " ".join(failed.get("exception_message", "no exception").split())
        sys.exit(f"the trial has no reward: {why}")  # one line, as a run shows the last one
    if given.reward not in rewards:
        sys.exit(f"the verifier gives no {given.reward}, but {', '.join(rewards)}")
    print(json.dumps({"solved": float(rewards[given.reward])}))


if __name__ == "__main__":
    main()
