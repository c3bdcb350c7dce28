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
    assert made.text(whole) == text
    cut = Finished(token_ids=[EOS, *ids], truncated=True, **given)
    assert made.text(cut) == text  # the end token in it is left out
    watched = {**given, "text": f"1{mark}2" if mark in text else "12"}
    assert made.text(Finished(token_ids=[*ids, EOS], truncated=False, **watched)) == text
