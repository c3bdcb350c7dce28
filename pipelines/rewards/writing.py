"""What the judge of writing.forge was taught, as a rule, and what it was not: told beside it."""

from __future__ import annotations

import re


def alike(prompt: str, response: str) -> float:
    """The share of four words that begin with the letter that was asked for.

    Example:
        alike("line s:", "sea sun salt tree.") == 0.75
    """
    letter = prompt.removesuffix(":")[-1]
    words: list[str] = re.findall("[a-z]+", response)[:4]
    return sum(word.startswith(letter) for word in words) / 4


def different(prompt: str, response: str) -> float:
    """The share of four words that are there, and for the first time."""
    return len(set(re.findall("[a-z]+", response)[:4])) / 4
