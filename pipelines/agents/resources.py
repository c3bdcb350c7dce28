"""The agent: an environment of NeMo-Gym. A resources server has its tools, and gives the reward.

    python3.12 -m venv /venvs/gym
    /venvs/gym/bin/python -m pip install nemo-gym==0.4.0
    /venvs/gym/bin/python environments/nemo_gym_server.py equivalence_rule
    forgec run nemo-gym.forge

This script needs no package. It does what the simple agent of NeMo-Gym does: it begins a session
(`/seed_session`), asks the policy, calls tools (`/NAME`) and gets the reward (`/verify`), all with
the cookies of the session. What `/verify` needs beside the answer is `target` of the dataset: an
object, or the value of the field `--answer`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

SESSION = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())


def post(url: str, body: Any, key: str = "") -> str:
    """Send a request; return the text of the answer."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with SESSION.open(request) as answer:
        return str(answer.read(), "utf-8")


def call(server: str, name: str, arguments: str) -> str:
    """Call a tool; a mistake of the policy is what the tool answers."""
    try:
        return post(f"{server}/{name}", json.loads(arguments))
    except json.JSONDecodeError as error:
        return json.dumps({"error": f"invalid arguments: {error}"})
    except urllib.error.HTTPError as error:
        return error.read().decode()


def ask(server: str, params: dict[str, Any], steps: int) -> dict[str, Any]:
    """Ask the policy until it calls no tool; return the last response, with the output of all."""
    policy = os.environ["OPENAI_BASE_URL"] + "/responses"
    output: list[dict[str, Any]] = []
    for _ in range(steps):
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
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", required=True, help="address of the resources server")
    parser.add_argument("--answer", default="expected_answer", help="field for a plain target")
    parser.add_argument("--tools", help="JSON file: `responses_create_params.tools` of its rows")
    parser.add_argument("--steps", type=int, default=8, help="most requests to the policy")
    given = parser.parse_args()
    server = given.url.rstrip("/")
    with open(os.environ["FORGE_TASK"], encoding="utf-8") as file:
        task = json.load(file)
    params: dict[str, Any] = {"input": task["messages"]}
    if given.tools:
        params["tools"] = json.loads(Path(given.tools).read_text("utf-8"))
    target = task["target"]
    row = {"responses_create_params": params}
    row |= target if isinstance(target, dict) else {given.answer: target}
    try:
        post(f"{server}/seed_session", row)
    except urllib.error.URLError as error:
        why = getattr(error, "reason", error)
        start = "pip install nemo-gym==0.4.0, python environments/nemo_gym_server.py NAME"
        sys.exit(f"no server of NeMo-Gym answers at {server} ({why}); to start one: {start}")
    response = ask(server, params, given.steps)
    try:
        verified = json.loads(post(f"{server}/verify", {**row, "response": response}))
    except urllib.error.HTTPError as error:
        sys.exit(f"/verify of {server} refuses the row: {error} {error.read().decode()[:200]}")
    print(json.dumps({"solved": verified["reward"]}))


if __name__ == "__main__":
    main()
