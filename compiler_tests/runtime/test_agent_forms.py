"""The forms of the endpoint of agents: streams, responses, and messages as Anthropic's clients."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from agent_loopback import CALL, EOS, TOOL, USER, Client, Engine, ids, play, user

from forgedsl.environment import Task

# ---- streams


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_a_stream_has_the_pieces_of_the_whole_answer() -> None:
    async def run(client: Client, task: Task) -> None:
        body = {"messages": [user(USER)], "tools": [TOOL], "stream": True}
        status, text = await client.post(body | {"stream_options": {"include_usage": True}})
        *found, usage = events(text)
        deltas = [each["choices"][0]["delta"] for each in found]
        assert status == 200
        assert deltas[:2] == [{"role": "assistant", "content": ""}, {"content": "3"}]
        assert deltas[2]["tool_calls"][0]["function"]["name"] == "f"
        assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"
        assert {each["object"] for each in found} == {"chat.completion.chunk"}
        assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 3)

    assert not play(run, Engine([CALL])).failed


def test_a_stream_that_waits_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forgedsl_runtime.agents.endpoint.KEEP_ALIVE", 0.01)
    engine = Engine()

    async def run(client: Client, task: Task) -> None:
        engine.gate = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, engine.gate.set)
        _, text = await client.post({"messages": [user(USER)], "stream": True})
        alive, _, rest = text.partition("data: ")
        assert ": sampling" in alive
        assert events("data: " + rest)[1]["choices"][0]["delta"] == {"content": "5"}

    assert not play(run, engine).failed


# ---- responses

FLAT = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}


@pytest.mark.parametrize("streamed", [False, True])
def test_the_client_of_openai_gets_responses_and_goes_on_behind_them(streamed: bool) -> None:
    from openai import AsyncOpenAI

    async def run(client: Client, task: Task) -> None:
        async def ask(**more: Any) -> Any:
            given = {"model": "m", "tools": [FLAT], **more}
            if not streamed:
                return await openai.responses.create(**given)
            async with openai.responses.stream(**given) as stream:
                return await stream.get_final_response()

        async with AsyncOpenAI(base_url=client.model.url, api_key=client.model.key) as openai:
            first = await ask(input=USER, instructions="2+")
            message, call = first.output
            assert (first.output_text, message.role, call.name) == ("3", "assistant", "f")
            assert json.loads(call.arguments) == {"b": 2, "a": [1]}
            result = {"type": "function_call_output", "call_id": call.call_id, "output": "7"}
            items = [user(USER), *(item.model_dump() for item in first.output), result]
            second = await ask(input=items, instructions="2+")
            assert (second.output_text, second.usage.output_tokens) == ("5", 3)
            third = await ask(input="+4", instructions="2+", previous_response_id=second.id)
            assert third.status == "completed"

    played = play(run, Engine([CALL, "5", "6"]))
    assert (played.failed, played.error) == ([], "")
    assert played.rollout.row_starts == ()
    first, second, third = played.engine.seen
    assert first == ids("[1]2+1+1=")
    assert second == [*first, 10, 10, EOS, *ids("7=")]
    assert third == [*second, 11, 10, EOS, *ids("+4=")]


@pytest.mark.parametrize(
    ("more", "status", "param"),
    [
        ({"previous_response_id": "resp_9"}, 404, "previous_response_id"),
        ({"text": {"format": {"type": "json_object"}}}, 400, "text"),
        ({"background": True}, 400, "background"),
        ({"tools": [{"type": "web_search"}]}, 400, "tools[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, 400, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "input[0]"),
        ({"input": 5}, 400, "input"),
        ({"frobnicate": 1}, 400, "frobnicate"),
    ],
)
def test_what_responses_do_not_do_is_refused_by_name(
    more: dict[str, Any], status: int, param: str
) -> None:
    async def run(client: Client, task: Task) -> None:
        found, body = await client.post({"input": USER, **more}, path="/responses")
        assert (found, body["error"]["param"]) == (status, param)
        await client.chat(USER)

    assert not play(run).failed


# ---- messages

TOOL_OF_MESSAGES = {"name": "f", "input_schema": {"type": "object"}}


def test_messages_are_answered_in_blocks_and_go_on_behind_them() -> None:
    async def run(client: Client, task: Task) -> None:
        async def ask(*more: dict[str, Any], **fields: Any) -> Any:
            body = {"max_tokens": 8, "system": "2+", "tools": [TOOL_OF_MESSAGES], **fields}
            body["messages"] = [user(USER), *more]
            key = {"x_api_key": client.model.key, "Authorization": ""}
            return await client.post(body, path="/messages", **key)

        status, first = await ask()
        text, call = first["content"]
        assert (status, first["stop_reason"], text) == (
            200, "tool_use", {"type": "text", "text": "3"}
        )  # fmt: skip
        assert (call["type"], call["name"], call["input"]) == ("tool_use", "f", {"b": 2, "a": [1]})
        assert first["usage"] == {"input_tokens": len(ids("[1]2+1+1=")), "output_tokens": 3}
        done = {"type": "tool_result", "tool_use_id": call["id"], "content": [
            {"type": "text", "text": "7"}
        ]}  # fmt: skip
        thought = {"type": "thinking", "thinking": "hm", "signature": ""}
        answer = {"role": "assistant", "content": [thought, *first["content"]]}
        status, stream = await ask(answer, {"role": "user", "content": [done]}, stream=True)
        pieces = [piece.partition("\ndata: ") for piece in stream.split("\n\n") if piece]
        kinds = [kind.removeprefix("event: ") for kind, _, _ in pieces]
        found = [json.loads(data) for _, _, data in pieces]
        assert [each["type"] for each in found] == kinds == [
            "message_start", "content_block_start", "content_block_delta", "content_block_stop",
            "message_delta", "message_stop",
        ]  # fmt: skip
        assert found[2]["delta"] == {"type": "text_delta", "text": "5"}
        assert found[4]["delta"]["stop_reason"] == "end_turn"

    played = play(run, Engine([CALL, "5"]))
    assert (played.failed, played.error) == ([], "")
    assert played.rollout.row_starts == ()
    first, second = played.engine.seen
    assert second == [*first, 10, 10, EOS, *ids("7=")]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"max_tokens": None}, "`max_tokens` is required"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "`thinking` is not supported"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0] must be a tool"),
        ({"messages": [{"role": "system", "content": "1"}]}, 'messages[0].role must be "user"'),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0]: content"),
        ({"messages": [user("1" * 300)]}, "the prompt has 301 tokens, which leave no room"),
    ],
)
def test_what_messages_do_not_do_is_refused_in_their_form(
    more: dict[str, Any], message: str
) -> None:
    async def run(client: Client, task: Task) -> None:
        body = {"max_tokens": 8, "messages": [user(USER)], **more}
        status, found = await client.post(body, path="/messages")
        assert (status, found["type"]) == (400, "error")
        assert found["error"]["type"] == "invalid_request_error"
        assert found["error"]["message"].startswith(message)
        await client.chat(USER)

    assert not play(run).failed
