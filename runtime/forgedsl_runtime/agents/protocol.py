"""OpenAI's chat completions: what a request asks for, and the forms of answers and errors.

    body of POST /v1/chat/completions --parsed--> Chat        (or ApiError)
    Chat, Answer --> completion | chunks of a stream

The run sets the sampling; a request may only ask for fewer tokens and more stop strings. Fields
that would change the sampled distribution are ignored, and listed in `Chat.ignored_fields`. Fields
that the endpoint does not support are an error that names them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from forgedsl.lower.job import Sampling
from forgedsl.tool_calls import THOUGHTS_END, Call

MESSAGES = 4096
"""largest number of messages of a request"""
CHOICES = 32
"""largest number of answers of a request (`n`)"""
STOPS = 16
"""largest number of stop strings of a request"""
ROLES = ("system", "developer", "user", "assistant", "tool")
LABELS = frozenset({
    "metadata", "model", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
    "service_tier", "store", "user",
})  # fmt: skip
"""fields that change no answer"""
READ = frozenset({
    "max_completion_tokens", "max_tokens", "messages", "n", "seed", "stop", "stream",
    "stream_options", "tool_choice", "tools",
})  # fmt: skip
SAMPLED = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
    "frequency_penalty": None, "presence_penalty": None, "repetition_penalty": None,
}  # fmt: skip
"""fields of sampling -> setting of the run, or None if it has none"""
NO_PENALTY = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
"""values that mean no penalty"""
NO_EFFECT: Mapping[str, Sequence[Any]] = {
    "functions": ([],), "logit_bias": ({},), "logprobs": (False,), "modalities": (["text"],),
    "parallel_tool_calls": (True,), "response_format": ({"type": "text"},), "top_logprobs": (0,),
}  # fmt: skip
"""values of unsupported fields that are accepted, because they have no effect"""


class ApiError(Exception):
    """An error in OpenAI's form, with its HTTP status."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        self.status, self.param, self.code = status, param, code
        super().__init__(message)

    @property
    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def too_long(message: str) -> ApiError:
    """Make the error for a prompt that leaves no room in the context, in OpenAI's form."""
    return ApiError(400, message, param="messages", code="context_length_exceeded")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A request for chat completions. Contents of `messages` are text, arguments of tool calls are
    parsed."""

    model: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = field(default_factory=list)
    calls: bool = False
    """True if tool calls are parsed in answers"""
    n: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    stream: bool = False
    usage: bool = False
    """True if a stream ends with token counts"""
    ignored_fields: dict[str, str] = field(default_factory=dict)
    """ignored fields -> why"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer of the policy, as a message."""

    message: dict[str, Any]
    finish: str
    prompt_tokens: int
    tokens: int


# ---- requests


def parsed(body: Any, sampling: Sampling) -> Chat:
    """Read the body of a request; `sampling` is the run's.

    Raises:
        ApiError: it is not valid, or asks for what the endpoint does not do.
    """
    if not isinstance(body, dict):
        raise ApiError(400, "the body is not a JSON object")
    given = {name: value for name, value in body.items() if value is not None}
    _refuse_unsupported(given)
    calls = _choice(given)
    choice = given.get("tool_choice", "auto")
    ignored_fields = dict(_ignored_fields(given, sampling))
    if choice == "required" or isinstance(choice, dict):
        ignored_fields["tool_choice"] = (
            "if the policy were forced to call a tool, its tokens would not be sampled from the "
            "distribution whose log-probs are trained on"
        )
    options = given.get("stream_options", {})
    stream = _bool(given, "stream")
    if options and not stream:
        raise ApiError(400, "`stream_options` needs `stream`", param="stream_options")
    limit = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"
    return Chat(
        model=str(given.get("model", "")),
        messages=_messages(given.get("messages")),
        tools=_tools(given.get("tools", [])) if choice != "none" else [],
        calls=calls,
        n=_int(given, "n", 1, CHOICES, 1) or 1,
        max_tokens=_int(given, limit, 1, 2**31, None),
        stop=_stop(given.get("stop", [])),
        seed=_int(given, "seed", -(2**63), 2**64, None),
        stream=stream,
        usage=bool(isinstance(options, dict) and options.get("include_usage")),
        ignored_fields=ignored_fields,
    )


