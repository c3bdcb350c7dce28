"""The forms in which models write tool calls, and their parsers.

    chat template --form_of--> "mistral"
    text of a turn --read(form, tools)--> text before the first call, calls

Every call has a status, also one that was cut or that is not valid, so that an environment can
answer it. A marker of the form that is not followed by a call has the status `unread`. Thoughts, up
to the last `</think>`, are skipped. Parsers of other projects (vLLM's, with which the tests compare
these) drop such calls or give them empty arguments.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

THOUGHTS_END = "</think>"


@dataclass(frozen=True, kw_only=True)
class Call:
    """A tool call that the policy wrote. `status` is ok, invalid_json, missing_name, unclosed (it
    was cut) or unread (a marker that is not followed by a call)."""

    name: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    status: str = "ok"


Tools = Sequence[Mapping[str, Any]]
"""schemas of tools, as chat templates take them"""
Found = Iterator[tuple[int, Call]]
"""calls in the order of the text, each with its first character"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form of tool calls. `marks` are tokens of the form that tokenizers may have as special
    tokens; `of_template(template)` is true for the chat templates of models that write it."""

    doc: str
    calls: Callable[[str, Tools], Found]
    of_template: Callable[[str], bool]
    marks: tuple[str, ...] = ()


def read(text: str, form: str, tools: Tools = ()) -> tuple[str, tuple[Call, ...]]:
    """Return the text before the first call, and the calls of a turn. `tools` give the types of
    arguments that a form writes without types (qwen3_coder).

    Example:
        read('So: <tool_call>{"name": "f"}</tool_call>', "hermes") == ("So: ", (Call(name="f"),))
    """
    thoughts, end, said = text.rpartition(THOUGHTS_END)
    found = list(FORMS[form].calls(said, tools))
    start = found[0][0] if found else len(said)
    return thoughts + end + said[:start], tuple(call for _, call in found)


def calls_in(text: str, form: str = "hermes", tools: Tools = ()) -> tuple[Call, ...]:
    """Return the calls of a turn.

    Example:
        calls_in('<tool_call>{"name": "lookup", "arguments": {"key": "k"}}</tool_call>')
    """
    return read(text, form, tools)[1]


def form_of(template: str) -> str | None:
    """Return the form that a chat template shows, or None."""
    return next((name for name, form in FORMS.items() if form.of_template(template)), None)


def chosen(given: str | None, template: str | None) -> str:
    """Return the form that a model writes: the one that the file gives, else that of its chat
    template, else that of Hermes."""
    return given or form_of(template or "") or DEFAULT


# ---- hermes: <tool_call>{"name": "f", "arguments": {...}}</tool_call>

OPEN, CLOSE = "<tool_call>", "</tool_call>"
SPACE = re.compile(r"\s*")


def _hermes(text: str, tools: Tools) -> Found:
    for start, body, closed in _between(text, OPEN, CLOSE):
        yield start, _json_call(body) if closed else Call(status="unclosed")


# ---- qwen3_coder: <tool_call><function=f><parameter=key>value</parameter></function></tool_call>

FUNCTION, FUNCTION_END = "<function=", "</function>"
CODER_START = re.compile(f"{OPEN}|{FUNCTION}")
PARAMETER = re.compile(r"\s*<parameter=([^>]*)>(.*?)</parameter>", re.DOTALL)


def _qwen3_coder(text: str, tools: Tools) -> Found:
    """The models often leave out the outer tags, so a function may stand alone."""
    at = 0
    while (opened := CODER_START.search(text, at)) is not None:
        start, at = opened.span()
        wrapped = opened[0] == OPEN
        if wrapped:
            at = _after(SPACE, text, at)
            if not text.startswith(FUNCTION, at):
                cut = FUNCTION.startswith(text[at : at + len(FUNCTION)])
                yield start, Call(status="unclosed" if cut else "unread")
                continue
            at += len(FUNCTION)
        end = text.find(FUNCTION_END, at)
        if end < 0:
            yield start, Call(status="unclosed")
            return
        body, at = text[at:end], end + len(FUNCTION_END)
        if wrapped:
            closing = _after(SPACE, text, at)
            if text.startswith(CLOSE, closing):
                at = closing + len(CLOSE)
            elif CLOSE.startswith(text[closing : closing + len(CLOSE)]):
                yield start, Call(status="unclosed")
                return
        yield start, _coder_call(body, tools)


def _coder_call(body: str, tools: Tools) -> Call:
    name, closed, rest = body.partition(">")
    if not closed:
        return Call(status="unread")
    types, arguments, at = _types(tools, name), {}, 0
    while (found := PARAMETER.match(rest, at)) is not None:
        value = found[2].removeprefix("\n").removesuffix("\n")
        arguments[found[1]] = _typed(value, types.get(found[1], ("string",)))
        at = found.end()
    if rest[at:].strip():
        return Call(name=name, status="unread")
    return Call(name=name, arguments=arguments) if name else Call(status="missing_name")


def _types(tools: Tools, name: str) -> dict[str, tuple[str, ...]]:
    """Return the types of a tool's arguments, from its JSON schema."""
    for tool in tools:
        function = tool.get("function", {})
        if function.get("name") == name:
            properties = (function.get("parameters") or {}).get("properties") or {}
            return {key: tuple(_schema_types(schema)) for key, schema in properties.items()}
    return {}


