"""Constructed answers, to try out a reward.

    prompt, Python of the reward --forms--> ["{}", "<answer>{}</answer>", ...]   ways to answer
    form, target --basic, odd, cheats, spellings--> `Answer`s: right, wrong, empty, ways to cheat

Only short targets of one line are answered: a number, a word, an option.
"""

from __future__ import annotations

import ast
import re
import re._constants as sre  # type: ignore[import-not-found]
import re._parser as sre_parser  # type: ignore[import-not-found]
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

LONGEST = 60
"""length of the longest target for which answers are made, in characters"""
MOST_FORMS = 40
MOST_KEYS = 2
"""number of keys that a program looks up for which forms are made"""
PADDING = 360
"""characters of the words before a wrong answer"""
LISTED = " ".join(map(str, range(101)))
OTHER_WORDS = ("zebra", "Oslo", "quartz")
SAMPLE = "x"
LETTERS = "\u7b54\u3048 \u00bd \U0001f600 \u0664"
COMMON = (
    "{}", "The answer is {}.", "<answer>{}</answer>", "<think>a\nb</think>\n<answer>{}</answer>",
    "<think>\na\n</think>\n<answer>\n{}\n</answer>", "\\boxed{{}}", "$\\boxed{{}}$", "#### {}",
    "Answer: {}", "ANSWER: {}", "answer: {}", "Final answer: {}", "The final answer is {}", "a\n{}",
    "<think>a</think>\n{}", "<think>a</think>\n\\boxed{{}}", '{"answer": "{}"}', '{"answer": {}}',
    "**{}**", "[{}]", "({})", "\"{}\"",
)  # fmt: skip
"""ways to give an answer that many prompts ask for"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer. `said` describes it; messages continue with it after "pays 1 for"."""

    kind: str
    said: str
    text: str


def fill(form: str, value: object) -> str:
    """Write an answer in a form."""
    return form.replace("{}", str(value))


def answerable_text(target: Any) -> str | None:
    """Return the target as text if answers to it can be constructed, else None."""
    if isinstance(target, bool) or not isinstance(target, str | int | float):
        return None
    text = str(target).strip()
    return text if 0 < len(text) <= LONGEST and "\n" not in text else None


def as_number(text: str) -> float | None:
    """Return the value of a text that is a number, else None."""
    return float(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else None


def mentions(text: str, target: str) -> bool:
    """True if a text contains the target as a separate word or number. A number with decimals is
    also found if it is spelled otherwise: 12.7 for 12.70."""
    if re.search(rf"(?<![\w.]){re.escape(target)}(?![\w]|\.\d)", text) is not None:
        return True
    wanted = as_number(target) if "." in target else None
    said = re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?!\w)", text) if wanted is not None else []
    return any(float(each) == wanted for each in said)


# ---- forms


def forms(prompt: str, codes: Sequence[str]) -> list[str]:
    """Return ways to give an answer, with `{}` for it: those that the reward's patterns and tags
    ask for, those of the prompt, and common ones."""
    found = dict[str, None]()
    constants = [text for code in codes for text in _texts(code)]
    for text in constants:
        found |= dict.fromkeys(_of_pattern(text))
    patterns = [form for form in found if "<" not in form][:2]
    tags = list(dict.fromkeys(re.findall(r"<(\w+)>", "\n".join([*constants, prompt]))))
    for tag in tags:
        found[f"<{tag}>{{}}</{tag}>"] = None
        others = "".join(f"<{each}>a</{each}>\n" for each in tags if each != tag)
        if len(tags) > 1:
            found[f"{others}<{tag}>{{}}</{tag}>"] = None
    found |= dict.fromkeys(f"<{tag}>{form}</{tag}>" for tag in tags for form in patterns)
    keys = list(dict.fromkeys(key for code in codes for key in _keys(code)))[:MOST_KEYS]
    for key in keys:
        named = (f'{{"{key}": "{{}}"}}', f'{{"{key}": {{}}}}', f"{key}={{}}", f"{key}: {{}}")
        found |= dict.fromkeys(named)
        found |= dict.fromkeys(f"<{tag}>{form}</{tag}>" for tag in tags for form in named)
    for text in (*constants, *re.findall(r"[\"'`(]?([A-Za-z][\w ]{0,20}: ?)", prompt)):
        if re.fullmatch(r"[\w# ]{1,24}[:=#] ?", text):
            found[f"{text.rstrip()} {{}}"] = None
    found |= dict.fromkeys(COMMON)
    return [form for form in found if form.count("{}") == 1][:MOST_FORMS]


