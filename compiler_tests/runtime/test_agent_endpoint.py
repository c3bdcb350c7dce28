"""The endpoint of agents: rows of what was sampled, chat completions, clients that misbehave."""

from __future__ import annotations

import asyncio
import gc
import json
from types import SimpleNamespace
from typing import Any

import pytest
from agent_loopback import (
    CALL,
    DROPS,
    EOS,
    PLAIN,
    TOKENIZER,
    TOOL,
    USER,
    Client,
    Engine,
    bridge,
    environment,
    ids,
    play,
    user,
)

from forgedsl.environment import Task
from forgedsl.errors import RunError
from forgedsl_runtime.agents.endpoint import Endpoint
from forgedsl_runtime.agents.protocol import canonical
from forgedsl_runtime.data.chat import ChatTokenizer
from forgedsl_runtime.endpoints import seed_of
from forgedsl_runtime.environments.bridge import Bridge
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.services.environment import EnvironmentClient

# ---- rows


def test_what_was_sampled_is_never_tokenized_again() -> None:
    async def run(client: Client, task: Task) -> dict[str, float]:
        first = await client.chat(USER)
        await client.chat(USER, first, "+2")
        return {"solved": 1.0}

    played = play(run)
    rollout = played.rollout
    turns = [10, 10, EOS], [11, 10, EOS]
    assert played.engine.seen == [ids("1+1="), [*ids("1+1="), *turns[0], *ids("+2=")]]
    assert rollout.prompt.token_ids == ids("1+1=")
    assert rollout.token_ids == [*turns[0], *ids("+2="), *turns[1]]
    assert rollout.mask == [True] * 3 + [False] * 3 + [True] * 3
    assert (rollout.turns, rollout.ended, rollout.row_starts) == (2, "done", ())
    assert rollout.versions == ((0, 3), (1, 3))
    assert rollout.turn_rewards == ((8, {"solved": 1.0}),)


def test_seeds_are_those_of_turns_in_an_environment() -> None:
    async def run(client: Client, task: Task) -> None:
        first = await client.chat(USER)
        await client.chat(USER, first, "+2")

    assert play(run).engine.seeds == [seed_of(11, 0), seed_of(11, 1)]


def test_rewritten_messages_begin_a_row() -> None:
    async def run(client: Client, task: Task) -> None:
        first = await client.chat(USER)
        await client.chat("1+2", first, "+2")

    rollout = play(run).rollout
    anew = [*ids("1+2=5"), EOS, *ids("+2=")]
    assert rollout.row_starts == (3,)
    assert rollout.token_ids == [10, 10, EOS, *anew, 11, 10, EOS]
    assert rollout.mask == [True] * 3 + [False] * len(anew) + [True] * 3


def test_a_second_answer_behind_the_same_turn_begins_a_row_with_the_same_tokens() -> None:
    async def run(client: Client, task: Task) -> None:
        first = await client.chat(USER)
        await client.chat(USER, first, "+2")
        await client.chat(USER, first, "+3")

    rollout = play(run).rollout
    whole = [*ids("1+1="), 10, 10, EOS, *ids("+3=")]
    assert rollout.row_starts == (9,)
    assert rollout.token_ids[9:] == [*whole, 12, 10, EOS]
    assert rollout.mask[9:] == [False] * len(whole) + [True] * 3


def test_requests_side_by_side_have_rows_of_their_own() -> None:
    async def run(client: Client, task: Task) -> None:
        first, other = await asyncio.gather(client.chat(USER), client.chat("3+3"))
        await asyncio.gather(client.chat(USER, first, "+2"), client.chat("3+3", other, "+2"))

    played = play(run, Engine(["5", "6", "7", "8"]))
    rows = sorted(map(len, played.engine.seen))
    assert rows == [4, 4, 10, 10]
    assert len(played.rollout.row_starts) == 1
    assert played.rollout.turns == 4


def test_several_answers_of_one_request_have_seeds_and_rows_of_their_own() -> None:
    async def run(client: Client, task: Task) -> None:
        _, body = await client.post({"messages": [user(USER)], "n": 3})
        assert [c["index"] for c in body["choices"]] == [0, 1, 2]
        assert body["usage"] == {"prompt_tokens": 4, "completion_tokens": 9, "total_tokens": 13}

    played = play(run)
    assert len(set(played.engine.seeds)) == 3
    assert len(played.rollout.row_starts) == 2