def _schema_types(schema: Any) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    named = schema.get("type", ())
    yield from (named,) if isinstance(named, str) else named
    for key in ("anyOf", "oneOf"):
        for other in schema.get(key, ()):
            yield from _schema_types(other)


def _typed(text: str, types: Sequence[str]) -> Any:
    """Return an argument in the first type that its text has; else it stays text."""
    if "null" in types and text.lower() == "null":
        return None
    with suppress(ValueError):
        if "integer" in types:
            return int(text)
    with suppress(ValueError):
        if "number" in types and math.isfinite(number := float(text)):
            return int(number) if number.is_integer() else number
    if "boolean" in types and text.strip().lower() in ("true", "1", "false", "0"):
        return text.strip().lower() in ("true", "1")
    with suppress(ValueError, RecursionError):
        if "object" in types or "array" in types or not types:
            return _loads(text)
    return text


# ---- llama3_json: {"name": "f", "parameters": {...}}, also behind <|python_tag|>

PYTHON_TAG = "<|python_tag|>"
LLAMA_START = re.compile(re.escape(PYTHON_TAG) + r'|\{\s*"(?:name|type|parameters)"\s*:')
LLAMA_SPACE = re.compile(r"[;\s]*")


def _llama3_json(text: str, tools: Tools) -> Found:
    """JSON without arguments is an answer, not a call."""
    at = 0
    while (opened := LLAMA_START.search(text, at)) is not None:
        start = at = opened.start()
        if opened[0] == PYTHON_TAG:
            at = _after(LLAMA_SPACE, text, opened.end())
            if not text.startswith("{", at):
                yield start, Call(status="unread" if at < len(text) else "unclosed")
                continue
        value, at = _object(text, at)
        if isinstance(value, Call):
            yield start, value
        elif "parameters" in value:
            yield start, _as_call({"arguments": value["parameters"], **value})
        elif "arguments" in value:
            yield start, _as_call(value)


# ---- mistral: [TOOL_CALLS]f[ARGS]{...}, [TOOL_CALLS]f{...} or [TOOL_CALLS][{"name": "f", ...}]

TOOL_CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
MISTRAL_NAME = re.compile(r"([^\[\]{}]*)(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)")


def _mistral(text: str, tools: Tools) -> Found:
    at = 0
    while (start := text.find(TOOL_CALLS, at)) >= 0:
        begin = _after(SPACE, text, start + len(TOOL_CALLS))
        named = MISTRAL_NAME.match(text, begin)
        if text.startswith(("[", "{"), begin):
            value, at = _object(text, begin)
            values = value if isinstance(value, list) else [value]
            for each in values:
                yield start, each if isinstance(each, Call) else _as_call(each, text=True)
        elif named is not None:
            value, at = _object(text, named.end())
            name = named[1].strip()
            if isinstance(value, Call):
                yield start, Call(name=name, status=value.status)
            else:
                yield start, _as_call({"name": name or None, "arguments": value})
        else:
            at = begin
            cut = TOOL_CALLS not in text[begin:] and not re.search(r"[\s{}]", text[begin:].strip())
            yield start, Call(status="unclosed" if cut else "unread")


# ---- deepseek_v3: <tool call begin>function<tool sep>f\n```json\n{...}\n```<tool call end>

BEGIN, END = "<\uff5ctool\u2581call\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>"
ALL_BEGIN = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
ALL_END = "<\uff5ctool\u2581calls\u2581end\uff5c>"
SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
DEEPSEEK = re.compile(r"([^\n]*)\n```json\n(.*)\n```\s*", re.DOTALL)


