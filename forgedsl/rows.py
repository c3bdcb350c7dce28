"""Checks values of dataset rows before tokenization: a prompt, a chat, or a pair of answers.

value of a column --messages | prompt | sides--> text or chat messages | DroppedRow
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

BAD = "bad row"
TOO_LONG = "too long"
NOTHING = "nothing to learn"
ROLES = ("system", "developer", "user", "assistant", "tool")


class DroppedRow(Exception):
    """The row is left out. Rows are counted by `reason`; the message says what is wrong."""

    def __init__(self, why: str, reason: str = BAD) -> None:
        self.reason = reason
        super().__init__(why)


def kind_of(value: Any) -> str:
    """Describe the type of a value for messages."""
    names = {"NoneType": "null", "str": "text", "int": "a number", "float": "a number"}
    names |= {"bool": "true or false", "dict": "a record", "list": "a list"}
    return names.get(type(value).__name__, f"a {type(value).__name__}")


def prompt(value: Any, roles: Collection[str] = ROLES) -> Any:
    """Return the value if it is text, or chat messages that an answer can follow."""
    last = value if isinstance(value, str) else messages("`prompt`", value, roles)[-1]["content"]
    if isinstance(last, str) and not last.strip():
        raise DroppedRow("the prompt is empty")
    return value


def sides(question: Any, answers: Any, roles: Collection[str] = ROLES) -> tuple[Any, list[str]]:
    """Return the prompt and the two answers of a pair. `question` is None if the answers are whole
    chats, which contain the prompt."""
    both = dict(zip(("`chosen`", "`rejected`"), answers, strict=True))
    chats = [v if isinstance(v, str) else messages(name, v, roles) for name, v in both.items()]
    if question is None:
        if isinstance(chats[0], str) or isinstance(chats[1], str):
            raise DroppedRow("`chosen` and `rejected` are texts, so the dataset needs a `prompt`")
        question = chats[0][:-1]
        if chats[1][:-1] != question:
            raise DroppedRow("`chosen` and `rejected` have different prompts")
    texts = [v if isinstance(v, str) else _answer(name, v) for name, v in both.items()]
    for name, text in zip(both, texts, strict=True):
        if not text.strip():
            raise DroppedRow(f"{name} is empty")
    if texts[0] == texts[1]:
        raise DroppedRow("`chosen` and `rejected` are the same answer", NOTHING)
    return prompt(question, roles), texts


def _answer(what: str, chat: list[Any]) -> str:
    """Return the last message of a chat: the answer."""
    last = chat[-1]
    if last["role"] != "assistant":
        raise DroppedRow(f"{what} ends with a message of `{last['role']}`, not of `assistant`")
    if last["content"] is None:
        raise DroppedRow(f"{what} ends with a tool call, which training does not support yet")
    return str(last["content"])


def messages(what: str, value: Any, roles: Collection[str] = ROLES) -> list[Any]:
    """Return the value if it is a list of chat messages. `roles` are those that a chat template
    knows."""
    if not isinstance(value, list):
        wanted = (
            "not messages" if isinstance(value, str) else ("neither text nor a list of messages")
        )
        raise DroppedRow(f"{what} is {kind_of(value)}, {wanted}")
    if not value:
        raise DroppedRow(f"{what} has no messages")
    for index, message in enumerate(value):
        problem = _problem(message, roles)
        if problem:
            raise DroppedRow(f"message {index} of {what} {problem}")
    return value


def _problem(message: Any, roles: Collection[str]) -> str:
    """Return why a chat template could not render a message correctly; "" if it can."""
    if not isinstance(message, dict):
        return f"is {kind_of(message)}, not a record with `role` and `content`"
    if {"from", "value"} <= message.keys():
        return "has `from` and `value`: to read such turns, use `sharegpt(...)`"
    lacks = [f"`{key}`" for key in ("role", "content") if key not in message]
    if lacks:
        return f"has no {' and no '.join(lacks)}; it has {', '.join(message) or 'nothing'}"
    role, content = message["role"], message["content"]
    if not isinstance(role, str) or role not in roles:
        return f"has the role `{role}`, which is not one of {', '.join(ROLES)}"
    if isinstance(content, str) or (content is None and message.get("tool_calls")):
        return ""
    what = "a list of parts" if isinstance(content, list) else kind_of(content)
    return f"has content that is {what}, not text"