def _texts(code: str) -> list[str]:
    """Return the texts in a Python program, without docstrings."""
    tree = ast.parse(code)
    said = {
        id(node.value) for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }  # fmt: skip
    return [
        node.value for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said
    ]  # fmt: skip


def _keys(code: str) -> Iterator[str]:
    """Yield the keys that a Python program looks up: `found["result"]`, `found.get("result")`."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Subscript(slice=ast.Constant(value=str() as key)):
                yield key
            case ast.Call(
                func=ast.Attribute(attr="get"), args=[ast.Constant(value=str() as key), *_]
            ):
                yield key


def _of_pattern(text: str) -> Iterator[str]:
    """Yield a text that a regular expression matches, with `{}` in the place of its last group."""
    if "(" not in text or len(text) > 400:
        return
    try:
        parsed = sre_parser.parse(text)
    except (re.error, OverflowError, RecursionError):
        return
    groups = parsed.state.groups - 1
    if groups < 1:
        return
    sample = _sample(parsed, groups)
    if sample is not None:
        yield sample


def _sample(items: Any, group: int) -> str | None:
    """Return a text that a parsed pattern matches, with `{}` in the place of `group`; None if the
    pattern has an item that is not handled."""
    found = []
    for op, value in items:
        part: str | None
        if op is sre.LITERAL:
            part = chr(value)
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            least, _, inner = value
            part = _sample(inner, group)
            holds = part is not None and "{}" in part
            part = part if holds or part is None else part * least
        elif op is sre.SUBPATTERN:
            part = "{}" if value[0] == group else _sample(value[3], group)
        elif op is sre.BRANCH:
            options = [_sample(each, group) for each in value[1]]
            part = next((each for each in options if each and "{}" in each), options[0])
        elif op in (sre.ANY, sre.NOT_LITERAL):
            part = SAMPLE
        elif op is sre.IN:
            part = _member(value)
        elif op in (sre.AT, sre.ASSERT, sre.ASSERT_NOT):
            part = ""
        else:
            part = None
        if part is None:
            return None
        found.append(part)
    return "".join(found)


def _member(items: Any) -> str:
    """Return a character of a set."""
    kind, value = items[0]
    if kind is sre.LITERAL:
        return chr(value)
    if kind is sre.RANGE:
        return chr(value[0])
    if kind is sre.CATEGORY:
        known = {sre.CATEGORY_DIGIT: "1", sre.CATEGORY_SPACE: " "}
        return known.get(value, SAMPLE)
    return SAMPLE


# ---- answers


def wrong_for(target: str, others: Sequence[str]) -> str:
    """Return a wrong answer of the same kind, which shares no text with the target."""
    value = as_number(target)
    if value is not None:
        made = int(abs(value)) * 3 + 7
        while str(made) in target or target.lstrip("-") in str(made):
            made += 10
        return str(made)
    apart = (each for each in (*others, *OTHER_WORDS) if not _meet(each, target))
    return next(apart, OTHER_WORDS[-1])


def _meet(one: str, other: str) -> bool:
    one, other = one.casefold(), other.casefold()
    return one in other or other in one


def basic(form: str, target: str, wrong: str) -> list[Answer]:
    """Return the right and a wrong answer in a form."""
    return [
        Answer(kind="right", said="the right answer", text=fill(form, target)),
        Answer(kind="wrong", said="a wrong answer", text=fill(form, wrong)),
    ]


def odd() -> list[Answer]:
    """Return answers that a policy gives before it has learned anything."""
    return [
        Answer(kind="empty", said="an empty answer", text=""),
        Answer(kind="space", said="an answer of spaces", text=" \n "),
        Answer(kind="words", said="an answer without tags", text="I am not sure"),
        Answer(kind="unicode", said="an answer in other letters", text=LETTERS),
        Answer(kind="tags", said="an answer of open tags", text="<think><answer>\\boxed{ #### "),
        Answer(kind="long", said="an answer of 50,000 characters", text="a b. " * 10_000),
    ]  # fmt: skip


def cheats(
    form: str, target: str, wrong: str, prompt: str, options: Sequence[str],
    words: Sequence[str] = (),
) -> list[Answer]:  # fmt: skip
    """Return answers that are not right and that a careless reward pays in full. `words` are words
    that the reward has in its program."""
    padding = " ".join([*words, "and", "so", "on"] * PADDING)[:PADDING]
    found = [
        Answer(kind="empty", said="an empty answer", text=""),
        Answer(kind="blank", said="the right form with nothing in it", text=fill(form, "")),
        Answer(kind="copied", said="the prompt copied", text=prompt),
        Answer(
            kind="mentioned", said="a wrong answer after words that mention the right one",
            text=f"It is not {target}, I see.\n{fill(form, wrong)}",
        ),
        Answer(
            kind="first", said="the right and then a wrong answer",
            text=f"{fill(form, target)}\n{fill(form, wrong)}",
        ),
        Answer(
            kind="last", said="a wrong and then the right answer",
            text=f"{fill(form, wrong)}\n{fill(form, target)}",
        ),
        Answer(
            kind="repeated", said="the right answer ten times",
            text="\n".join([fill(form, target)] * 10),
        ),
        Answer(
            kind="stuffed", said="a wrong answer after many words",
            text=f"{padding}\n{fill(form, wrong)}",
        ),
        Answer(
            kind="among", said="several answers in one place, one of them right",
            text=fill(form, f"{wrong}, {target}, {wrong}"),
        ),
    ]  # fmt: skip
    return [*found, *_about_targets(form, target, options)]


def _about_targets(form: str, target: str, options: Sequence[str]) -> Iterator[Answer]:
    """Yield answers that are made of the target: parts of it, other texts around it, options."""
    if len(target) > 1 and target[::-1] != target:
        said = f"`{target[::-1]}`, where `{target}` is right"
        yield Answer(kind="reversed", said=said, text=fill(form, target[::-1]))
    value = as_number(target)
    if value is not None:
        yield from _about_numbers(form, target, value)
    elif re.fullmatch(r"[A-Za-z]{3,}", target):
        text = fill(form, f"un{target}able")
        yield Answer(kind="inside", said="the target inside another word", text=text)
        text = fill(form, f"not {target}")
        yield Answer(kind="denied", said="the right answer denied", text=text)
        yield Answer(kind="part", said="the first letter alone", text=fill(form, target[0]))
    if len(options) > 2:
        listed = ", ".join(options)
        yield Answer(kind="options", said="every option listed", text=fill(form, listed))
        spaced = " ".join(options)
        yield Answer(kind="spaced", said="every option listed", text=fill(form, spaced))


def _about_numbers(form: str, target: str, value: float) -> Iterator[Answer]:
    digits = target.lstrip("-")
    yield nearby(form, target)
    yield Answer(kind="nan", said="`nan`", text=fill(form, "nan"))
    program = python_of(value)
    if program:
        said = "Python that gives the right number"
        yield Answer(kind="evaluated", said=said, text=fill(form, program))
    yield Answer(
        kind="inside", said=f"{target} inside another number", text=fill(form, f"1{digits}9")
    )
    if value:
        turned = digits if value < 0 else f"-{digits}"
        yield Answer(kind="negated", said="the number with the other sign", text=fill(form, turned))
    if "." in target:
        joined = target.replace(".", "")
        yield Answer(kind="joined", said="the number without its point", text=fill(form, joined))
    elif 0 <= value <= 99:
        said = "all numbers from 0 to 100 listed"
        yield Answer(kind="numbers", said=said, text=fill(form, LISTED))
    if len(digits) > 1 and digits[0] != "0":
        text = fill(form, target[: 2 if value < 0 else 1])
        yield Answer(kind="part", said="the first digit alone", text=text)


def nearby(form: str, target: str) -> Answer:
    """Return another number nearby: a tenth off, and at least 1."""
    value = float(target)
    far = value + max(1.0, abs(value) / 10) if abs(value) >= 10 else value + abs(value) / 2 + 1
    near = str(round(far)) if "." not in target else f"{far:.3f}"
    return Answer(kind="near", said=f"{near}, where {target} is right", text=fill(form, near))


def python_of(value: float) -> str:
    """Return an expression of Python for a whole number, without a digit; "" for some numbers."""
    if value != int(value) or not 0 < value < 0x110000:
        return ""
    if value <= 40:
        return f"len('{'x' * int(value)}')"
    letter = chr(int(value))
    return f"ord('{letter}')" if letter.isalpha() else ""


def words_of(codes: Sequence[str]) -> list[str]:
    """Return the words and short texts that programs look for in an answer."""
    texts = (text.strip() for code in codes for text in _texts(code))
    return list(dict.fromkeys(t for t in texts if re.fullmatch(r"[A-Za-z][\w' ]{0,20}", t)))[:12]


def spellings(form: str, target: str) -> list[Answer]:
    """Return the right answer in other spellings."""
    found = [Answer(kind="padded", said="spaces around it", text=f"\n {fill(form, target)} \n")]
    if "{}" in form and form != "{}":
        text = fill(form, f" {target} ")
        found.append(Answer(kind="inner", said="spaces around it", text=text))
    value = as_number(target)
    if value is not None and value >= 1000 and "." not in target:
        text = fill(form, f"{int(value):,}")
        found.append(Answer(kind="separated", said=f"`{int(value):,}`", text=text))
    return found
