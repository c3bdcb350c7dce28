"""The agent: an environment of NeMo-Gym. A resources server has its tools, and gives the reward.

    python3.12 -m venv /venvs/gym
    /venvs/gym/bin/python -m pip install nemo-gym==0.4.0
    /venvs/gym/bin/gym env start --resources-server NAME ...     which prints the server's address
    NEMO_GYM_URL=http://127.0.0.1:PORT forgec run nemo-gym.forge

This script needs no package. It does what the simple agent of NeMo-Gym does: it begins a session
(`/seed_session`), asks the policy, calls tools (`/NAME`) and gets the reward (`/verify`), all with
the cookies of the session. TOOLS are `responses_create_params.tools` of the environment's rows.
What `/verify` needs beside the answer is `target` of the dataset: an object, or the value of
EXPECTED.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any

TOOLS: list[dict[str, Any]] = []
EXPECTED = "expected_answer"
STEPS = 8

SESSION = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())


def post(url: str, body: Any, key: str = "") -> str:
    """Send a request; return the text of the answer."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with SESSION.open(request) as answer:
        return answer.read().decode()


def call(server: str, name: str, arguments: str) -> str:
    """Call a tool; a mistake of the policy is what the tool answers."""
    try:
        return post(f"{server}/{name}", json.loads(arguments))
    except json.JSONDecodeError as error:
        return json.dumps({"error": f"invalid arguments: {error}"})
    except urllib.error.HTTPError as error:
        return error.read().decode()


def ask(server: str, params: dict[str, Any]) -> dict[str, Any]:
    """Ask the policy until it calls no tool; return the last response, with the output of all."""
    policy = os.environ["OPENAI_BASE_URL"] + "/responses"
    output: list[dict[str, Any]] = []
    for _ in range(STEPS):
        asked = {**params, "model": os.environ["FORGE_MODEL"], "input": params["input"] + output}
        response = json.loads(post(policy, asked, os.environ["OPENAI_API_KEY"]))
        output += response["output"]
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        if response.get("incomplete_details") or not calls:
            break
        for item in calls:
            said = call(server, item["name"], item["arguments"])
            output.append(
                {"type": "function_call_output", "call_id": item["call_id"], "output": said}
            )
    return {**response, "output": output}


def main() -> None:
    server = os.environ.get("NEMO_GYM_URL", "").rstrip("/")
    if not server:
        sys.exit("NEMO_GYM_URL is not set: it is the address of a resources server of NeMo-Gym")
    with open(os.environ["FORGE_TASK"], encoding="utf-8") as file:
        task = json.load(file)
    params: dict[str, Any] = {"input": task["messages"]}
    if TOOLS:
        params["tools"] = TOOLS
    target = task["target"]
    row = {"responses_create_params": params}
    row |= target if isinstance(target, dict) else {EXPECTED: target}
    post(f"{server}/seed_session", row)
    verified = json.loads(post(f"{server}/verify", {**row, "response": ask(server, params)}))
    print(json.dumps({"solved": verified["reward"]}))


if __name__ == "__main__":
    main()
