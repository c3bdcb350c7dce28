"""What a reward is given of a rollout: parameters of a function, holes of a judge's prompt."""

from __future__ import annotations

from collections.abc import Callable
from string import Formatter
from typing import Any

from forgedsl.lower import job
from forgedsl.runtime.items import Rollout


def source_of(source: str, rollout: Rollout, target: Any) -> Any:
    """What a parameter is given; see `job.Reward.inputs`."""
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
        case "rollout":
            return rollout
        case "row":
            return prompt.columns
    if column not in prompt.columns:
        names = ", ".join(prompt.columns) or "none that is asked for"
        raise ValueError(f"the row has no column `{column}`, a parameter; it has {names}")
    return prompt.columns[column]


def filled(
    reward: job.Reward, rollout: Rollout, target: Any, clean: Callable[[str], str] = str
) -> str:
    """The prompt of a judge about this rollout; `clean` is applied to what is put into holes."""
    parts = []
    for text, hole, _, _ in Formatter().parse(reward.args["prompt"]):
        value: Any = "" if hole is None else source_of(reward.inputs[hole], rollout, target)
        parts += [text, clean(_conversation(value) if hole == "prompt" else str(value))]
    return "".join(parts)


def _conversation(messages: list[dict[str, Any]]) -> str:
    """What a prompt says: the one message, or all with their roles."""
    if len(messages) == 1:
        return str(messages[0]["content"])
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def on_range(reward: job.Reward, grade: float) -> float:
    """A grade of the scale as a value of the range."""
    (least, most), (low, high) = reward.args["scale"], reward.args["range"]
    return float(low + (grade - least) / (most - least) * (high - low))
