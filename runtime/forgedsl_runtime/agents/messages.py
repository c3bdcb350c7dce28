"""Translates requests in Anthropic's Messages API to chat completions, and the answers back.

body of POST /v1/messages --as_chat--> body for chat completions
Chat, Answer --message--> body of the answer --events--> events of a stream
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from forgedsl_runtime.agents.protocol import Answer, ApiError, Chat

PASSED_THROUGH = frozenset({
    "max_tokens", "messages", "metadata", "model", "service_tier", "stop_sequences", "stream",
    "system", "temperature", "tool_choice", "tools", "top_k", "top_p",
})  # fmt: skip
NO_EFFECT: Mapping[str, Sequence[Any]] = {"thinking": ({"type": "disabled"},)}
"""by unsupported field: values that are accepted, because they have no effect"""
CHOICES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error",
         413: "request_too_large", 429: "rate_limit_error"}  # fmt: skip
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

Messages = list[dict[str, Any]]


def as_chat(body: Any) -> dict[str, Any]:
    """Return the body of the same request for chat completions.

    Raises:
        ApiError: it is not valid, or asks for what the endpoint does not do.
    """
    if not isinstance(body, dict):
        raise ApiError(400, "the body is not a JSON object")
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        if name not in PASSED_THROUGH and value not in NO_EFFECT.get(name, ()):
            message = f"`{name}` is not supported by this endpoint"
            raise ApiError(400, message, param=name, code="unsupported_parameter")
    if "max_tokens" not in given:
        raise ApiError(400, "`max_tokens` is required", param="max_tokens")
    names = ("max_tokens", "model", "stream", "temperature", "top_k", "top_p")
    chat = {name: given[name] for name in names if name in given}
    chat["messages"] = _messages(given)
    if "stop_sequences" in given:
        chat["stop"] = given["stop_sequences"]
    if given.get("tools"):
        chat["tools"] = [_tool(tool, index) for index, tool in enumerate(_list(given, "tools"))]
        chat["tool_choice"] = _choice(given.get("tool_choice", {"type": "auto"}))
    return chat


def _list(given: Mapping[str, Any], name: str) -> list[Any]:
    found = given.get(name)
    if not isinstance(found, list):
        raise ApiError(400, f"`{name}` is no list", param=name)
    return found


def _choice(value: Any) -> str:
    kind = CHOICES.get(str(value.get("type"))) if isinstance(value, dict) else None
    if kind is None:
        raise ApiError(400, f"`tool_choice = {value!r:.60}` is not known", param="tool_choice")
    return kind


def _tool(tool: Any, index: int) -> dict[str, Any]:
    where = f"tools[{index}]"
    if not isinstance(tool, dict) or tool.get("type", "custom") != "custom":
        message = f"{where} must be a tool of type custom; server tools are not supported"
        raise ApiError(400, message, param=where)
    function = {"name": tool.get("name"), "parameters": tool.get("input_schema", {})}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _messages(given: Mapping[str, Any]) -> Messages:
    found: Messages = []
    if given.get("system"):
        found.append({"role": "system", "content": _text(given["system"], "system")})
    for index, message in enumerate(_list(given, "messages")):
        where = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant"):
            raise ApiError(400, f'{where}.role must be "user" or "assistant"', param=where)
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        found += _blocks(role, blocks, where)
    return found


def _blocks(role: str, blocks: Any, where: str) -> Iterator[dict[str, Any]]:
    """Yield the blocks of a message as messages: results of tools, then its text and calls."""
    texts, calls = [], []
    for block in blocks if isinstance(blocks, list) else [blocks]:
        if not isinstance(block, dict):
            message = f"{where}: content must be a text, or a list of blocks"
            raise ApiError(400, message, param=where)
        kind = block.get("type")
        if kind == "tool_result":
            text = _text(block.get("content", ""), where)
            yield {"role": "tool", "tool_call_id": str(block.get("tool_use_id")), "content": text}
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": json.dumps(block.get("input", {}))}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind not in ("thinking", "redacted_thinking"):
            texts.append(_text([block], where))
    if texts or calls:
        said: dict[str, Any] = {"role": role, "content": "".join(texts)}
        yield said | ({"tool_calls": calls} if calls else {})


def _text(content: Any, where: str) -> str:
    """Return a text, or blocks of text, as one text."""
    if isinstance(content, str):
        return content
    texts = []
    for block in content if isinstance(content, list) else [content]:
        text = block.get("text") if isinstance(block, dict) else None
        if not isinstance(text, str) or block["type"] != "text":
            kind = block.get("type") if isinstance(block, dict) else block
            message = f"{where}: content of type {kind!r:.40} is not supported; only text is"
            raise ApiError(400, message, param=where, code="unsupported_content")
        texts.append(text)
    return "".join(texts)


# ---- answers


def error(found: ApiError) -> dict[str, Any]:
    """Return an error in Anthropic's form."""
    kind = KINDS.get(found.status, "invalid_request_error" if found.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(found)}}


def message(chat: Chat, ident: str, said: Answer) -> dict[str, Any]:
    """Return the body of an answer."""
    content: list[dict[str, Any]] = []
    calls = said.message.get("tool_calls", ())
    if said.message["content"] or not calls:
        content.append({"type": "text", "text": said.message["content"] or ""})
    for call in calls:
        given = json.loads(call["function"]["arguments"])
        name = call["function"]["name"]
        content.append({"type": "tool_use", "id": call["id"], "name": name, "input": given})
    return {
        "id": ident, "type": "message", "role": "assistant", "model": chat.model,
        "content": content, "stop_reason": REASONS[said.finish], "stop_sequence": None,
        "usage": {"input_tokens": said.prompt_tokens, "output_tokens": said.tokens},
    }  # fmt: skip


def events(whole: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of a message's stream."""
    usage = {**whole["usage"], "output_tokens": 0}
    begun = {**whole, "content": [], "stop_reason": None, "usage": usage}
    yield {"type": "message_start", "message": begun}
    for index, block in enumerate(whole["content"]):
        empty: dict[str, Any]
        if block["type"] == "text":
            empty, delta = {"text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            given = json.dumps(block["input"])
            empty, delta = {"input": {}}, {"type": "input_json_delta", "partial_json": given}
        here = {"index": index}
        yield {"type": "content_block_start", **here, "content_block": {**block, **empty}}
        yield {"type": "content_block_delta", **here, "delta": delta}
        yield {"type": "content_block_stop", **here}
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    tokens = whole["usage"]["output_tokens"]
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": tokens}}
    yield {"type": "message_stop"}
