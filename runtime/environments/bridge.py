"""Tokens between two turns: the observation of the environment is tokenized and appended.

    prompt, start             -> tokens of the first prompt
    turn's tokens, observation -> tokens to append, up to the next model turn

The model's tokens are final: nothing is rendered or tokenized again. In a chat, the text between
two turns is found as the difference of two renderings of the template. A template that rewrites
earlier turns is rejected. In plain text there is nothing between turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from forgedsl.environment import Message
from forgedsl.errors import RunError
from forgedsl.runtime.data.chat import PROBE, ChatTokenizer
from forgedsl.runtime.data_types import Prompt

OTHER = "\ue001"
"""placeholder for an observation; like PROBE, it never occurs in a conversation"""
THOUGHTS = (("<think>\n", "\n</think>\n\n"), ("<|channel>thought\n", "\n<channel|>"))
"""marks around a thought, for templates that find thoughts in the text of a turn alone"""
SHORT = 10_000
"""longest text, in characters, that is tokenized at once"""
Said = str | Sequence[Message]
FIRSTS = 256
"""number of cached first prompts, shared by siblings"""


class Made(NamedTuple):
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
        self._proved = False
        self._endings: dict[str, list[int]] = {}
        self._firsts: dict[int, tuple[Prompt, Said, int, Prompt]] = {}
        """cache of first prompts, which siblings have in common"""

    def first(self, prompt: Prompt, start: Said, limit: int) -> Prompt:
        """Return the prompt with the environment's first observation."""
        if prompt.messages is None:
            text = self._clean(_plain(start), limit)
            tokens = [*prompt.token_ids, *self._chat.ids(text)]
            return replace(prompt, text=prompt.text + text, token_ids=tokens)
        self.prove()
        if not start and not self._tools:
            return prompt
        found = self._firsts.get(id(prompt))
        if found is None or found[0] is not prompt or found[1:3] != (start, limit):
            said = [self._short(message, limit) for message in _messages(start)]
            text = self._chat.prompt_text([*prompt.messages, *said], tools=self._tools)
            made = replace(prompt, text=text, token_ids=self._chat.ids(text))
            found = self._firsts[id(prompt)] = (prompt, start, limit, made)
            if len(self._firsts) > FIRSTS:
                del self._firsts[next(iter(self._firsts))]
        return found[3]

    def after(
        self, turn: Sequence[int], said: Said | Made, limit: int, *, chat: bool
    ) -> tuple[list[int], str]:
        """Return the tokens and text to append after a turn; an observation has at most `limit`
        tokens."""
        made = said if isinstance(said, Made) else self.told(said, limit, chat=chat)
        tokens, text, ending = made
        if not ending:
            return tokens, text
        if ending not in self._endings:
            self._endings[ending] = self._chat.ids(ending)
        written = self._endings[ending]
        if list(turn[-len(written) :]) == written:
            return tokens, text  # the model wrote the end token itself: do not add it again
        return self._chat.ids(ending + text), ending + text

    def told(self, said: Said, limit: int, *, chat: bool) -> Made:
        """Tokenize an observation that follows a turn, independent of how the turn ended."""
        if not chat:
            text = self._clean(_plain(said), limit)
            return Made(self._chat.ids(text), text, "")
        text = self._between([self._short(message, limit) for message in _messages(said)])
        ending = next((t for t in self._chat.specials if text.startswith(t)), "")
        text = text.removeprefix(ending)
        return Made(self._chat.ids(text), text, ending)

    def prove(self) -> None:
        """Check that the template appends: a longer conversation begins with the shorter one and
        the turn, written as a model writes it.

        Raises:
            RunError: it does not, so sampled tokens would differ from those of the chat.
        """
        if self._proved:
            return
        user: dict[str, Any] = {"role": "user", "content": OTHER}
        turn = self._probe([user])
        answer = {"role": "assistant", "content": turn}
        said = {"role": "tool" if self._tools else "user", "name": "t", "content": OTHER}
        chats = [[user], [user, answer, said], [user, answer, said, answer, said]]
        texts = [self._chat.prompt_text(chat, tools=self._tools) for chat in chats]
        for shorter, longer in pairwise(texts):
            if not longer.startswith(shorter + turn):
                raise RunError(
                    "the chat template does not append: behind a turn it writes what was said "
                    "before in another way, so a conversation is not what the model was given",
                    remedy="set model.chat_template to one that renders every turn as it was",
                )
        self._proved = True

    def _probe(self, chat: list[dict[str, Any]]) -> str:
        """Return a turn as models write it: with a thought before the answer, if the template knows
        thoughts and its generation prompt does not exclude them."""
        start = self._chat.prompt_text(chat, tools=self._tools)
        turn: dict[str, Any] = {
            "role": "assistant", "content": PROBE, "reasoning_content": OTHER
        }  # fmt: skip
        whole = self._chat.render([*chat, turn], tools=self._tools)
        thought, found, _ = whole.removeprefix(start).partition(PROBE)
        if whole.startswith(start) and found and OTHER in thought:
            return thought + PROBE
        known = str(self._chat.tokenizer.chat_template)
        for opening, closing in THOUGHTS:
            if closing.strip() in known and closing.strip() not in start:
                opened = start.endswith((opening, opening.rstrip()))
                return ("" if opened else opening) + OTHER + closing + PROBE
        return PROBE

    def _between(self, said: Sequence[Message]) -> str:
        """Return the text that the template writes after an assistant turn: end token, messages,
        header."""
        start = [{"role": "user", "content": OTHER}, {"role": "assistant", "content": PROBE}]
        text = self._chat.prompt_text([*start, *map(dict, said)], tools=self._tools)
        return text.partition(PROBE)[2]

    def _short(self, message: Message, limit: int) -> dict[str, Any]:
        return {**message, "content": self._clean(str(message["content"]), limit)}

    def _clean(self, text: str, limit: int) -> str:
        """Remove special tokens, which could end a turn, and cut to at most `limit` tokens."""
        for token in self._chat.specials:
            text = text.replace(token, "")
        if text.isascii() and len(text) < limit:  # each token has at least one character
            return text
        # cut before tokenizing: no token is longer than the longest of the vocabulary
        if len(text) > SHORT:
            text = text[: (limit + 1) * max(map(len, self._chat.tokenizer.get_vocab()))]
        tokens = self._chat.ids(text)
        return text if len(tokens) <= limit else self._chat.decode(tokens[:limit])


def _messages(said: Said) -> list[Message]:
    if isinstance(said, str):
        return [{"role": "user", "content": said}] if said else []
    return list(said)


def _plain(said: Said) -> str:
    """Write messages as plain text, with tool results in the tags of Qwen and Hermes."""
    if isinstance(said, str):
        return said
    return "".join(
        f"<tool_response>\n{m['content']}\n</tool_response>\n"
        if m.get("role") == "tool"
        else str(m["content"])
        for m in said
    )
