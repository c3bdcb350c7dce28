"""Tests if a chat template only appends turns, or writes earlier turns in another way.

template --render--> texts of conversations of one, two and three turns --appends--> True or False

A turn is written as models write it: with a thought before the answer, if the template shows
thoughts. Templates of thinking models drop the thoughts of earlier turns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

PROBE, OTHER = "\ue000", "\ue001"
"""Placeholders from the private use area, which occur in no conversation. PROBE is the text of the
model's turn, OTHER every other text (user message, observation, thought)."""
THOUGHTS = (("<think>\n", "\n</think>\n\n"), ("<|channel>thought\n", "\n<channel|>"))
"""markers around a thought, for templates that find thoughts by searching the turn's text"""
GENERATION = r"\{%-?\s*(end)?generation\s*-?%\}"
"""the Jinja tags `{% generation %}`, which mark the tokens for the loss; the rendered text does not
contain them"""
Render = Callable[[Sequence[Mapping[str, Any]], bool], str]
"""renders messages; with True, it appends the generation prompt (`add_generation_prompt`)"""


def appends(render: Render, template: str, *, tools: bool) -> bool:
    """True if a longer conversation begins with the shorter one and the turn."""
    user = {"role": "user", "content": OTHER}
    turn = _turn(render, template, user)
    answer = {"role": "assistant", "content": turn}
    said = {"role": "tool" if tools else "user", "name": "t", "content": OTHER}
    chats = ([user], [user, answer, said], [user, answer, said, answer, said])
    texts = [render(chat, True) for chat in chats]
    return all(longer.startswith(shorter + turn) for shorter, longer in pairwise(texts))


def _turn(render: Render, template: str, user: Mapping[str, Any]) -> str:
    """Return a turn as models write it: with a thought before the answer, if the template knows
    thoughts and its generation prompt does not exclude them."""
    start = render([user], True)
    last = {"role": "assistant", "content": PROBE, "reasoning_content": OTHER}
    whole = render([user, last], False)
    thought, found, _ = whole.removeprefix(start).partition(PROBE)
    if whole.startswith(start) and found and OTHER in thought:
        return thought + PROBE
    for opening, closing in THOUGHTS:
        if closing.strip() in template and closing.strip() not in start:
            opened = start.endswith((opening, opening.rstrip()))
            return ("" if opened else opening) + OTHER + closing + PROBE
    return PROBE


def known_to_append(template: str, *, tools: bool) -> bool | None:
    """Like `appends`, but takes the text of a template and needs no tokenizer. None if the template
    cannot be rendered without one."""
    import json

    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> str:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    given: dict[str, Any] = {"raise_exception": refuse, "strftime_now": lambda form: "2026-01-01"}
    given |= {"bos_token": "<s>", "eos_token": "</s>", "tools": [TOOL] if tools else None}
    try:
        made = environment.from_string(re.sub(GENERATION, "", template))
        return appends(
            lambda messages, generate: made.render(
                messages=messages, add_generation_prompt=generate, **given
            ),
            template,
            tools=tools,
        )
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError):
        return None  # the run says what is wrong with it


TOOL = {
    "type": "function",
    "function": {
        "name": "t",
        "description": "",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}