def _refuse_unsupported(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name in READ or name in LABELS or name in SAMPLED or value in NO_EFFECT.get(name, ()):
            continue
        known = name in NO_EFFECT
        what = f"`{name} = {json.dumps(value)[:60]}`" if known else f"`{name}`"
        message = f"{what} is not supported by this endpoint"
        raise ApiError(400, message, param=name, code="unsupported_parameter")


def _ignored_fields(given: Mapping[str, Any], sampling: Sampling) -> Iterator[tuple[str, str]]:
    for name, setting in SAMPLED.items():
        if name not in given:
            continue
        run = getattr(sampling, setting) if setting else NO_PENALTY[name]
        off = name == "top_k" and run is None and given[name] in (0, -1)
        if given[name] != run and not off:
            yield name, f"the run samples with {run}"


def _choice(given: Mapping[str, Any]) -> bool:
    """True if calls of tools are read from the answer."""
    choice = given.get("tool_choice", "auto")
    if choice not in ("auto", "none", "required") and not isinstance(choice, dict):
        raise ApiError(400, f"`tool_choice = {choice!r:.60}` is not known", param="tool_choice")
    return bool(given.get("tools")) and choice != "none"


def _bool(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise ApiError(400, f"`{name}` must be true or false", param=name)
    return value


def _int(
    given: Mapping[str, Any], name: str, least: int, most: int, default: int | None
) -> int | None:
    value = given.get(name, default)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        message = f"`{name}` must be a whole number from {least} to {most}"
        raise ApiError(400, message, param=name)
    return value


def _stop(value: Any) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value
    good = isinstance(found, list) and all(isinstance(s, str) and s for s in found)
    if not good or len(found) > STOPS:
        message = f"`stop` must be a string, or a list of at most {STOPS} strings"
        raise ApiError(400, message, param="stop")
    return tuple(found)


def _messages(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not 0 < len(value) <= MESSAGES:
        message = f"`messages` must be a list of 1 to {MESSAGES} messages"
        raise ApiError(400, message, param="messages")
    return [_message(message, index) for index, message in enumerate(value)]


def _message(value: Any, index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(value, dict) or value.get("role") not in ROLES:
        raise ApiError(400, f"{where}.role must be one of: {', '.join(ROLES)}", param=where)
    role = "system" if value["role"] == "developer" else value["role"]
    found: dict[str, Any] = {"role": role, "content": _text(value.get("content"), where)}
    if value.get("tool_calls"):
        found["tool_calls"] = [
            _tool_call(call, where) for call in _list(value, "tool_calls", where)
        ]
    for name in ("name", "tool_call_id", "reasoning_content"):
        if value.get(name) is not None:
            if not isinstance(value[name], str):
                raise ApiError(400, f"{where}.{name} is no text", param=where)
            found[name] = value[name]
    return found


def _text(content: Any, where: str) -> str:
    """Return a content as one text: content may be text, nothing, or parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        text = content
    elif isinstance(content, list):
        parts = []
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else None
            name = {"text": "text", "refusal": "refusal"}.get(str(kind))
            if name is None or not isinstance(part.get(name), str):
                message = f"{where}: parts of type {kind!r:.40} are not supported; use text"
                raise ApiError(400, message, param=where, code="unsupported_content")
            parts.append(part[name])
        text = "".join(parts)
    else:
        raise ApiError(400, f"{where}.content is no text", param=where)
    if not _is_unicode(text):
        raise ApiError(400, f"{where}.content is not valid Unicode", param=where)
    return text


def _is_unicode(text: str) -> bool:
    """True if a text has no lone surrogates, which JSON can express and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _list(value: Mapping[str, Any], name: str, where: str) -> list[Any]:
    found = value[name]
    if not isinstance(found, list):
        raise ApiError(400, f"{where}.{name} is no list", param=where)
    return found


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise ApiError(400, f"{where} has a tool call without a name", param=where)
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # text that is no JSON stays as it is
            arguments = json.loads(arguments or "{}")
    found = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return {"id": str(call.get("id", "")), **found}


def _tools(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise ApiError(400, "`tools` is no list", param="tools")
    for index, tool in enumerate(value):
        where = f"tools[{index}]"
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise ApiError(400, f"{where} is no tool of type function", param=where)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ApiError(400, f"{where} has no function with a name", param=where)
    return value


# ---- messages that are the same


def normalized(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer in the form in which it comes back in later requests."""
    return _message(message, 0)


def canonical(message: Mapping[str, Any]) -> str:
    """Return a canonical form of a message, by which a later request that contains it is
    recognized. Clients may move the thinking text, reorder tool arguments and omit ids."""
    content, role = str(message["content"]), message["role"]
    if role == "assistant":
        content = content.rpartition(THOUGHTS_END)[2].strip()
    if not (message.get("tool_calls") or message.get("name")):  # cannot equal the JSON below
        return f"{role} {content}"
    calls = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    ]
    return json.dumps([role, content, message.get("name"), calls], sort_keys=True)


# ---- answers


def message_of(
    text: str, before: str, found: Sequence[Call], ident: str
) -> tuple[dict[str, Any], bool]:
    """Return the message for a text of the policy, and True if it calls tools. `before` is the text
    before the calls that were `found`. If one of several calls cannot be read, all stay text."""
    if not found or any(call.status != "ok" for call in found):
        return {"role": "assistant", "content": text}, False
    made = [
        {
            "id": f"call-{ident}-{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
        }
        for index, call in enumerate(found)
    ]
    return {"role": "assistant", "content": before.strip() or None, "tool_calls": made}, True


def completion(chat: Chat, ident: str, said: Sequence[Answer]) -> dict[str, Any]:
    """Return the body of an answer."""
    return {
        **_head(chat, ident, "chat.completion"),
        "choices": [
            {"index": index, "message": each.message, "finish_reason": each.finish,
             "logprobs": None}
            for index, each in enumerate(said)
        ],
        "usage": _usage(said),
    }  # fmt: skip


def chunks(chat: Chat, ident: str, said: Sequence[Answer]) -> Iterator[dict[str, Any]]:
    """Yield the chunks of a stream: of each answer its role, text, calls and end."""
    head = _head(chat, ident, "chat.completion.chunk")

    def chunk(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": None}
        return {**head, "choices": [choice], **({"usage": None} if chat.usage else {})}

    for index, each in enumerate(said):
        message = each.message
        yield chunk(index, {"role": "assistant", "content": ""})
        if message["content"]:
            yield chunk(index, {"content": message["content"]})
        for place, call in enumerate(message.get("tool_calls", ())):
            yield chunk(index, {"tool_calls": [{"index": place, **call}]})
        yield chunk(index, {}, each.finish)
    if chat.usage:
        yield {**head, "choices": [], "usage": _usage(said)}


def _head(chat: Chat, ident: str, kind: str) -> dict[str, Any]:
    return {"id": ident, "object": kind, "created": int(time.time()), "model": chat.model}


def _usage(said: Sequence[Answer]) -> dict[str, int]:
    prompt, tokens = said[0].prompt_tokens, sum(each.tokens for each in said)
    return {
        "prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens
    }  # fmt: skip
