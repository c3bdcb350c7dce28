"""Problems of reasoning-gym and their scores, as a run makes them. Imports the package.

    dataset problems { source = reasoning_gym("leg_counting", seed = 7), ... }
    reward right = rl.reasoning_gym

    task, config, number --row--> question, answer, metadata, entry
    entry, completion    --score--> what `score_answer` of the task gives

`entry` of a row says how its problem is made. A score makes the problem again, because some
tasks need their configuration, or values that JSON cannot hold. Some tasks iterate over sets of
texts, whose order depends on the hash seed of the process: processes that import this module have
HASH_SEED.

The compiler reads the package without importing it: hir.reasoning_gym_calls.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

try:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS
except ImportError as error:
    raise ImportError(
        'problems of reasoning-gym need a package: pip install "forgedsl[reasoning-gym]"'
    ) from error

HASH_SEED = "0"
"""PYTHONHASHSEED of processes that make problems"""
TAG = re.compile(r"<answer>(.*?)</answer>", re.S)


class Problems:
    """The problems of a task. `config` are fields of its configuration, `seed` and `size` too.

    Raises:
        ValueError: there is no such task, or it refuses its configuration.
    """

    def __init__(self, task: str, config: Mapping[str, Any]) -> None:
        if task not in DATASETS:
            raise ValueError(f"reasoning-gym has no task {task}")
        self.task, self.config = task, dict(config)
        try:
            self._made = reasoning_gym.create_dataset(task, **_fields(task, config))
        except (AssertionError, TypeError, ValueError) as error:
            given = ", ".join(f"{name} = {json.dumps(value)}" for name, value in config.items())
            raise ValueError(f"{task} of reasoning-gym refuses {given}: {error}") from error
        self.entry = lru_cache(maxsize=256)(self._made.__getitem__)

    def row(self, number: int) -> dict[str, Any]:
        """Return the row of a problem, as JSON."""
        found = {key: plain(value) for key, value in self.entry(number).items()}
        entry = {"task": self.task, "config": self.config, "number": number}
        return {**found, "entry": {**entry, "sha256": _digest(found)}}

    def score(self, number: int, answer: str | None) -> float:
        """Return the score of an answer, 0 to 1."""
        return float(self._made.score_answer(answer, self.entry(number)))


def score(entry: Mapping[str, Any], text: str, *, whole: bool) -> float:
    """Return the score of a completion. The answer is the text in its last <answer> tag; without a
    tag, it is the completion if `whole`, else there is none.

    Raises:
        ValueError: the installed package makes another problem than the row has.
    """
    made = _problems(entry["task"], json.dumps(entry["config"], sort_keys=True))
    number = entry["number"]
    found = {key: plain(value) for key, value in made.entry(number).items()}
    if _digest(found) != entry["sha256"]:
        raise ValueError(
            f"problem {number} of {entry['task']} differs from the one in the row: that was made "
            "by another version of reasoning-gym, or with another PYTHONHASHSEED"
        )
    tagged = TAG.findall(text)
    answer = tagged[-1].strip() if tagged else text.strip() if whole else None
    return made.score(number, answer)


@lru_cache(maxsize=64)
def _problems(task: str, config: str) -> Problems:
    return Problems(task, json.loads(config))


def _fields(task: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with tuples for the fields whose defaults are tuples."""
    defaults = {field.name: field.default for field in dataclasses.fields(DATASETS[task][1])}
    return {
        name: tuple(value) if isinstance(defaults.get(name), tuple) else value
        for name, value in config.items()
    }


def _digest(row: Mapping[str, Any]) -> str:
    """Return the digest of the question and the answer of a row."""
    text = json.dumps([row["question"], row["answer"]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plain(value: Any) -> Any:
    """Convert a value to JSON: keys and values of other types become texts, tuples and sets
    lists."""
    if value is None or isinstance(value, bool | int | str):
        return value if type(value) in (bool, int, str, type(None)) else _base(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(each) for each in value), key=repr)
    return str(value)


def _base(value: Any) -> Any:
    """Return a member of an enumeration as its number or text."""
    return int(value) if isinstance(value, int) else str.__str__(value)
