"""`math_equal`: compare the answer of a completion with the target.

    completion --answer_of--> text of the answer --answers_equal--> 1.0, `partial` or 0.0

Plain numbers are compared exactly in decimal arithmetic, without any import. Everything else
(fractions, LaTeX, intervals, ...) is compared by math-verify. Its own time limit is off: that needs
signals on the main thread, and the reward pool already limits every call.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from decimal import Decimal
from typing import Any

from forgedsl_runtime.data_types import Rollout
from forgedsl_runtime.rewards.text import target_text

OPEN, CLOSE = "<answer>", "</answer>"
BOXED = "\\boxed{"
PLAIN = re.compile(
    r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]*)?(?:[eE][-+]?[0-9]{1,4})?"
)
NUMBER = re.compile(
    r"(?:(?<![\w)])[-+])?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,4})?(?![0-9])"
)
MAX_LENGTH = 256
"""longest answer, in characters, that is parsed as mathematics"""
FEW_WORDS = 4
"""a target with at most this many words counts as an answer in plain text (a name, a choice, a
unit)"""
LATEX = re.compile(r"[\\^_{}=()\[\]]")
MAX_EXPONENT = 10_000
"""largest product of exponents that is evaluated"""
EXPONENT_WORD = re.compile(r"[-+\s]*\\?[\w.]*\s*")
POWER = re.compile(r"(?:\^|\*\*)\s*")
EXPONENT = re.compile(r"[-+({\s]*([0-9]+)")
GROWING = re.compile(r"!|\\(?:binom|dbinom|tbinom|prod|sum)\b|binomial|factorial|gamma|choose")
"""operators that can make the evaluation of a short text endless; allowed if the target has one"""


def math_equal(
    rollout: Rollout,
    target: Any,
    *,
    tolerance: float = 1e-6,
    which: str = "last",
    partial: float = 0.0,
) -> float:
    """Return 1.0 if the answer equals the target. Else return `partial` if a number elsewhere in
    the text, outside of `<answer>` blocks, equals it. The answer is the text in the last
    `<answer>...</answer>`, else in the last `\\boxed{...}`, else the last number. `which = first`
    takes the first tag, box or number. With `first_tag` or `last_tag`, only the text in an
    `<answer>` counts. An opened `<answer>` that is never closed is no answer."""
    text, wanted = rollout.response, target_text(target)
    start, end = _place(text, which)
    answer = text[start:end].strip()
    if answer and answers_equal(answer, wanted, tolerance=tolerance):
        return 1.0
    number = plain_number(_cleaned(wanted)) if partial else None
    if number is not None:
        outside = _outside(f"{text[:start]} {text[end:]}" if OPEN not in text else text)
        for found in NUMBER.findall(outside):
            if _near(Decimal(found.replace(",", "")), number, tolerance):
                return partial
    return 0.0


def _outside(text: str) -> str:
    """Return the text outside of `<answer>` blocks."""
    parts, at = [], 0
    while (start := text.find(OPEN, at)) >= 0 and (end := text.find(CLOSE, start)) >= 0:
        parts.append(text[at:start])
        at = end + len(CLOSE)
    return " ".join([*parts, text[at:]])


def answer_of(text: str, which: str = "last") -> str | None:
    """Return the text of the answer in a completion, or None."""
    start, end = _place(text, which)
    return text[start:end].strip() or None


def _place(text: str, which: str) -> tuple[int, int]:
    """Return the span of the answer; an empty span if there is none."""
    first = which.startswith("first")
    if OPEN in text or which.endswith("tag"):
        end = text.find(CLOSE, max(text.find(OPEN), 0)) if first else text.rfind(CLOSE)
        start = text.rfind(OPEN, 0, max(end, 0))
        return (start + len(OPEN), end) if 0 <= start < end else (0, 0)
    at = text.find(BOXED) if first else text.rfind(BOXED)
    if at >= 0:
        return _braced(text, at + len(BOXED))
    spans = (number.span() for number in NUMBER.finditer(text))
    if first:
        return next(spans, (0, 0))
    return next(iter(deque(spans, maxlen=1)), (0, 0))


def answers_equal(answer: str, target: str, *, tolerance: float = 1e-6) -> bool:
    """True if two answers denote the same value; numbers may differ by `tolerance`."""
    answer, target = _cleaned(answer), _cleaned(target)
    if answer == target:
        return answer != ""
    left, right = plain_number(answer), plain_number(target)
    if left is not None and right is not None:
        return _near(left, right, tolerance)
    if len(answer) > MAX_LENGTH or _explodes(answer, target):
        return False
    return _verified(answer, target, tolerance)


def plain_number(text: str) -> Decimal | None:
    """Return the value of a plain decimal number (`-1,234.5`, `1e-3`), or None."""
    if not any(char.isdecimal() for char in text) or not PLAIN.fullmatch(text):
        return None
    return Decimal(text.replace(",", ""))


def _near(left: Decimal, right: Decimal, tolerance: float) -> bool:
    """Compare exactly, so that 10**30 and 10**30 + 1 differ."""
    high, low = max(left, right), min(left, right)
    if high - low > 2 * Decimal(tolerance):
        return False
    return high <= low + Decimal(tolerance)


def _cleaned(text: str) -> str:
    """Remove outer white space, math delimiters, a currency sign and a full stop at the end."""
    text = text.replace("\u2212", "-").strip().removesuffix(".").strip()
    for opening, closing in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        if (
            text.startswith(opening)
            and text.endswith(closing)
            and len(text) > len(opening + closing)
        ):
            text = text[len(opening) : -len(closing)].strip()
    return text.removeprefix("$").strip()


def _braced(text: str, start: int) -> tuple[int, int]:
    """Return the span from `start` to the brace that closes the one before `start`."""
    depth = 1
    for i in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return start, i
    return start, start


def _explodes(answer: str, target: str) -> bool:
    """True if the evaluation of an answer might never end: `9^9^9`, `2^99999`, `99999!`."""
    if GROWING.search(answer) and not GROWING.search(target):
        return True
    product = 1
    for power in POWER.finditer(answer):
        end = _exponent_end(answer, power.end())
        if POWER.search(answer, power.end(), end) or POWER.match(answer, end):
            return True
        if exponent := EXPONENT.match(answer, power.end(), end):
            product *= max(1, int(exponent.group(1)))
    return product > MAX_EXPONENT


def _exponent_end(text: str, start: int) -> int:
    """Return the end of the exponent that begins at `start`: after its group, number or name."""
    word = EXPONENT_WORD.match(text, start)
    assert word is not None
    if text[word.end() : word.end() + 1] not in ("{", "("):
        return word.end()
    depth = 0
    for i in range(word.end(), len(text)):
        depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i + 1
    return len(text)


def is_answer(target: str) -> bool:
    """True if an answer could equal the target: it is a number, mathematics, or a few words."""
    target = _cleaned(target)
    if plain_number(target) is not None or len(target.split()) <= FEW_WORDS:
        return target != ""
    return len(target) <= MAX_LENGTH and bool(_parsed(target))


def _parsed(text: str) -> list[Any]:
    from math_verify import parse

    # math-verify warns that its time limit is off. The reward pool has one; see the module's
    # docstring.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    found: list[Any] = parse(f"${text}$" if LATEX.search(text) else text, parsing_timeout=None)
    return found


def _verified(answer: str, target: str, tolerance: float) -> bool:
    from math_verify import verify

    gold, found = _parsed(target), _parsed(answer)
    if not gold or not found:
        return False
    rounding = max(0, min(15, -Decimal(tolerance).adjusted())) if tolerance > 0 else 15
    return bool(verify(gold, found, float_rounding=rounding, timeout_seconds=None))
