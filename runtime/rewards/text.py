"""Standard rewards on the text or the length of a completion.

In: a rollout and the row's target; out: a float. All scans are linear in the text, because a
completion may be long and hostile.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from forgedsl.runtime.items import Rollout

TAG = re.compile(r"<\s{0,8}(/?)\s{0,8}(think|answer)\s{0,8}>", re.IGNORECASE)
BLOCKS = ["think", "/think", "answer", "/answer"]


def think_tags(rollout: Rollout, target: Any, *, partial: float = 0.0) -> float:
    """1.0 for one `<think>` block, then one `<answer>` block, neither of them blank, with anything
    around them; `partial` for any tag of them, else 0.0. Case and spaces in a tag do not matter."""
    text = rollout.response
    tags = list(TAG.finditer(text))
    if [(tag[1] + tag[2]).lower() for tag in tags] == BLOCKS:
        inside = [text[tags[i].end() : tags[i + 1].start()].strip() for i in (0, 2)]
        if all(inside):
            return 1.0
    return partial if tags else 0.0


def exact(rollout: Rollout, target: Any, *, strip: bool = True, lower: bool = False) -> float:
    """1.0 if the completion is the target."""
    return float(
        _normal(rollout.response, strip, lower) == _normal(target_text(target), strip, lower)
    )


def contains(
    rollout: Rollout, target: Any, *, text: str | None = None, lower: bool = False
) -> float:
    """1.0 if `text`, or else the target, occurs in the completion; an empty one occurs in none."""
    wanted = _normal(target_text(target) if text is None else text, True, lower)
    return float(bool(wanted) and wanted in _normal(rollout.response, False, lower))


def format_regex(rollout: Rollout, target: Any, *, pattern: str) -> float:
    """1.0 if the whole completion, outer white space aside, matches; `.` matches line ends too."""
    return float(_compiled(pattern).fullmatch(rollout.response.strip()) is not None)


def overlong(rollout: Rollout, target: Any, *, soft: float, hard: float) -> float:
    """Soft length penalty (2503.14476): 0 up to `soft` tokens, falling to -1 at `hard`."""
    over = (rollout.num_tokens - soft) / (hard - soft)
    return -min(max(over, 0.0), 1.0)


def target_text(target: Any) -> str:
    """The target as text.

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
