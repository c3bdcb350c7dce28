"""Scores answers: called as (prompt, response, target) -> float, in a pool of processes.

A reward may be `async`, and may take the rollout itself: `(r, target)` with r.prompt, r.response,
r.num_tokens, r.truncated. What it raises is counted and reported; the rubric's `on_error` decides
about the score.
"""

import re

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def correct(prompt: str, response: str, target: str) -> float:
    """1.0 if the last number of the response is the target."""
    numbers = NUMBER.findall(response)
    return float(bool(numbers) and value(numbers[-1]) == value(target))


def value(text: str) -> float:
    """The number that a text like `1,234` or `$5` says."""
    return float(text.replace(",", "").strip(" $"))
