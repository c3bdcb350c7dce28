"""D668 whole-solution: the target is a whole solution, and the reward wants it word for word.

    target = row.answer                              # fires: "36 - 2 = 34\\n#### 34"
    target = after(row.answer, "#### ")              # silent
    reward correct = rl.exact

No answer repeats a solution word for word, so all scores are 0. Take the part that is the answer.
The rule reads some rows of a local file, and knows GSM8K. It fires if most targets have a mark such
as `####` or `\\boxed{` after other text, and no reward is `math_equal`, or names the mark in its
Python.
"""

from __future__ import annotations

import re
from typing import Any

from forgedsl.ir.program import Constructor, Decl, Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import drawn_from, rows_of, value_at
from forgedsl.lint.rewards import PythonReward, python_rewards
from forgedsl.lint.sources import parts
from forgedsl.lint.view import View, place
from forgedsl.syntax.walk import reads

finding = rule(__doc__, "W")
MARKS = {"#### ": "####", "\\boxed{": "boxed", "The answer is ": "answer is"}
"""marks before an answer, with the text by which a reward that knows them is recognized"""
MOST = 0.8
"""share of the rows whose targets have the mark"""
GSM8K = re.compile(r"(^|/)gsm8k$", re.IGNORECASE)


def check(view: View) -> Findings:
    for dataset in drawn_from(view):
        target = dataset.settings["target"]
        mark = _mark(view, dataset)
        if mark and _compares_words(view, MARKS[mark]):
            yield finding(
                f"targets of `{dataset.name}` are whole solutions (the answer follows "
                f"`{mark.strip()}`), and the reward compares them word for word",
                place(target, dataset),
                help=f'take the answer alone: `after(..., "{mark}")`'
                if mark == "#### "
                else "take a column with the answer alone, or score by `rl.math_equal`",
            )


def _mark(view: View, dataset: Decl) -> str:
    """Return the mark that most targets have after other text, or ""."""
    value = dataset.settings["target"].value
    if not isinstance(value, Deferred):
        return ""
    keys = next((keys for keys, node in reads(value.expr, "row") if node is value.expr), None)
    if not keys:
        return ""
    files = [*parts(dataset.settings["source"].value)]
    names = [str(part.args["id"]) for part in files if part.name == "hf"]
    if keys == ("answer",) and len(names) == len(files) and all(map(GSM8K.search, names)):
        return "#### "
    targets: list[Any] = [value_at(row, keys) for part in files for row in rows_of(view, part)]
    texts = [target for target in targets if isinstance(target, str)]
    for mark in MARKS:
        marked = [
            text for text in texts if text.strip().partition(mark)[0].strip() and mark in text
        ]
        if texts and len(marked) >= MOST * len(texts):
            return mark
    return ""


def _compares_words(view: View, known_by: str) -> bool:
    """True if a reward compares the whole target word for word: `exact`, or Python that does so and
    does not name the mark."""
    bodies = [reward.body for reward in view.program.rewards.values()]
    standard = {body.name for body in bodies if isinstance(body, Constructor)}
    if view.program.environments or standard - {"exact", "think_tags", "format_regex", "overlong"}:
        return False
    rewards = python_rewards(view)
    if any(known_by in found.source.text for found in rewards):
        return False
    return any(_is_exact(view, found) for found in rewards) if rewards else "exact" in standard


def _is_exact(view: View, found: PythonReward) -> bool:
    """True if a Python reward compares text of the response with the whole target by `==`."""
    from forgedsl.lint.follow.programs import reward_flow
    from forgedsl.lint.follow.values import IS_TARGET, READS_RESPONSE

    flow = reward_flow(view, found)
    pairs = [e.values for e in flow.events if e.kind == "compare" and e.is_equality] if flow else []
    return any(
        len(pair) == 2
        and any(IS_TARGET in one.labels for one in pair)
        and any(READS_RESPONSE in one.all and IS_TARGET not in one.labels for one in pair)
        for pair in pairs
    )
