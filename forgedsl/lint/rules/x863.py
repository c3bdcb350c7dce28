"""X863 verdict-inside: a verdict is looked for in a text, and its opposite contains it.

    return float("correct" in reply.lower())         # fires: `incorrect` has it too
    return float(reply.strip().lower() == "correct")                         # silent
    return float(re.search(r"\\bcorrect\\b", reply) is not None)             # silent

Every answer of the judge then counts as good, and the policy is rewarded for anything (verifiers
#763 had such a search for numbers). Compare the whole word. The rule fires if another text of the
file has the longer word, as the prompt does that asks for `CORRECT or INCORRECT`, and the file
looks for neither of them as a whole.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Iterator

    from forgedsl.lint.follow.reached import Part

finding = rule(__doc__, "W")
WORD = re.compile(r"[A-Za-z]{3,}( [A-Za-z]+)?")
NEGATIONS = ("in", "un", "im", "ir", "il", "dis", "non", "non-", "not ")
CALLS = ("find", "count", "search", "findall", "__contains__")


def check(view: View) -> Findings:
    if not (python_rewards(view) or python_environments(view)):
        return
    from forgedsl.lint.follow.programs import label
    from forgedsl.lint.follow.reached import found_in

    for part, node in found_in(view, _inside):
        word = next(text for each, text in _sought(node) if each is node)
        opposite = next(
            each for each in _opposites(word) if _is_said(word.lower(), each, _said(part))
        )
        yield finding(
            f"{part.what} looks for `{word}` anywhere in a text, so it also finds it in "
            f"`{opposite if word.islower() else opposite.upper()}`",
            part.span,
            related=(label(view, "here", part.file, node),),
            help=f'compare the whole word: `reply.strip().lower() == "{word.lower()}"`',
        )


def _inside(part: Part) -> python.AST | None:
    """Return a search for a word whose negation is a word of the file, if no search looks for the
    negation."""
    import ast as python

    nodes = [*part.nodes()]
    searches = [each for node in nodes for each in _sought(node)]
    if not searches:
        return None
    keyed = {
        python.unparse(node.value)
        for node in nodes
        if isinstance(node, python.Subscript) and isinstance(node.slice, python.Constant)
        and isinstance(node.slice.value, str)
    }  # fmt: skip
    searches = [(n, text) for n, text in searches if not keyed & {*map(python.unparse, _texts(n))}]
    sought = {text.lower() for _, text in searches}
    compared = {
        str(side.value).lower()
        for node in nodes
        if isinstance(node, python.Compare) and not isinstance(node.ops[0], python.In)
        for side in (node.left, *node.comparators)
        if isinstance(side, python.Constant)
    }
    said = _said(part)
    for node, text in searches:
        opposites = {*_opposites(text)}
        if opposites & (sought | compared) or text.lower() in compared:
            continue
        if any(_is_said(text.lower(), each, said) for each in opposites):
            return node
    return None


def _opposites(word: str) -> list[str]:
    return [f"{before}{word.lower()}" for before in NEGATIONS]


def _said(part: Part) -> str:
    """Return the texts of a file that are not searched for."""
    import ast as python

    searches = [each for node in part.nodes() for each, _ in _sought(node)]
    placed = {id(constant) for node in searches for constant in python.walk(node)}
    return " ".join(
        node.value.lower()
        for file in part.files
        for node in python.walk(file.module)
        if isinstance(node, python.Constant) and isinstance(node.value, str)
        if id(node) not in placed
    )


def _is_said(word: str, opposite: str, said: str) -> bool:
    """True if a text has the opposite of a word; for two words, such as `not valid`, beside the
    word itself: `valid or not valid`."""
    one, other = re.escape(word), re.escape(opposite)
    if " " not in opposite:
        return re.search(rf"\b{other}\b", said) is not None
    between = r"['\"`]?\s*(,|/|\||\bor\b)+\s*(or\s+)?['\"`]?"
    return re.search(rf"\b{one}{between}{other}\b|\b{other}{between}{one}\b", said) is not None


def _sought(node: python.AST) -> Iterator[tuple[python.AST, str]]:
    """Yield a search for a constant word in a text that is neither a list nor a part of it."""
    import ast as python

    match node:
        case python.Compare(
            left=python.Constant(value=str() as text), ops=[python.In()], comparators=[where]
        ):
            if not _is_words(where) and WORD.fullmatch(text):
                yield node, text
        case python.Call(
            func=python.Attribute(attr=name), args=[python.Constant(value=str() as text), *_]
        ) if name in CALLS:
            if WORD.fullmatch(text):
                yield node, text


def _texts(node: python.AST) -> list[python.expr]:
    """Return what a search looks in, which is a dict if the file reads it by a key."""
    import ast as python

    return node.comparators if isinstance(node, python.Compare) else []


def _is_words(node: python.expr) -> bool:
    """True for a list of words: `text.split()`, a set, a tuple."""
    import ast as python

    if isinstance(node, python.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return name in ("split", "splitlines", "set", "list", "findall", "keys", "values")
    return isinstance(node, python.List | python.Set | python.Tuple | python.Subscript)
