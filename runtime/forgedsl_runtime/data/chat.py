"""Convert chat messages to text and tokens, with a mask of the tokens that carry loss.

The tokens of an assistant turn are found by rendering twice: the conversation is rendered again
with the turn's content replaced by a character that occurs nowhere, and the difference of the two
texts is the content. This works for every template, also for those that rewrite earlier turns
(Qwen3 drops their thinking), for which rendering a prefix of the conversation would give another
text. A turn has exactly the tokens that the model writes when it is sampled. It begins after the
header that ends a generation prompt, and it ends with the special token that ends a turn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

from forgedsl.chats import PROBE
from forgedsl.errors import RunError
from forgedsl.rows import ROLES
from forgedsl.tool_calls import chosen

Message = dict[str, Any]
Learn = Literal["assistant_turns", "last_turn", "all"]


TOO_LONG = "sequence-length-is-longer-than-the-specified-maximum"
"""name of a warning of transformers"""


class ChatTokenizer:
    """A Hugging Face tokenizer with a chat template."""

    def __init__(
        self, tokenizer: Any, chat_template: str | None = None, tool_calls: str | None = None
    ) -> None:
        self.tokenizer, self._tool_calls = tokenizer, tool_calls
        if chat_template is not None:
            tokenizer.chat_template = chat_template
        # long texts are counted before they are left out; transformers would warn of the first
        tokenizer.deprecation_warnings[TOO_LONG] = True
        self.specials = sorted(tokenizer.all_special_tokens, key=len, reverse=True)

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """Accepted roles of messages: the usual ones, and every quoted word of the template, which
        may be a role that it tests for."""
        template = str(self.tokenizer.chat_template or "")
        return tuple(dict.fromkeys((*ROLES, *re.findall(r"[\"'](\w+)[\"']", template))))

    @cached_property
    def unknown(self) -> int | None:
        """Token for text that the tokenizer has no tokens for; None if every text has tokens, or if
        the token has another meaning too."""
        known = self.tokenizer
        others = (known.eos_token_id, known.pad_token_id, known.bos_token_id)
        return None if known.unk_token_id in others else known.unk_token_id

    @cached_property
    def tool_form(self) -> str:
        """Form in which the model writes tool calls (`tool_calls.FORMS`)."""
        return chosen(self._tool_calls, self.tokenizer.chat_template)

    @classmethod
    def load(
        cls, folder: str, chat_template: str | None = None, tool_calls: str | None = None
    ) -> ChatTokenizer:
        from transformers import AutoTokenizer

        return cls(AutoTokenizer.from_pretrained(folder), chat_template, tool_calls)

    def prompt_text(
        self, prompt: str | Sequence[Message], tools: Sequence[dict[str, Any]] = ()
    ) -> str:
        """Return the text that the model continues. Text stays as it is; messages are rendered."""
        if isinstance(prompt, str):
            return prompt
        return self.render(prompt, generate=True, tools=tools)

    def ids(self, text: str) -> list[int]:
        """Tokenize text without adding special tokens at its beginning. For fast tokenizers, call
        the backend directly: the Python wrapper takes several times as long for short texts.
        `encode_batch_fast` computes no offsets, which take most of the time for long texts."""
        core = getattr(self.tokenizer, "backend_tokenizer", None)
        if core is not None:
            (found,) = core.encode_batch_fast([text], add_special_tokens=False)
            ids: list[int] = found.ids  # a new list at each call
            return ids
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def prompt_tokens(self, prompt: str | Sequence[Message], text: str | None = None) -> list[int]:
        """Return the tokens of a prompt. `text` is its `prompt_text`, if the caller has it."""
        text = self.prompt_text(prompt) if text is None else text
        special = isinstance(prompt, str)
        # No warning about long texts: the reader checks lengths itself.
        return list(self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])

    def completion_tokens(self, prompt: str | Sequence[Message], answer: str) -> list[int]:
        """Return the tokens of an answer to a prompt, including its end token."""
        if isinstance(prompt, str):
            text = answer + (self.tokenizer.eos_token or "")
        else:
            messages = [*prompt, {"role": "assistant", "content": answer}]
            whole, start = self.render(messages), self.prompt_text(prompt)
            begin, end = self._turn(messages, len(messages) - 1, whole)
            text = whole[len(start) if whole.startswith(start) else begin : end]
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def conversation(
        self, messages: Sequence[Message], learn: Learn
    ) -> tuple[list[int], list[bool]]:
        """Return the tokens of a conversation, and a mask of those that carry loss."""
        text = self.render(messages)
        encoded = self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        tokens = list(encoded["input_ids"])
        if learn == "all":
            return tokens, [True] * len(tokens)
        turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        spans = [(0, 0)]
        for i in turns[-1:] if learn == "last_turn" else turns:
            spans.append(self._turn(messages, i, text, spans[-1][1]))
        mask = [
            any(begin <= first and last <= end and first < last for begin, end in spans)
            for first, last in encoded["offset_mapping"]
        ]
        return tokens, mask

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(tokens))

    def _turn(
        self, messages: Sequence[Message], index: int, text: str, floor: int = 0
    ) -> tuple[int, int]:
        """Return the span of a turn in `text`, after its header up to its end token; search from
        `floor`."""
        if messages[index].get("tool_calls"):
            raise RunError(
                f"turn {index} calls tools, which supervised training does not support yet",
                remedy="drop such rows, or set `learn = all`",
            )
        probed = list(messages)
        probed[index] = {**messages[index], "content": PROBE}
        other = self.render(probed)
        before, found, after = other.partition(PROBE)
        if not found:
            raise RunError(
                f"the chat template does not show turn {index}",
                remedy="set model.chat_template to one that renders every turn",
            )
        begin = _shared(before, text)
        end = len(text) - _shared(after[::-1], text[begin:][::-1])
        ending = next((token for token in self.specials if text.startswith(token, end)), "")
        header = text.rfind(self._header, floor, begin) if self._header else -1
        return (header + len(self._header) if header >= 0 else begin), end + len(ending)

    @cached_property
    def _header(self) -> str:
        """Header that the template writes before an assistant turn (the generation prompt)."""
        messages = [{"role": "user", "content": PROBE}]
        return self.render(messages, generate=True).removeprefix(self.render(messages))

    def render(
        self,
        messages: Sequence[Message],
        *,
        generate: bool = False,
        tools: Sequence[dict[str, Any]] = (),
    ) -> str:
        """Render messages; with `generate`, add the generation prompt.

        Raises:
            RunError: the tokenizer has no chat template.
        """
        if not self.tokenizer.chat_template:
            raise RunError(
                "the tokenizer has no chat template",
                remedy="set model.chat_template, or make the prompt a string",
            )
        return str(
            self.tokenizer.apply_chat_template(
                list(messages),
                tokenize=False,
                add_generation_prompt=generate,
                **({"tools": list(tools)} if tools else {}),
            )
        )


def _shared(left: str, right: str) -> int:
    """Return the length of the common prefix of two texts."""
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