def test_a_template_that_drops_thoughts_is_followed_if_the_file_says_so() -> None:
    async def run(client: Client, task: Task) -> None:
        first = await client.chat(USER)
        await client.chat(USER, first, "+2")

    engine = Engine(["4</think>5"])
    appended = play(run, engine, template=DROPS).rollout
    assert appended.row_starts == ()
    follows = environment(history="template")
    rewritten = play(run, Engine(["4</think>5"]), template=DROPS, of=follows).rollout
    assert rewritten.row_starts == (3,)
    assert rewritten.token_ids[3:-3] == [*ids("1+1=5"), EOS, *ids("+2=")]
    kept = play(run, Engine(["5"]), template=DROPS, of=follows).rollout
    assert kept.row_starts == ()


@pytest.mark.parametrize(
    "moved",
    [
        {"content": "5", "reasoning_content": "4"},
        {"content": [{"type": "text", "text": "<think>4</think>5 "}]},
    ],
)
def test_thoughts_that_a_client_moves_change_no_row(moved: dict[str, Any]) -> None:
    async def run(client: Client, task: Task) -> None:
        await client.chat(USER)
        await client.chat(USER, {"role": "assistant", **moved}, "+2")

    assert play(run, Engine(["<think>4</think>5"])).rollout.row_starts == ()


def test_calls_of_tools_are_read_and_their_results_go_on_in_the_row() -> None:
    async def run(client: Client, task: Task) -> None:
        body = {"messages": [user(USER)], "tools": [TOOL]}
        _, answer = await client.post(body)
        (choice,) = answer["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "3")
        assert (call["function"]["name"], call["type"]) == ("f", "function")
        arguments = json.loads(call["function"]["arguments"])
        assert arguments == {"b": 2, "a": [1]}
        again = {"name": "f", "arguments": json.dumps(dict(reversed(arguments.items())))}
        said = {"role": "assistant", "content": "3", "tool_calls": [{**call, "function": again}]}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "7"}
        await client.chat(USER, said, result, tools=[TOOL])

    played = play(run, Engine([CALL, "5"]))
    assert played.rollout.row_starts == ()
    assert played.engine.seen[1] == [*ids("[1]1+1="), 10, 10, EOS, *ids("7=")]


def test_calls_are_read_in_the_form_of_the_template_with_the_types_of_the_tool() -> None:
    template = "{# <function= <parameter= #}" + PLAIN
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    text = "3<tool_call>\n<function=f>\n<parameter=a>\n7\n</parameter>\n</function>\n</tool_call>"
    got: list[Any] = []

    async def run(client: Client, task: Task) -> None:
        got.append(await client.chat(USER, tools=[tool]))

    played = play(run, Engine([text]), template=template)
    assert (got[0]["content"], got[0]["tool_calls"][0]["function"]) == (
        "3", {"name": "f", "arguments": '{"a": 7}'}
    )  # fmt: skip
    assert played.rollout.tool_form == "qwen3_coder"


@pytest.mark.parametrize("text", ["<tool_call>{", CALL + "<tool_call>{}</tool_call>"])
def test_a_call_that_cannot_be_read_stays_text(text: str) -> None:
    async def run(client: Client, task: Task) -> None:
        said = await client.chat(USER, tools=[TOOL])
        assert said == {"role": "assistant", "content": text}

    assert not play(run, Engine([text])).failed


def test_tools_that_the_template_does_not_show_are_refused() -> None:
    found: list[Any] = []

    async def run(client: Client, task: Task) -> None:
        for tools in ([TOOL], []):
            found.append(await client.post({"messages": [user(USER)], "tools": tools}))

    without = PLAIN.replace("[{{ tools | length }}]", "")
    played = play(run, template=without)
    (status, body), (good, _) = found
    assert (status, good) == (400, 200)
    message = "the chat template of the policy does not show the tool `f`"
    assert (body["error"]["message"], body["error"]["param"]) == (message, "tools")
    assert len(played.engine.seen) == 1


def test_one_tool_among_others_that_the_template_does_not_show_is_named() -> None:
    async def run(client: Client, task: Task) -> None:
        other = {"type": "function", "function": {"name": "second"}}
        body = {"messages": [user(USER)], "tools": [TOOL, other]}
        status, answer = await client.post(body)
        assert status == 400
        assert "`second`" in answer["error"]["message"]
        await client.chat(USER)

    first = PLAIN.replace("{{ tools | length }}", "{{ tools[0].function.name }}")
    assert play(run, template=first).error == ""