def _deepseek_v3(text: str, tools: Tools) -> Found:
    first = text.find(ALL_BEGIN)
    none = True
    for start, body, closed in _between(text, BEGIN, END):
        if none and 0 <= first < start:
            start = first
        none = False
        _, _, rest = body.partition(SEPARATOR)
        found = DEEPSEEK.fullmatch(rest)
        if not closed:
            yield start, Call(status="unclosed")
        elif found is None:
            yield start, Call(status="unread")
        else:
            arguments = _parsed(found[2])
            if isinstance(arguments, dict):
                yield start, _as_call({"name": found[1] or None, "arguments": arguments})
            else:
                yield start, Call(name=found[1], status="invalid_json")
    if none and first >= 0:
        rest = text[first + len(ALL_BEGIN) :].strip()
        yield first, Call(status="unclosed" if BEGIN.startswith(rest) else "unread")


# ---- parts of texts


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return the end of the match of a pattern at a place, or the place if it does not match."""
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _between(text: str, opening: str, closing: str) -> Iterator[tuple[int, str, bool]]:
    """Yield (start, text, is closed) of each part after an opening mark. `start` is the offset of
    the mark; the text ends at the closing mark, or else at the next opening mark or the end."""
    at = 0
    for part in text.split(opening)[:-1]:
        at += len(part)
        following = text.find(opening, at + len(opening))
        body = text[at + len(opening) : None if following < 0 else following]
        inner, closed, _ = body.partition(closing)
        yield at, inner, bool(closed)
        at += len(opening)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _loads(text: str) -> Any:
    return json.loads(text, parse_constant=_no_constant)


def _parsed(text: str) -> Any:
    """Return the value of a JSON text, or a Call of status invalid_json."""
    try:
        return _loads(text)
    except (ValueError, RecursionError):
        return Call(status="invalid_json")


def _json_call(text: str) -> Call:
    value = _parsed(text)
    return value if isinstance(value, Call) else _as_call(value)


def _as_call(value: Any, *, text: bool = False) -> Call:
    """Return the call that a JSON value describes. With `text`, arguments may be JSON in a
    string."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        return Call(status="missing_name")
    arguments = value.get("arguments", {})
    if text and isinstance(arguments, str):
        arguments = _parsed(arguments)
    if not isinstance(arguments, dict):
        return Call(name=name, status="invalid_json")
    return Call(name=name, arguments=arguments)


def _object(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value at a place and its end. If there is none, return a Call with the reason
    and the end of what looks like it."""
    try:
        return json.JSONDecoder(parse_constant=_no_constant).raw_decode(text, start)
    except (ValueError, RecursionError):
        end = _end(text, start)
        return Call(status="invalid_json" if end else "unclosed"), end or len(text)


def _end(text: str, start: int) -> int:
    """Return the end of the brackets that open at a place; 0 if they are not closed."""
    depth, quoted, at = 0, False, start
    while at < len(text):
        char = text[at]
        if quoted:
            at += char == "\\"
            quoted = char != '"'
        elif char == '"':
            quoted = True
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return 0


FORMS: Mapping[str, Form] = {
    "deepseek_v3": Form(
        doc="DeepSeek V3 and R1: marks of DeepSeek around a name and a block of JSON",
        calls=_deepseek_v3,
        of_template=lambda template: BEGIN in template and "```json" in template,
        marks=(ALL_BEGIN, BEGIN, SEPARATOR, END, ALL_END),
    ),
    "mistral": Form(
        doc="Mistral: `[TOOL_CALLS]`, then a list in JSON, or a name and its arguments in JSON",
        calls=_mistral,
        of_template=lambda template: TOOL_CALLS in template,
        marks=(TOOL_CALLS, ARGS, CALL_ID),
    ),
    "qwen3_coder": Form(
        doc="Qwen3-Coder: `<function=NAME>` with `<parameter=NAME>` in it",
        calls=_qwen3_coder,
        of_template=lambda template: FUNCTION in template and "<parameter=" in template,
        marks=(OPEN, CLOSE),
    ),
    "hermes": Form(
        doc="Qwen and Hermes: JSON between `<tool_call>` and `</tool_call>`",
        calls=_hermes,
        of_template=lambda template: OPEN in template and "arguments" in template
        and "<arg_key>" not in template,
        marks=(OPEN, CLOSE),
    ),
    "llama3_json": Form(
        doc="Llama 3: JSON with `name` and `parameters`, also behind `<|python_tag|>`",
        calls=_llama3_json,
        of_template=lambda template: "<|start_header_id|>" in template
        and '"parameters": ' in template,
        marks=(PYTHON_TAG,),
    ),
}  # fmt: skip
DEFAULT = "hermes"
"""form for chat templates that show none"""
