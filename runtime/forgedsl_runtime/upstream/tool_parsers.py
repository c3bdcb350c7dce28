"""Tool calls read by a parser of vLLM: `tool_calls = vllm("glm47")`.

The parser's import loads torch: it takes half a gibibyte and some seconds in each process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from forgedsl.errors import RunError
from forgedsl.tool_calls import Call, Tools


class ToolParser:
    """A parser of vLLM for a tokenizer."""

    def __init__(self, name: str, tokenizer: Any) -> None:
        """Load a parser.

        Raises:
            RunError: it cannot be loaded, or does not take this tokenizer.
        """
        try:
            from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
            from vllm.tool_parsers import ToolParserManager

            self._parser: Any = ToolParserManager.get_tool_parser(name)
            self._parser(tokenizer)
        except Exception as error:  # each parser has conditions of its own
            raise RunError(
                f"the tool parser {name} of vLLM cannot be used: {error}",
                remedy="name another one in `tool_calls` of the model",
            ) from error
        self._request: Any = ChatCompletionRequest
        self._tokenizer = tokenizer

    def read(self, text: str, tools: Tools) -> tuple[str, tuple[Call, ...]]:
        """Return the text before the calls, and the calls; none if the parser finds none."""
        given = [dict(tool) for tool in tools] or None
        asked = [{"role": "user", "content": ""}]
        request = self._request(model="policy", messages=asked, tools=given)
        parser = self._parser(self._tokenizer, request.tools)
        found = parser.extract_tool_calls(text, request)
        if not found.tools_called:
            return text, ()
        calls = (_call(each.function.name, each.function.arguments) for each in found.tool_calls)
        return found.content or "", tuple(calls)


def _call(name: str, arguments: str) -> Call:
    if not name:
        return Call(status="missing_name")
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return Call(name=name, status="invalid_json")
    if not isinstance(value, Mapping):
        return Call(name=name, status="invalid_json")
    return Call(name=name, arguments=value)