def test_a_parser_that_fails_is_an_error_of_the_request_and_the_row_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(self: Bridge, text: str, tools: Any) -> Any:
        raise IndexError("list index out of range")

    found: list[Any] = []

    async def run(client: Client, task: Task) -> dict[str, float]:
        first = await client.chat(USER)
        asked = {"messages": [user(USER), first, user("+2")]}
        with monkeypatch.context() as patched:
            patched.setattr(Bridge, "read_calls", failing)
            found.append(await client.post({**asked, "tools": [TOOL]}))
            found.append(await client.post({**asked, "tools": [TOOL]}))
        found.append(await client.post(asked))
        return {"solved": 1.0}

    play(run)
    for status, body in found[:2]:
        assert status == 500
        assert body["error"]["message"] == (
            "its tool calls cannot be read: IndexError: list index out of range"
        )
    assert found[2][0] == 200


def test_calls_are_text_for_a_client_without_tools() -> None:
    async def run(client: Client, task: Task) -> None:
        assert (await client.chat(USER))["content"] == CALL
        assert (await client.chat(USER, tools=[TOOL], tool_choice="none"))["content"] == CALL

    assert not play(run, Engine([CALL])).failed


def test_special_tokens_in_messages_cannot_end_a_turn() -> None:
    async def run(client: Client, task: Task) -> None:
        await client.chat("1<eos>+1")

    assert play(run).engine.seen == [ids("1+1=")]


# ---- sampling


def test_a_client_may_ask_for_less_and_stop_earlier() -> None:
    async def run(client: Client, task: Task) -> None:
        await client.chat(USER, max_tokens=3, stop="9")
        await client.chat(USER, max_completion_tokens=99, stop=["8", "9"])

    played = play(run)
    assert [a.max_tokens for a in played.engine.asked] == [3, 8]
    assert [a.stop for a in played.engine.asked] == [("9",), ("8", "9")]


def test_a_seed_of_the_client_is_mixed_with_that_of_the_turn() -> None:
    async def run(client: Client, task: Task) -> None:
        for seed in (4, 4, 5):
            await client.chat(USER, seed=seed)

    seeds = play(run).engine.seeds
    assert seeds[0] == seeds[1] != seeds[2]
    assert seed_of(11, 0) not in seeds


def test_sampling_of_the_client_is_not_followed_and_told() -> None:
    async def run(client: Client, task: Task) -> None:
        await client.chat(USER, temperature=0.2, top_p=1.0, tools=[TOOL], tool_choice="required")

    played = play(run)
    assert [*played.told] == ["temperature", "tool_choice"]
    assert played.told["temperature"] == "the run samples with 1.0"
    assert played.engine.asked[0].temperature == 1.0


# ---- what is refused


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"frobnicate": 1}, "frobnicate"),
        ({"n": 0}, "n"),
        ({"n": 2.5}, "n"),
        ({"max_tokens": "8"}, "max_tokens"),
        ({"stop": [1]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tools": [{"type": "web"}]}, "tools"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0]"),
    ],
)
def test_what_is_not_done_is_refused_by_name(more: dict[str, Any], param: str) -> None:
    async def run(client: Client, task: Task) -> None:
        status, body = await client.post({"messages": [user(USER)], **more})
        assert status == 400
        assert body["error"]["type"] == "invalid_request_error"
        assert body["error"]["param"].startswith(param)
        await client.chat(USER)

    played = play(run)
    assert (played.failed, played.rollout.turns) == ([], 1)


@pytest.mark.parametrize(
    ("body", "path", "headers", "status"),
    [
        (b"{", "/chat/completions", {}, 400),
        (b"[" * 100_000, "/chat/completions", {}, 400),
        (b"[]", "/chat/completions", {}, 400),
        (b"\xff", "/chat/completions", {}, 400),
        (b" " * (16 * 2**20 + 1), "/chat/completions", {}, 413),
        (b"{}", "/completions", {}, 404),
        (b"{}", "/models", {}, 405),
        (b"{}", "/chat/completions", {"Authorization": "Bearer other"}, 401),
        (b"{}", "/chat/completions", {"Authorization": ""}, 401),
        (b"{}", "/chat/completions", {"Host": "evil.example:80"}, 403),
    ],
)
def test_bad_requests_get_errors_in_the_form_of_openai(
    body: bytes, path: str, headers: dict[str, str], status: int
) -> None:
    async def run(client: Client, task: Task) -> None:
        found, answer = await client.post(body, path=path, **headers)
        assert found == status
        assert answer["error"]["message"]
        await client.chat(USER)

    assert not play(run).failed


