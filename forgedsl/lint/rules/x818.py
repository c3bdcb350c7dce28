"""X818 pattern-of-one-line: a regular expression for tags matches only within one line.

    re.search(r"<think>.*?</think>", response)                  # fires
    re.search(r"<think>.*?</think>", response, re.DOTALL)       # silent
    re.search(r"<answer>(\\d+)</answer>", response)              # silent

`.` matches every character except a line break. Reasoning has several lines, so the pattern never
matches, and the reward is 0 for all completions (open-r1 #237). Pass `re.DOTALL`, as in the second
line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import PythonReward, place_of, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Callable

finding = rule(__doc__, "W")
CALLS = {
    f"re.{name}": place
    for names, place in (
        (("compile",), 1),
        (("search", "match", "fullmatch", "findall", "finditer"), 2),
        (("split",), 3),
        (("sub", "subn"), 4),
    )
    for name in names
}
"""position of the argument `flags`, by function of `re`"""
TAGS = re.compile(r"<\w+>[^<]*?(?<!\\)\.[*+][^<]*</\w+>")
BREAKS = ("\n", r"\n", r"\n+", r"\s+", r"\s", r"[\r\n]+", r"\s*\n\s*", r"[\n\r]+", r"\n\s*")
HELP = "pass `re.DOTALL`: then `.` matches line breaks too"


def check(view: View) -> Findings:
    for found in python_rewards(view):
        node = found.once(_in_reward)
        if node is not None:
            yield finding(
                f"a pattern of reward `{found.reward.name}` finds tags on one line only",
                place_of(found.reward, view),
                related=(Label(text="here", span=found.at(node)),),
                help=HELP,
            )
    for env in python_environments(view):
        node = _reached(env.module, env.env.body.name)
        if node is not None:
            yield finding(
                f"a pattern of environment `{env.env.name}` finds tags on one line only",
                env.env.name_span,
                related=(Label(text="here", span=env.at(node)),),
                help=HELP,
            )


def _in_reward(found: PythonReward) -> python.AST | None:
    text = found.source.text
    has_pattern = "</" in text and (".*" in text or ".+" in text)
    return _reached(found.module, found.top) if has_pattern else None


def _reached(module: python.Module, top: str) -> python.AST | None:
    """Return the first such call in what a definition reaches."""
    from forgedsl.types.effects import names_in, reached

    roots, texts = reached(module, top), _texts(module)
    if any(_joins_lines(root) for root in roots):
        return None
    calls = (_one_line(texts, root, names_in(module, root)) for root in roots)
    return next((call for call in calls if call is not None), None)


def _joins_lines(root: python.AST) -> bool:
    """True if line breaks are replaced, as by `re.sub(r"\\s+", " ", text)`."""
    import ast as python

    for node in python.walk(root):
        if isinstance(node, python.Call) and len(node.args) > 1:
            name, first = getattr(node.func, "attr", ""), node.args[0]
            is_break = isinstance(first, python.Constant) and first.value in BREAKS
            if is_break and name in ("sub", "replace"):
                return True
    return False


def _texts(root: python.AST) -> dict[str, object]:
    """Return the constants that are assigned below a node, by name."""
    import ast as python

    return {
        python.unparse(node.targets[0]): node.value.value
        for node in python.walk(root)
        if isinstance(node, python.Assign) and isinstance(node.value, python.Constant)
    }


def _one_line(
    known: dict[str, object], root: python.AST, full: Callable[[python.AST], str]
) -> python.AST | None:
    """Return a call of `re` with such a pattern and without the flag."""
    import ast as python

    texts = known | _texts(root)
    for node in python.walk(root):
        place = CALLS.get(full(node.func)) if isinstance(node, python.Call) else None
        if place is None or not isinstance(node, python.Call) or not node.args:
            continue
        first = node.args[0]
        text = first.value if isinstance(first, python.Constant) else texts.get(full(first))
        flagged = len(node.args) > place or any(word.arg == "flags" for word in node.keywords)
        flags = " ".join(map(python.unparse, [*node.args[place:], *node.keywords]))
        if flagged and not re.fullmatch(r"(flags=)?[\w.| ]*", flags):
            continue
        dots = re.search(r"DOTALL|\bS\b", flags) or (flagged and "re." not in flags)
        if isinstance(text, str) and "(?s" not in text and not dots and TAGS.search(text):
            return node
    return None
