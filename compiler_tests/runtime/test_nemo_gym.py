"""The script of pipelines/nemo_gym.forge, between the endpoint of agents and a small server that
speaks the protocol of NeMo-Gym's resources servers (0.4.0: `base_resources_server.py`)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from agent_loopback import CALL, TOOL, USER, Client, Engine, Played, play, user

from forgedsl.environment import Task
from forgedsl.templates import project

COOKIE = "session=abc; path=/; httponly; samesite=lax"


class Resources(BaseHTTPRequestHandler):
    """Answers only within the session that `/seed_session` began. `/f` is a tool."""

    asked: list[tuple[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, body))
        if self.path == "/seed_session":
            return self.answer(200, {}, cookie=COOKIE)
        if "session=abc" not in self.headers.get("Cookie", ""):
            return self.answer(403, {"detail": "no session"})
        if self.path == "/f":
            return self.answer(200, {"sum": 7})
        if self.path == "/verify":
            said = [item for item in body["response"]["output"] if item["type"] == "message"]
            right = said[-1]["content"][0]["text"] == body["expected_answer"]
            return self.answer(200, {**body, "reward": float(right)})
        return self.answer(404, {"detail": "Not Found"})

    def answer(self, status: int, body: Any, cookie: str = "") -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        if cookie:
            self.send_header("Set-Cookie", cookie)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *given: object) -> None: ...


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    asked: list[tuple[str, Any]] = []
    handler = type("Handler", (Resources,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}", asked
        made.shutdown()


def played(folder: Path, url: str, texts: list[str], tools: list[Any], target: Any) -> Played:
    """Play a trajectory of the script."""
    (folder / "agent.py").write_text(project("nemo-gym")["agents/resources.py"])
    (folder / "tools.json").write_text(json.dumps(tools))
    words = ["--url", url, *(["--tools", str(folder / "tools.json")] if tools else [])]
    task = {"text": USER, "target": target, "messages": [user(USER)]}
    (folder / "task.json").write_text(json.dumps(task))

    async def run(client: Client, task: Task) -> dict[str, float]:
        variables = {
            "PATH": os.environ["PATH"], "FORGE_TASK": str(folder / "task.json"),
            "FORGE_MODEL": "m", "OPENAI_API_KEY": client.model.key,
            "OPENAI_BASE_URL": client.model.url,
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(folder / "agent.py"), *words, env=variables,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, error = await process.communicate()
        if process.returncode:
            raise RuntimeError(error.decode()[-300:])
        return dict(json.loads(out.splitlines()[-1]))

    return play(run, Engine(texts))


def flat(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", **tool["function"], "strict": True}


def test_a_policy_calls_tools_of_the_server_which_gives_the_reward(
    server: tuple[str, Any], tmp_path: Path
) -> None:
    url, asked = server
    found = played(tmp_path, url, [CALL, "7"], [flat(TOOL)], "7")
    assert found.rollout.rewards == {"solved": 1.0}
    assert found.rollout.row_starts == ()  # the call, its result and the answer are one row
    assert [path for path, _ in asked] == ["/seed_session", "/f", "/verify"]
    assert asked[1][1] == {"b": 2, "a": [1]}
    kinds = [item["type"] for item in asked[2][1]["response"]["output"]]
    assert kinds == ["message", "function_call", "function_call_output", "message"]
    assert asked[2][1]["responses_create_params"]["input"] == [user(USER)]


def test_what_is_wrong_is_no_reward_and_a_target_may_be_an_object(
    server: tuple[str, Any], tmp_path: Path
) -> None:
    url, asked = server
    found = played(tmp_path, url, ["8"], [], {"expected_answer": "7", "level": 2})
    assert found.rollout.rewards == {"solved": 0.0}
    assert (asked[0][1]["level"], "tools" in asked[0][1]["responses_create_params"]) == (2, False)


def test_a_tool_that_the_server_refuses_is_told_to_the_policy(
    server: tuple[str, Any], tmp_path: Path
) -> None:
    url, asked = server
    tool = {"type": "function", "function": {**TOOL["function"], "name": "absent"}}
    found = played(tmp_path, url, [CALL.replace('"f"', '"absent"'), "7"], [flat(tool)], "7")
    assert found.rollout.rewards == {"solved": 1.0}
    (output,) = (
        item["output"]
        for item in asked[-1][1]["response"]["output"]
        if item["type"] == "function_call_output"
    )
    assert json.loads(output) == {"detail": "Not Found"}


def test_a_server_that_does_not_answer_or_refuses_a_row_is_told(
    server: tuple[str, Any], tmp_path: Path
) -> None:
    url, _ = server
    for name, where, said in (
        (
            "a",
            "http://127.0.0.1:9",
            "no server of NeMo-Gym answers at http://127.0.0.1:9",
        ),
        ("b", f"{url}/absent", "Forbidden"),
    ):
        (tmp_path / name).mkdir()
        assert said in played(tmp_path / name, where, ["7"], [], "7").error
