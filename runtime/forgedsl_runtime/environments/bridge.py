"""Tokens between two turns: the observation of the environment is tokenized and appended.

    prompt, start             -> tokens of the first prompt
    turn's tokens, observation -> tokens to append, up to the next model turn

The model's tokens are final: none of them is tokenized again for a loss. In a chat, the template
renders a short conversation with the observation, and what it writes after the assistant's turn is
the text between two turns. `Conversation` finds where a template rewrites earlier turns. In plain
text only the observation is appended.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from forgedsl.chats import OTHER, PROBE, appends
from forgedsl.environment import Message
from forgedsl.tool_calls import THOUGHTS_END, Call, Tools, read
from forgedsl.vllm_parsers import FORM
from forgedsl_runtime.data.chat import ChatTokenizer
from forgedsl_runtime.data_types import Prompt

NO_LIMIT = sys.maxsize
"""limit for agents: their messages are not shortened"""
SHORT = 10_000
"""a text with more characters than this is shortened before it is tokenized, if it may exceed its
token limit"""
Observation = str | Sequence[Message]
FIRSTS = 256
"""number of cached first prompts, shared by siblings"""


def unpickled(pickled: bytes) -> Bridge:
    """Unpickle a Bridge, and load its parser of tool calls."""
    bridge: Bridge = pickle.loads(pickled)
    return bridge.load_parser()


class TokenizedObservation(NamedTuple):
    """Tokens and text of an observation. `ending` is the token that ends the turn; it comes first,
    unless the model wrote it itself."""

    tokens: list[int]
    text: str
    ending: str


class Bridge:
    """Makes tokens of observations for one tokenizer. `tools` are schemas that the chat template
    shows."""

    def __init__(self, tokenizer: ChatTokenizer, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._chat = tokenizer
        self._tools = [dict(tool) for tool in tools]
        self._endings: dict[str, list[int]] = {}
        self._firsts: dict[int, tuple[Prompt, Observation, int, Prompt]] = {}
        """cache of first prompts, which siblings have in common"""
        self._parser: Any = None

    def with_tools(self, tools: Sequence[Mapping[str, Any]]) -> Bridge:
        """Return a Bridge with other tools, for the same tokenizer."""
        return self if not (tools or self._tools) else Bridge(self._chat, tools)

    @cached_property
    def hidden_tools(self) -> tuple[str, ...]:
        """Names of tools that the chat template does not show: they do not change the text."""
        messages = [{"role": "user", "content": OTHER}]
        text = self._chat.prompt_text(messages, tools=self._tools)
        names = [str(tool["function"]["name"]) for tool in self._tools]
        without = [
            (name, [other for j, other in enumerate(self._tools) if j != i])
            for i, name in enumerate(names)
            if name not in text
        ]
        return tuple(
            name
            for name, others in without
            if self._chat.prompt_text(messages, tools=others) == text
        )

    @property
    def reads_chats(self) -> bool:
        """True if the tokenizer has a chat template."""
        return bool(self._chat.tokenizer.chat_template)

    @property
    def tool_form(self) -> str:
        """Form in which the model writes tool calls."""
        return self._chat.tool_form

    def load_parser(self) -> Bridge:
        """Load the parser of vLLM if the model names one; takes seconds. Without it, `read_calls`
        reads the other forms only.

        Raises:
            RunError: it cannot be used.
        """
        if self.tool_form.startswith(FORM):
            from forgedsl_runtime.upstream.tool_parsers import ToolParser

            self._parser = ToolParser(self.tool_form.removeprefix(FORM), self._chat.tokenizer)
        return self

    def read_calls(self, text: str, tools: Tools) -> tuple[str, tuple[Call, ...]]:
        """Return the text before the first tool call of a turn, and its calls."""
        if self._parser is None:
            return read(text, self.tool_form, tools)
        thoughts, end, said = text.rpartition(THOUGHTS_END)
        before, calls = self._parser.read(said, tools)
        return thoughts + end + before, calls

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Schemas of the tools that the chat template shows."""
        return self._tools

    @cached_property
    def longest_token(self) -> int:
        """Characters of the longest token."""
        return max(map(len, self._chat.tokenizer.get_vocab()))

    def first_prompt(self, prompt: Prompt, start: Observation, limit: int) -> Prompt:
        """Return the prompt with the environment's first observation."""
        if prompt.messages is None:
            text = self._clean(_plain(start), limit)
            tokens = [*prompt.token_ids, *self._chat.ids(text)]
            return replace(prompt, text=prompt.text + text, token_ids=tokens)
        if not start and not self._tools:
            return prompt
        found = self._firsts.get(id(prompt))
        if found is None or found[0] is not prompt or found[1:3] != (start, limit):
            text = self.rendered([*prompt.messages, *self.short(start, limit)])
            made = replace(prompt, text=text, token_ids=self._chat.ids(text))
            found = self._firsts[id(prompt)] = (prompt, start, limit, made)
            if len(self._firsts) > FIRSTS:
                del self._firsts[next(iter(self._firsts))]
        return found[3]

    def tokens_after(
        self,
        turn: Sequence[int],
        observation: Observation | TokenizedObservation,
        limit: int,
        *,
        chat: bool,
    ) -> tuple[list[int], str]:
        """Return the tokens and text to append after a turn; an observation has at most `limit`
        tokens."""
        made = (
            observation
            if isinstance(observation, TokenizedObservation)
            else self.tokenize(observation, limit, chat=chat)
        )
        tokens, text, ending = made
        if self.wrote(turn, ending):
            return tokens, text
        return self._chat.ids(ending + text), ending + text

    def wrote(self, turn: Sequence[int], ending: str) -> bool:
        """True if the model wrote the end token itself, so that it is not added again."""
        if not ending:
            return True
        if ending not in self._endings:
            self._endings[ending] = self._chat.ids(ending)
        written = self._endings[ending]
        return list(turn[-len(written) :]) == written

    def tokenize(self, observation: Observation, limit: int, *, chat: bool) -> TokenizedObservation:
        """Tokenize an observation that follows a turn, independent of how the turn ended."""
        if not chat:
            text = self._clean(_plain(observation), limit)
            return TokenizedObservation(self._chat.ids(text), text, "")
        text, ending = self.after_turn(observation, limit)
        return TokenizedObservation(self._chat.ids(text), text, ending)

    def after_turn(self, observation: Observation, limit: int) -> tuple[str, str]:
        """Return what a chat shows of an observation after a turn: its text, and the token that
        ends the turn before it."""
        text = self._between(self.short(observation, limit))
        ending = next((t for t in self._chat.specials if text.startswith(t)), "")
        return text.removeprefix(ending), ending

    def appends(self) -> bool:
        """True if the chat template renders earlier turns unchanged."""
        return appends(
            lambda messages, generate: self._chat.render(
                [dict(m) for m in messages], generate=generate, tools=self._tools
            ),
            str(self._chat.tokenizer.chat_template),
            tools=bool(self._tools),
        )

    def rendered(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the conversation up to where the model goes on."""
        return self._chat.prompt_text([dict(m) for m in messages], tools=self._tools)

    def ids(self, text: str) -> list[int]:
        return self._chat.ids(text)

    def short(self, observation: Observation, limit: int) -> list[dict[str, Any]]:
        """Return an observation as messages of at most `limit` tokens each."""
        return [self._short(message, limit) for message in _messages(observation)]

    def _between(self, observation: Sequence[Message]) -> str:
        """Return the text that the template writes after an assistant turn: end token, messages,
        header."""
        start = [{"role": "user", "content": OTHER}, {"role": "assistant", "content": PROBE}]
        return self.rendered([*start, *observation]).partition(PROBE)[2]

    def _short(self, message: Message, limit: int) -> dict[str, Any]:
        return {**message, "content": self._clean(str(message["content"]), limit)}

    def _clean(self, text: str, limit: int) -> str:
        """Remove special tokens, which could end a turn, and cut to at most `limit` tokens."""
        for token in self._chat.specials:
            text = text.replace(token, "")
        if limit == NO_LIMIT:
            return text
        if text.isascii() and len(text) < limit:  # each token has at least one character
            return text
        # to tokenize less, first cut to the most characters that `limit` tokens can have
        if len(text) > SHORT:
            text = text[: (limit + 1) * max(map(len, self._chat.tokenizer.get_vocab()))]
        tokens = self._chat.ids(text)
        return text if len(tokens) <= limit else self._chat.decode(tokens[:limit])


class Conversation:
    """The messages of a trajectory, as the chat template shows them (`history = template`)."""

    def __init__(self, bridge: Bridge, prompt: Prompt, start: Observation, limit: int) -> None:
        self._bridge, self._limit = bridge, limit
        self._messages = [*(prompt.messages or ()), *bridge.short(start, limit)]
        self._text = bridge.rendered(self._messages)

    def new_row_prompt(self, turn: str, observation: Observation) -> list[int] | None:
        """Add a turn and the observation after it. Return None if the template renders the earlier
        text unchanged. Else return the tokens of the rendered conversation: the prompt of a new
        row."""
        made = self._bridge.tokenize(observation, self._limit, chat=True)
        appended = self._text + turn + made.ending + made.text
        self._messages += [
            {"role": "assistant", "content": turn},
            *self._bridge.short(observation, self._limit),
        ]
        self._text = self._bridge.rendered(self._messages)
        return None if self._text == appended else self._bridge.ids(self._text)


def _messages(observation: Observation) -> list[Message]:
    if isinstance(observation, str):
        return [{"role": "user", "content": observation}] if observation else []
    return list(observation)


def _plain(observation: Observation) -> str:
    """Write messages as plain text, with tool results in the tags of Qwen and Hermes."""
    if isinstance(observation, str):
        return observation
    return "".join(
        f"<tool_response>\n{m['content']}\n</tool_response>\n"
        if m.get("role") == "tool"
        else str(m["content"])
        for m in observation
    )
