"""Texts of completions leave out special tokens, but not those of the model's tool calls."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forgedsl_runtime.data.chat import ChatTokenizer
from forgedsl_runtime.services.vllm.upstream.engine import Engine, Finished

TOKENIZER = Path(__file__).parents[2] / "pipelines/tokenizers/arithmetic"
EOS = 2


def engine(form: str | None, template: str, mark: str) -> tuple[Any, Any]:
    """The part of an engine that makes texts, with a real tokenizer that has this special token."""
    tokenizer = ChatTokenizer.load(str(TOKENIZER), template).tokenizer
    tokenizer.add_special_tokens({"additional_special_tokens": [mark]})
    made: Any = object.__new__(Engine)
    made._tool_calls = form
    made._engine = SimpleNamespace(get_tokenizer=lambda: tokenizer)
    return made, tokenizer


@pytest.mark.parametrize(
    ("form", "template", "mark", "text"),
    [
        ("mistral", "", "[TOOL_CALLS]", "1[TOOL_CALLS]2"),
        (None, "[TOOL_CALLS]", "[TOOL_CALLS]", "1[TOOL_CALLS]2"),
        (None, "", "[TOOL_CALLS]", "12"),
        ("mistral", "", "[OTHER]", "12"),
    ],
)
def test_marks_of_tool_calls_stay_in_a_text(
    form: str | None, template: str, mark: str, text: str
) -> None:
    made, tokenizer = engine(form, template, mark)
    ids = tokenizer.convert_tokens_to_ids(["1", mark, "2"])
    given: dict[str, Any] = {"request_id": "a", "logprobs": [], "text": None}
    whole = Finished(token_ids=[*ids, EOS], truncated=False, **given)
    assert made.texts([whole])[0] == text
    cut = Finished(token_ids=[EOS, *ids], truncated=True, **given)
    assert made.texts([cut])[0] == text  # the end token in it is left out
    watched = {**given, "text": f"1{mark}2" if mark in text else "12"}
    assert made.texts([Finished(token_ids=[*ids, EOS], truncated=False, **watched)])[0] == text


def test_several_texts_at_a_time_are_those_of_the_tokenizer() -> None:
    made, tokenizer = engine(None, "", "[OTHER]")
    tokens = [[4, 5, 6, EOS], [7, EOS, 8], [], [EOS]]
    cut = [False, True, True, False]
    given: dict[str, Any] = {"request_id": "a", "logprobs": [], "text": None}
    done = [
        Finished(token_ids=ids, truncated=truncated, **given)
        for ids, truncated in zip(tokens, cut, strict=True)
    ]
    done.insert(1, Finished(**{**given, "text": "seen"}, token_ids=[4, EOS], truncated=False))
    wanted = [
        tokenizer.decode(ids if truncated else ids[:-1], skip_special_tokens=True)
        for ids, truncated in zip(tokens, cut, strict=True)
    ]
    wanted.insert(1, "seen")
    assert made.texts(done) == wanted
    own, _ = engine(None, "", "[OTHER]")
    other = own._engine.get_tokenizer()
    kind = type(other)
    other.__class__ = type(
        "Other", (kind,), {"_decode": lambda self, token_ids, **named: f"{token_ids}"}
    )
    assert own.texts(done[:1]) == ["[4, 5, 6]"]  # a tokenizer that decodes in another way
    assert made.texts([]) == []
