"""Translates requests in OpenAI's Responses API to chat completions, and the answers back.

    body of POST /v1/responses --as_chat--> body for chat completions
    Chat, Answer --response--> body of the answer --events--> events of a stream

Answers are kept until the trajectory ends, so that a request can continue from one of them
(`previous_response_id`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forgedsl_runtime.agents.protocol import Answer, ApiError, Chat

PASSED_THROUGH = frozenset({
    "metadata", "model", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention",
    "safety_identifier", "service_tier", "store", "stream", "temperature", "top_logprobs", "top_p",
    "user",
})  # fmt: skip
"""fields with the same meaning as in chat completions"""
READ = frozenset({
    "input", "instructions", "max_output_tokens", "previous_response_id", "tool_choice", "tools",
})  # fmt: skip
NO_EFFECT: Mapping[str, Sequence[Any]] = {
    "background": (False,), "include": ([], ["reasoning.encrypted_content"]), "reasoning": ({},),
    "text": ({}, {"format": {"type": "text"}}), "truncation": ("disabled",),
}  # fmt: skip
"""by unsupported field: values that are accepted, because they have no effect"""
PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}

Messages = list[dict[str, Any]]


def as_chat(body: Any, before: Mapping[str, Messages]) -> tuple[dict[str, Any], Messages]:
    """Return the body of the same request for chat completions, and its conversation without
    `instructions`, which later requests do not inherit. `before` holds the conversations up to each
    earlier response.

    Raises:
        ApiError: it is not valid, or asks for what the endpoint does not do.
    """
    if not isinstance(body, dict):
        raise ApiError(400, "the body is not a JSON object")
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        if name not in PASSED_THROUGH and name not in READ and value not in NO_EFFECT.get(name, ()):
            message = f"`{name}` is not supported by this endpoint"
            raise ApiError(400, message, param=name, code="unsupported_parameter")
    past: Messages = []
    if "previous_response_id" in given:
        name = str(given["previous_response_id"])
        if name not in before:
            message = f"previous response with id {name!r:.60} not found in this trajectory"
            code = "previous_response_not_found"
            raise ApiError(404, message, param="previous_response_id", code=code)
        past = before[name]
    messages = [*past, *_messages(given.get("input"))]
    chat = {name: value for name, value in given.items() if name in PASSED_THROUGH}
    if "instructions" in given:
        chat["messages"] = [{"role": "system", "content": given["instructions"]}, *messages]
    else:
        chat["messages"] = messages
    if "max_output_tokens" in given:
        chat["max_tokens"] = given["max_output_tokens"]
    if given.get("tools"):
        chat["tools"] = [_tool(tool, index) for index, tool in enumerate(_list(given, "tools"))]
        chat["tool_choice"] = given.get("tool_choice", "auto")
    return chat, messages


def _list(given: Mapping[str, Any], name: str) -> list[Any]:
    found = given[name]
    if not isinstance(found, list):
        raise ApiError(400, f"`{name}` is no list", param=name)
    return found


def _tool(tool: Any, index: int) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, dict) else tool
        message = f"tools[{index}] of type {kind!r:.40} is not supported; use type function"
        raise ApiError(400, message, param=f"tools[{index}]", code="unsupported_parameter")
    names = ("name", "description", "parameters")
    return {"type": "function", "function": {n: tool[n] for n in names if tool.get(n) is not None}}


def _messages(value: Any) -> Messages:
    """Return the items of an input as messages. Calls of tools join the text before them."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise ApiError(400, "`input` must be a text, or a list of items", param="input")
    found: Messages = []
    for index, item in enumerate(value):
        where = f"input[{index}]"
        if not isinstance(item, dict):
            raise ApiError(400, f"{where} is no object", param=where)
        kind = item.get("type", "message")
        if kind == "message":
            content = item.get("content")
            text = content if isinstance(content, str) else _parts(content, where)
            found.append({"role": item.get("role"), "content": text})
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments", "{}")}
            call = {"id": item.get("call_id", ""), "type": "function", "function": function}
            if not found or found[-1]["role"] != "assistant":
                found.append({"role": "assistant", "content": ""})
            found[-1] = {**found[-1], "tool_calls": [*found[-1].get("tool_calls", ()), call]}
        elif kind == "function_call_output":
            output = item.get("output")
            text = output if isinstance(output, str) else _parts(output, where)
            ident = str(item.get("call_id", ""))
            found.append({"role": "tool", "tool_call_id": ident, "content": text})
        elif kind != "reasoning":  # thoughts are in the text of an answer
            message = f"{where} of type {kind!r:.40} is not supported"
            raise ApiError(400, message, param=where, code="unsupported_content")
    return found