def test_messages_that_the_template_refuses_are_the_clients_mistake() -> None:
    async def run(client: Client, task: Task) -> None:
        status, body = await client.post({"messages": [user(USER)]})
        assert (status, body["error"]["param"]) == (400, "messages")

    template = "{{ raise_exception('no users') }}"
    assert "sent no request to the policy" in play(run, template=template).error


def test_models_are_the_policy() -> None:
    async def run(client: Client, task: Task) -> None:
        headers = {"Authorization": f"Bearer {client.model.key}"}
        async with client.http.get(client.model.url + "/models", headers=headers) as response:
            body = await response.json()
        assert [each["id"] for each in body["data"]] == ["policy"]
        await client.chat(USER)

    assert not play(run).failed


# ---- ends


@pytest.mark.parametrize("text", ["1" * 200, "1" * 100_000])
def test_a_prompt_over_the_context_is_refused_and_ends_the_trajectory(text: str) -> None:
    async def run(client: Client, task: Task) -> None:
        await client.chat(USER)
        status, body = await client.post({"messages": [user(text)]})
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
        raise ValueError("as the client of OpenAI does")

    played = play(run)
    assert (played.failed, played.rollout.ended, played.rollout.truncated) == ([], "tokens", True)


def test_rows_together_have_at_most_the_tokens_of_a_row_of_the_trainer() -> None:
    async def run(client: Client, task: Task) -> None:
        await client.chat(USER)
        await client.chat("2+2")
        status, _ = await client.post({"messages": [user("3+3")]})
        assert status == 400

    rollout = play(run, max_total_tokens=18).rollout
    assert (rollout.ended, rollout.turns) == ("tokens", 2)
    assert len(rollout.prompt.token_ids) + len(rollout.token_ids) == 14


def test_an_answer_that_the_run_cuts_ends_the_trajectory_if_nothing_follows() -> None:
    async def once(client: Client, task: Task) -> None:
        _, body = await client.post({"messages": [user(USER)]})
        assert body["choices"][0]["finish_reason"] == "length"

    async def wanted(client: Client, task: Task) -> None:
        await client.chat(USER, max_tokens=2)

    assert play(once, Engine(cut=True)).rollout.ended == "tokens"
    assert play(wanted, Engine(cut=True)).rollout.ended == "done"


def test_more_answers_than_max_turns_are_refused() -> None:
    async def run(client: Client, task: Task) -> None:
        for _ in range(2):
            await client.chat(USER)
        status, body = await client.post({"messages": [user(USER)]})
        assert (status, body["error"]["code"]) == (400, "max_turns_exceeded")

    rollout = play(run, turns=2).rollout
    assert (rollout.ended, rollout.turns) == ("turns", 2)


def test_a_failure_is_played_again_with_the_same_seeds_and_then_scored() -> None:
    async def run(client: Client, task: Task) -> None:
        await client.chat(USER)
        raise KeyError("k")

    played = play(run, of=environment(on_error=-1.0))
    assert played.failed == ["KeyError: 'k'"] * 2
    assert played.engine.seeds == [seed_of(11, 0)] * 2
    assert (played.rollout.ended, played.rollout.fixed) == ("error", -1.0)


def test_an_agent_that_asks_nothing_has_failed() -> None:
    async def run(client: Client, task: Task) -> None:
        pass

    played = play(run)
    assert played.failed == ["it sent no request to the policy"]
    assert "sent no request to the policy" in played.error


def test_an_agent_that_hangs_ends_at_its_deadline_with_its_turns() -> None:
    late: list[Any] = []

    async def run(client: Client, task: Task) -> None:
        await client.chat(USER)
        try:
            await asyncio.sleep(60)
        finally:
            late.append(await client.post({"messages": [user(USER)]}))

    rollout = play(run, of=environment(deadline=0.3)).rollout
    assert (rollout.ended, rollout.turns) == ("time", 1)
    ((status, body),) = late
    assert (status, "over" in body["error"]["message"]) == (409, True)


