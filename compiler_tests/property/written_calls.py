"""Random tool calls, written in each form as chat templates write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from forgedsl import tool_calls as forms

Written = tuple[str, Mapping[str, Any]]
"""name and arguments of a call"""
MARKS = (
    "</think>", "<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=",
    "</parameter>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "```", forms.BEGIN, forms.END,
    forms.ALL_BEGIN, forms.ALL_END, forms.SEPARATOR,
)  # fmt: skip
"""what no argument contains: a model that writes it ends the call"""
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20).filter(
    lambda text: not any(mark in text for mark in MARKS)
)
NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,11}", fullmatch=True)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXT, v, max_size=3), max_leaves=6
)
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=4)
CALLS = st.lists(st.tuples(NAMES, ARGUMENTS), min_size=1, max_size=3)
SAID = TEXT.filter(lambda text: not {*text} & {*"{[<;"})
"""text before calls"""
TYPES = {
    bool: "boolean", int: "integer", float: "number", str: "string", list: "array",
    dict: "object", type(None): "null",
}  # fmt: skip


def hermes(calls: Sequence[Written]) -> str:
    return "\n".join(
        "<tool_call>\n" + _json({"name": name, "arguments": given}) + "\n</tool_call>"
        for name, given in calls
    )


def qwen3_coder(calls: Sequence[Written]) -> str:
    return "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={k}>\n{_plain(v)}\n</parameter>\n" for k, v in given.items())
        + "</function>\n</tool_call>"
        for name, given in calls
    )


def llama3_json(calls: Sequence[Written]) -> str:
    return "<|python_tag|>" + "; ".join(
        _json({"name": name, "parameters": given}) for name, given in calls
    )


def mistral(calls: Sequence[Written]) -> str:
    return "[TOOL_CALLS]" + _json([{"name": name, "arguments": given} for name, given in calls])


def mistral_v11(calls: Sequence[Written]) -> str:
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{_json(given)}" for name, given in calls)


def deepseek_v3(calls: Sequence[Written]) -> str:
    parts = (
        f"{forms.BEGIN}function{forms.SEPARATOR}{name}\n```json\n{_json(given)}\n```{forms.END}"
        for name, given in calls
    )
    return forms.ALL_BEGIN + "\n".join(parts) + forms.ALL_END


WRITERS = {
    "hermes": hermes, "qwen3_coder": qwen3_coder, "llama3_json": llama3_json, "mistral": mistral,
    "mistral_v11": mistral_v11, "deepseek_v3": deepseek_v3,
}  # fmt: skip


def fits(writer: str, calls: Sequence[Written]) -> bool:
    """False for what a form cannot write: Qwen3-Coder's has text without types, in which neither
    an exact float nor a text that begins or ends a line survives."""
    if writer != "qwen3_coder":
        return True
    values = [value for _, given in calls for value in given.values()]
    return not any(
        isinstance(value, float) or (isinstance(value, str) and value.strip("\n") != value)
        for value in values
    )


def schemas(calls: Sequence[Written]) -> list[dict[str, Any]]:
    """Schemas of the tools that are called. The same name has one schema: that of its first
    call."""
    found: dict[str, dict[str, Any]] = {}
    for name, given in calls:
        properties = {key: {"type": TYPES[type(value)]} for key, value in given.items()}
        parameters = {"type": "object", "properties": properties}
        found.setdefault(name, {"name": name, "parameters": parameters})
    return [{"type": "function", "function": function} for function in found.values()]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)
