"""A process that reads tool calls with vLLM's parsers: a line of JSON in, a line out.

{"parser", "text", "tools"} -> {"content", "calls": [[name, arguments as JSON]]}
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from written_calls import MARKS

PARSERS = ("hermes", "qwen3_coder", "llama3_json", "mistral", "deepseek_v3")


class Tokenizer:
    """What the parsers need of a tokenizer: their marks are in its vocabulary. `mistral` and
    `mistral_v11` are told apart by the mark `[ARGS]`."""

    def __init__(self, *without: str) -> None:
        self._vocab = {mark: at for at, mark in enumerate(MARKS) if mark not in without}
        self.all_special_tokens = list(self._vocab)
        self.all_special_ids = list(self._vocab.values())

    def get_vocab(self) -> dict[str, int]:
        return self._vocab

    def encode(self, text: str, **_: Any) -> list[int]:
        return [self._vocab[text]] if text in self._vocab else []


def main() -> None:
    logging.disable(logging.CRITICAL)
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    classes = {name: ToolParserManager.get_tool_parser(name) for name in PARSERS}
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        name = asked["parser"].removesuffix("_v11")
        tokenizer = Tokenizer(*(["[ARGS]"] if asked["parser"] == "mistral" else []))
        request = ChatCompletionRequest(
            model="m", messages=[{"role": "user", "content": "x"}], tools=asked["tools"]
        )
        parser = classes[name](tokenizer, request.tools)
        found = parser.extract_tool_calls(asked["text"], request)
        calls = [[call.function.name, call.function.arguments] for call in found.tool_calls]
        print(json.dumps({"content": found.content, "calls": calls}), flush=True)


if __name__ == "__main__":
    main()