def test_a_model_without_a_chat_template_is_refused_before_the_run() -> None:
    async def main() -> None:
        mesh: Any = SimpleNamespace(size=1, origin="here")
        client = EnvironmentClient("helper", environment(), mesh, EventLog())
        made = ChatTokenizer.load(str(TOKENIZER))
        made.tokenizer.chat_template = None
        await client.driver(made, "policy")

    with pytest.raises(RunError, match="helper sends messages, and model policy has no chat"):
        asyncio.run(main())


# ---- clients that go away, or ask again


def test_a_client_that_goes_away_aborts_its_request_and_may_ask_again() -> None:
    engine = Engine()

    async def run(client: Client, task: Task) -> None:
        engine.gate = asyncio.Event()
        for stream in (False, True):
            asking = asyncio.create_task(client.post({"messages": [user(USER)], "stream": stream}))
            while len(engine.seen) <= engine.cancelled:
                await asyncio.sleep(0.001)
            asking.cancel()
            while len(engine.seen) > engine.cancelled:
                await asyncio.sleep(0.001)
        engine.gate.set()
        await client.chat(USER)

    played = play(run, engine)
    assert (engine.cancelled, engine.seeds) == (2, [seed_of(11, 0)] * 3)
    assert (played.rollout.turns, played.rollout.row_starts) == (1, ())


def test_a_request_that_is_repeated_gets_what_was_sampled() -> None:
    async def run(client: Client, task: Task) -> None:
        body = {"messages": [user(USER)]}
        _, first = await client.post(body)
        _, same = await client.post(body, x_stainless_retry_count="1")
        _, other = await client.post(body)
        texts = [each["choices"][0]["message"]["content"] for each in (first, same, other)]
        assert texts == ["5", "5", "6"]

    played = play(run, Engine(["5", "6"]))
    assert len(set(played.engine.seeds)) == len(played.engine.seen) == 2


def test_a_key_reaches_its_own_trajectory_alone() -> None:
    keys: list[str] = []

    async def run(client: Client, task: Task) -> None:
        keys.append(client.model.key)
        if len(keys) == 1:
            raise KeyError("played again, with another key")
        status, _ = await client.post({"messages": [user(USER)]}, Authorization=f"Bearer {keys[0]}")
        assert status == 409
        await client.chat(USER)

    played = play(run, of=environment(on_error=0.0))
    assert len(set(keys)) == 2
    assert played.rollout.ended == "done"


def test_full_collections_do_not_visit_what_stays_to_the_end() -> None:
    async def main() -> int:
        endpoint = Endpoint()
        await endpoint.start()
        await endpoint.close()
        return gc.get_freeze_count()

    gc.unfreeze()
    try:
        assert asyncio.run(main()) > 1000
    finally:
        gc.unfreeze()


def test_messages_are_the_same_only_if_role_text_name_and_calls_are() -> None:
    call = {"function": {"name": "f", "arguments": {"b": 1, "a": 2}}}
    moved = {"function": {"name": "f", "arguments": {"a": 2, "b": 1}}}
    said = {"role": "assistant", "content": "x"}
    same = [
        (said, {**said, "content": "<think>y</think> x "}),
        (said, {**said, "reasoning_content": "y"}),
        ({**said, "tool_calls": [call]}, {**said, "tool_calls": [moved]}),
    ]
    assert all(canonical(one) == canonical(other) for one, other in same)
    other = [
        {**said, "role": "user"},
        {**said, "content": "y"},
        {**said, "name": "n"},
        {**said, "tool_calls": [call]},
        {"role": "user", "content": canonical({**said, "tool_calls": [call]})},
        {"role": "user", "content": "</think>x"},
        {"role": "user", "content": "x "},
    ]
    assert len({canonical(each) for each in [said, *other]}) == len(other) + 1


@pytest.mark.parametrize("text", ["", "1+1=2", "\u4f60\u597d 12", "</s><s>1 +\n", "7" * 5000])
def test_the_fast_form_of_the_tokenizer_gives_the_same_tokens(text: str) -> None:
    core = bridge()._chat.tokenizer.backend_tokenizer
    assert ids(text) == core.encode(text, add_special_tokens=False).ids
