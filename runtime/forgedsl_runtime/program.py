"""Functions that generated program modules call: rows, text helpers, scalar and group arithmetic.

Pure Python; the tensor functions of a program module use torch directly, and the helpers over
groups here only call methods of the tensors they are given.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forgedsl.rows import kind_of
from forgedsl.types.ops import BY_NAME


class RowError(LookupError):
    """An expression reads a part that the row does not have."""


class Row:
    """A row of a dataset: `row.question`. Nested values are plain data; see `item`."""

    __slots__ = ("_columns",)

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._columns = columns

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._columns:
            known = ", ".join(sorted(map(str, self._columns)))
            raise RowError(f"the row has no column `{name}`; its columns are {known or 'none'}")
        return self._columns[name]


def item(value: Any, *keys: Any) -> Any:
    """Return a part of a row or of nested data: `item(row, "messages", 0, "content")`. Without
    keys, return the whole row as a record."""
    name = "the value"
    for key in keys:
        value = getattr(value, key) if isinstance(value, Row) else _part(value, key, name)
        name = f"`{key}`" if isinstance(key, str) else f"[{key}]"
    return dict(value._columns) if isinstance(value, Row) else value


def _part(value: Any, key: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        if key in value:
            return value[key]
        raise RowError(f"{name} has no `{key}`; it has {', '.join(map(str, value)) or 'nothing'}")
    is_index = isinstance(key, int) and not isinstance(key, bool)
    if is_index and isinstance(value, str | Sequence):
        if -len(value) <= key < len(value):
            return value[key]
        raise RowError(f"{name} has no [{key}]: its length is {len(value)}")
    shown = f"[{key}]" if is_index else f"`{key}`"
    raise RowError(f"{name} is {kind_of(value)} and has no {shown}")


# ---- text


UNANSWERED = object()
SHAREGPT = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model"), "assistant"),
    "system": "system",
}
"""speaker in `from` -> role of the chat message"""


def chat(system: Any = None, user: Any = None, assistant: Any = UNANSWERED) -> list[dict[str, str]]:
    """Make chat messages: system message (omitted if None), the user's turn, and the answer if
    given.

    Raises:
        RowError: the user's turn or the answer is null.
    """
    turns = [("user", user), *([] if assistant is UNANSWERED else [("assistant", assistant)])]
    for role, text in turns:
        if text is None:
            raise RowError(f"the {role}'s turn of `chat` is null")
    first = [] if system is None else [{"role": "system", "content": str(system)}]
    return [*first, *({"role": role, "content": str(text)} for role, text in turns)]


def sharegpt(turns: Any) -> list[dict[str, str]]:
    """Convert ShareGPT turns, which have `from` and `value`, to chat messages.

    Raises:
        RowError: they are no list of such turns.
    """
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        raise RowError(f"`sharegpt` reads a list of turns, but this is {kind_of(turns)}")
    found = []
    for number, turn in enumerate(turns):
        who, text = item(turn, "from"), item(turn, "value")
        if who not in SHAREGPT or not isinstance(text, str):
            what = f"is from {who!r}" if who not in SHAREGPT else f"says {kind_of(text)}"
            raise RowError(
                f"turn {number} {what}; `from` must be one of {', '.join(SHAREGPT)}, "
                "and `value` text"
            )
        found.append({"role": SHAREGPT[who], "content": text})
    return found


def paragraphs(*texts: Any) -> str:
    """Join texts with blank lines; None and empty texts are skipped."""
    return "\n\n".join(_text(s, "paragraphs") for s in texts if s is not None and s != "")


def after(s: str, sep: str) -> str:
    """Return the text after the first `sep`; all of `s` if there is none."""
    head, found, tail = _text(s, "after").partition(sep)
    return tail if found else head


def before(s: str, sep: str) -> str:
    """Return the text before the first `sep`; all of `s` if there is none."""
    return _text(s, "before").partition(sep)[0]


def strip(s: str) -> str:
    """Remove surrounding white space."""
    return _text(s, "strip").strip()


def lower(s: str) -> str:
    """Convert to lower case."""
    return _text(s, "lower").lower()


def matches(s: str, pattern: str) -> bool:
    """True if the regular expression occurs in `s`."""
    return re.search(pattern, _text(s, "matches")) is not None


def text(x: Any) -> str:
    """Convert a number, true or false to text; text stays as it is.

    Raises:
        RowError: `x` is something else.
    """
    if isinstance(x, bool):
        return "true" if x else "false"
    if isinstance(x, str | int | float):
        return str(x)
    raise RowError(f"`text` reads a number, true or false, but this is {kind_of(x)}")


def first(*parts: Callable[[], Any]) -> Any:
    """Return the first part that exists and is not null.

    Raises:
        RowError: no part has a value, and at least one is missing from the row.
    """
    missing = None
    for part in parts:
        try:
            value = part()
        except RowError as error:
            missing = missing or error
            continue
        if value is not None:
            return value
    if missing is not None:
        raise missing
    return None


def same(a: Any, b: Any) -> bool:
    """Return `a == b`, where one of them is text.

    Raises:
        RowError: the other one is a number, so they can never be equal.
    """
    if isinstance(a, str) != isinstance(b, str) and {kind_of(a), kind_of(b)} & {"a number"}:
        number = b if isinstance(a, str) else a
        raise RowError(
            f"text never equals the number {number}: convert the number with `text(...)`"
        )
    return bool(a == b)


def record(**fields: Any) -> dict[str, Any]:
    """Collect several values under names: `target = record(answer = row.a, tests = row.tests)`."""
    return fields


def env(name: str) -> str:
    """Return an environment variable.

    Raises:
        KeyError: it is not set.
    """
    if name not in os.environ:
        raise KeyError(f"environment variable {name} is not set")
    return os.environ[name]


def _text(value: Any, function: str) -> str:
    if isinstance(value, str):
        return value
    raise RowError(f"`{function}` reads text, but this is {kind_of(value)}")


# ---- numbers


def clamp(x: float, lo: float, hi: float) -> float:
    """Return x, limited to the range from lo to hi."""
    return min(max(x, lo), hi)


def __getattr__(name: str) -> Any:
    """Return a scalar function of the language by name."""
    if name in BY_NAME:
        return BY_NAME[name].python
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# ---- tokens of a step: rows of equal length, [B, T], with a mask of the real tokens


def _real(x: Any, mask: Any) -> Any:
    """Return `x` where the mask is True, 0 elsewhere."""
    return mask.double() * x if isinstance(x, int | float) else x.masked_fill(~mask, 0.0)


def token_sum(x: Any, mask: Any) -> Any:
    """Sum over the tokens of each sequence."""
    return _real(x, mask).sum(1)


def token_count(mask: Any) -> Any:
    """Number of tokens of each sequence."""
    return mask.double().sum(1)


def token_max(x: Any, mask: Any) -> Any:
    """Largest token value of each sequence."""
    return x.masked_fill(~mask, float("-inf")).amax(1)


def token_min(x: Any, mask: Any) -> Any:
    """Smallest token value of each sequence."""
    return x.masked_fill(~mask, float("inf")).amin(1)


def scan_back(x: Any, decay: Any, mask: Any) -> Any:
    """Reverse scan over real tokens: y = x + decay * y', with y' at the next real token (0 after
    the last). 0 where the mask is False."""
    x = _real(x, mask)
    rate = x.new_ones(x.shape) * decay
    found, after = x.new_zeros(x.shape), x.new_zeros(len(x))
    for t in reversed(range(x.shape[1])):
        found[:, t] = after = (x[:, t] + rate[:, t] * after).where(mask[:, t], after)
    return _real(found, mask)


def token_next(x: Any, mask: Any) -> Any:
    """Value of `x` at the next real token, 0 after the last; 0 where the mask is False."""
    x = _real(x, mask)
    found, after = x.new_zeros(x.shape), x.new_zeros(len(x))
    for t in reversed(range(x.shape[1])):
        found[:, t] = after
        after = x[:, t].where(mask[:, t], after)
    return _real(found, mask)


# ---- groups of a step: `group[i]` is the group number of sequence i, less than len(x)


def sibling_sum(x: Any, group: Any) -> Any:
    """Sum over the group of each sequence."""
    return x.new_zeros(x.shape).index_add(0, group, x)[group]


def sibling_max(x: Any, group: Any) -> Any:
    """Largest value in the group of each sequence."""
    return x.new_zeros(x.shape).scatter_reduce(0, group, x, "amax", include_self=False)[group]


def sibling_min(x: Any, group: Any) -> Any:
    """Smallest value in the group of each sequence."""
    return x.new_zeros(x.shape).scatter_reduce(0, group, x, "amin", include_self=False)[group]