def _parts(content: Any, where: str) -> str:
    """Return parts of text as one text."""
    texts = []
    for part in content if isinstance(content, list) else [content]:
        text = part.get(PARTS.get(str(part.get("type")), "")) if isinstance(part, dict) else None
        if not isinstance(text, str):
            message = f"{where} has content that is no text"
            raise ApiError(400, message, param=where, code="unsupported_content")
        texts.append(text)
    return "".join(texts)


# ---- answers


def response(body: Mapping[str, Any], chat: Chat, ident: str, said: Answer) -> dict[str, Any]:
    """Return the body of an answer."""
    output: list[dict[str, Any]] = []
    message = said.message
    calls = message.get("tool_calls", ())
    if message["content"] or not calls:
        part: dict[str, Any] = {
            "type": "output_text",
            "text": message["content"] or "",
            "annotations": [],
        }
        output.append({
            "type": "message", "id": f"msg_{ident}", "status": "completed", "role": "assistant",
            "content": [part],
        })  # fmt: skip
    for index, call in enumerate(calls):
        output.append({
            "type": "function_call", "id": f"fc_{ident}_{index}", "call_id": call["id"],
            "status": "completed", **call["function"],
        })  # fmt: skip
    cut = said.finish == "length"
    return {
        "id": ident, "object": "response", "created_at": int(time.time()), "model": chat.model,
        "status": "incomplete" if cut else "completed", "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": body.get("instructions"), "metadata": body.get("metadata") or {},
        "output": output, "parallel_tool_calls": True, "temperature": None, "top_p": None,
        "tool_choice": body.get("tool_choice") or "auto", "tools": body.get("tools") or [],
        "max_output_tokens": body.get("max_output_tokens"),
        "previous_response_id": body.get("previous_response_id"),
        "usage": {
            "input_tokens": said.prompt_tokens, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": said.tokens, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": said.prompt_tokens + said.tokens,
        },
    }  # fmt: skip


def events(whole: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a response's stream."""
    for number, event in enumerate(_events(whole)):
        yield {**event, "sequence_number": number}


def _events(whole: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    begun = {**whole, "status": "in_progress", "output": [], "usage": None,
             "incomplete_details": None}  # fmt: skip
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(whole["output"]):
        here = {"output_index": index, "item_id": item["id"]}
        is_call = item["type"] == "function_call"
        empty: dict[str, Any] = {"arguments": ""} if is_call else {"content": []}
        added = {**item, "status": "in_progress", **empty}
        yield {"type": "response.output_item.added", "output_index": index, "item": added}
        if is_call:
            kind, given = "response.function_call_arguments", item["arguments"]
            yield {"type": f"{kind}.delta", **here, "delta": given}
            yield {"type": f"{kind}.done", **here, "name": item["name"], "arguments": given}
        else:
            (part,) = item["content"]
            at = {**here, "content_index": 0}
            none = {**part, "text": ""}
            text = {**at, "logprobs": []}
            yield {"type": "response.content_part.added", **at, "part": none}
            yield {"type": "response.output_text.delta", **text, "delta": part["text"]}
            yield {"type": "response.output_text.done", **text, "text": part["text"]}
            yield {"type": "response.content_part.done", **at, "part": part}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{whole['status']}", "response": dict(whole)}
