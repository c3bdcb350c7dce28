"""Standard rewards on the text or the length of a completion.

In: a rollout and the row's target; out: a float. All scans are linear in the text, because a
completion may be long and hostile.
"""

from __future__ import annotations

import itertools
import re
from functools import lru_cache
from typing import Any

from forgedsl_runtime.data_types import Rollout

TAG = r"<\s{{0,8}}(/?)\s{{0,8}}({})\s{{0,8}}>"


def think_tags(
    rollout: Rollout,
    target: Any,
    *,
    partial: float = 0.0,
    which: str = "pair",
    tag: str = "think",
) -> float:
    """Return 1.0 for one `<think>` block followed by one `<answer>` block, neither blank, with any
    text around them. With `which = any`, return 1.0 for a non-blank `<think>` block; several or
    nested ones are allowed. Otherwise return `partial` if any of the tags occurs, else 0.0. Case
    and spaces in a tag do not matter."""
    text = rollout.response
    tags = list(_tags(tag, which).finditer(text))
    full = _has_block(text, tags) if which == "any" else _is_pair(text, tags, tag)
    if full:
        return 1.0
    return partial if tags else 0.0


def _is_pair(text: str, tags: list[re.Match[str]], tag: str) -> bool:
    names = [(found[1] + found[2]).lower() for found in tags]
    if names != [tag.lower(), f"/{tag.lower()}", "answer", "/answer"]:
        return False
    return all(text[tags[i].end() : tags[i + 1].start()].strip() for i in (0, 2))


def _has_block(text: str, tags: list[re.Match[str]]) -> bool:
    """True if there is text other than white space between an opening and a closing tag."""
    open_, written = False, False
    for before, tag in itertools.pairwise(tags):
        open_ = open_ or not before[1]
        written = open_ and (written or bool(text[before.end() : tag.start()].strip()))
        if tag[1]:
            if written:
                return True
            open_ = False
    return False


@lru_cache(maxsize=64)
def _tags(tag: str, which: str) -> re.Pattern[str]:
    names = re.escape(tag) if which == "any" else f"{re.escape(tag)}|answer"
    return re.compile(TAG.format(names), re.IGNORECASE)


def exact(rollout: Rollout, target: Any, *, strip: bool = True, lower: bool = False) -> float:
    """Return 1.0 if the completion equals the target."""
    return float(
        _normal(rollout.response, strip, lower) == _normal(target_text(target), strip, lower)
    )


def contains(
    rollout: Rollout, target: Any, *, text: str | None = None, lower: bool = False
) -> float:
    """Return 1.0 if `text` (default: the target) occurs in the completion; an empty text never
    does."""
    wanted = _normal(target_text(target) if text is None else text, True, lower)
    return float(bool(wanted) and wanted in _normal(rollout.response, False, lower))


def format_regex(rollout: Rollout, target: Any, *, pattern: str) -> float:
    """Return 1.0 if the stripped completion matches as a whole; `.` matches line ends too."""
    return float(_compiled(pattern).fullmatch(rollout.response.strip()) is not None)


def overlong(rollout: Rollout, target: Any, *, soft: float, hard: float) -> float:
    """Soft length penalty (arXiv 2503.14476): 0 up to `soft` tokens, falling to -1 at `hard`."""
    over = (rollout.num_tokens - soft) / (hard - soft)
    return -min(max(over, 0.0), 1.0)


def target_text(target: Any) -> str:
    """Return the target as text.

    Raises:
        TypeError: it is neither text nor a number.
    """
    if isinstance(target, str):
        return target
    if isinstance(target, int | float) and not isinstance(target, bool):
        return repr(target)
    raise TypeError(f"the target must be text or a number, not {type(target).__name__}")


def _normal(text: str, strip: bool, lower: bool) -> str:
    text = text.strip() if strip else text
    return text.lower() if lower else text


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)
