"""Inputs of a reward from a rollout: parameters of a function, placeholders in a judge's prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from string import Formatter
from typing import Any

from forgedsl.lower import job
from forgedsl_runtime.data_types import Rollout

KNOWN = 4096
"""number of cached grades while siblings are compared"""


def source_of(source: str, rollout: Rollout, target: Any) -> Any:
    """Return the value of a parameter; see `job.Reward.inputs`.

    Raises:
        ValueError: it is a column that the row does not have.
    """
    prompt = rollout.prompt
    kind, _, column = source.partition(" ")
    match kind:
        case "prompt":
            return prompt.text
        case "messages":
            if prompt.messages is None:
                return [{"role": "user", "content": prompt.text}]
            return prompt.messages
        case "response":
            return rollout.response
        case "target":
            return target
        case "other":
            return rollout.others[0]
        case "others":
            return "\n\n".join(f"{i}. {text}" for i, text in enumerate(rollout.others, 1))
        case "rollout":
            return rollout
        case "row":
            return prompt.columns
    if column not in prompt.columns:
        names = ", ".join(prompt.columns) or "none that the reward reads"
        raise ValueError(
            f"the row has no column `{column}`, which is a parameter of the reward; it has {names}"
        )
    return prompt.columns[column]


def fill_prompt(
    reward: job.Reward, rollout: Rollout, target: Any, clean: Callable[[str], str] = str
) -> str:
    """Fill in a judge's prompt for this rollout; `clean` is applied to each inserted text."""
    parts = []
    for text, hole, _, _ in Formatter().parse(reward.args["prompt"]):
        value: Any = "" if hole is None else source_of(reward.inputs[hole], rollout, target)
        parts += [text, clean(_conversation(value) if hole == "prompt" else str(value))]
    return "".join(parts)


def questions(
    reward: job.Reward, rollout: Rollout, target: Any, clean: Callable[[str], str] = str
) -> list[tuple[str, bool]]:
    """Return the prompts of a judge for this rollout. If it is compared with one sibling at a time,
    each pair is asked in both orders, since a judge may prefer the first answer. The flag is True
    if the two answers are swapped in the prompt, so that the grade is mirrored.

    Raises:
        ValueError: there is no sibling to compare with, or the row lacks a column of the prompt.
    """
    holes = reward.inputs.values()
    if not rollout.others and ("other" in holes or "others" in holes):
        raise ValueError("all other completions failed, so there is none to compare with")
    if "other" not in holes:
        return [(fill_prompt(reward, rollout, target, clean), False)]
    found = []
    for other in rollout.others:
        ours, theirs = replace(rollout, others=(other,)), (rollout.text,)
        turned = replace(rollout, text=other, others=theirs)
        found.append((fill_prompt(reward, ours, target, clean), False))
        found.append((fill_prompt(reward, turned, target, clean), True))
    return found


async def mean_grade(
    reward: job.Reward, asked: Sequence[tuple[str, bool]], grade: Callable[[str], Awaitable[float]]
) -> float:
    """Return a judge's mean grade over all its prompts, mapped to the range of the reward."""
    least, most = reward.args["scale"]
    grades = await asyncio.gather(*(grade(text) for text, _ in asked))
    fair = (least + most - g if turned else g for g, (_, turned) in zip(grades, asked, strict=True))
    return on_range(reward, sum(fair) / len(grades))


class RequestCache:
    """Caches requests to a judge by text. Two siblings that are compared with each other need the
    same two requests."""

    def __init__(self, ask: Callable[[str], Awaitable[float]]) -> None:
        self._ask = ask
        self._known: dict[str, asyncio.Future[float]] = {}

    async def __call__(self, text: str) -> float:
        found = self._known.get(text)
        if found is None:
            if len(self._known) >= KNOWN:
                del self._known[next(iter(self._known))]
            found = self._known[text] = asyncio.ensure_future(self._ask(text))
            found.add_done_callback(lambda done: self._ended(text, done))
        return await asyncio.shield(found)

    def _ended(self, text: str, done: asyncio.Future[float]) -> None:
        """Forget a failed request, so that it is asked again."""
        if (done.cancelled() or done.exception() is not None) and self._known.get(text) is done:
            del self._known[text]


def _conversation(messages: list[dict[str, Any]]) -> str:
    """Write a prompt's messages as text: a single one alone, several with their roles."""
    if len(messages) == 1:
        return str(messages[0]["content"])
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def on_range(reward: job.Reward, grade: float) -> float:
    """Map a grade from the scale to the range of the reward."""
    (least, most), (low, high) = reward.args["scale"], reward.args["range"]
    return float(low + (grade - least) / (most - least) * (high - low))
