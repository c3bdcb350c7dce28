"""The log of a trajectory: requests, training rows, tokens, tools, versions."""

from __future__ import annotations

from agent_loopback import CALL, TOOL, USER, Client, Engine, play

from forgedsl.environment import Task
from forgedsl_runtime.controller.trajectory_log import log_of


def test_each_answer_of_an_agent_has_a_record() -> None:
    async def run(client: Client, task: Task) -> None:
        first = await client.chat(USER, tools=[TOOL])
        result = {"role": "tool", "tool_call_id": first["tool_calls"][0]["id"], "content": "7"}
        await client.chat(USER, first, result, tools=[TOOL])
        await client.chat("1+2")

    rollout = play(run, Engine([CALL, "8", "9"])).rollout
    log = log_of(rollout)
    assert [(each["row"], each["tokens"], each["calls"]) for each in log] == [
        (0, 3, ["f"]), (0, 3, []), (1, 3, [])
    ]  # fmt: skip
    assert [rollout.text[slice(*each["at"])] for each in log] == [CALL, "8", "9"]
    assert [each["versions"] for each in log] == [[[0, 3]], [[1, 3]], [[2, 3]]]
    seen = sum(each["seen"] for each in log)
    assert seen == len(rollout.prompt.token_ids) + rollout.num_observed
    assert log[0]["seen"] == len(rollout.prompt.token_ids)
    assert {(each["start"], each["seconds"]) for each in log} == {(0.0, 1.0)}


def test_a_call_that_cannot_be_read_has_its_status() -> None:
    async def run(client: Client, task: Task) -> None:
        await client.chat(USER, tools=[TOOL])

    (answer,) = log_of(play(run, Engine(["<tool_call>{"])).rollout)
    assert answer["calls"] == ["unclosed"]
