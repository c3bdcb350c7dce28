"""D663 length-demanded: a prompt demands a longer answer than `max_tokens` has room for.

    system = "Write at least 500 words.", sampling { max_tokens = 256 }      # fires
    system = "Write at least 100 words.", sampling { max_tokens = 256 }      # silent

A word is one token or more, so each answer that follows the prompt is cut off before its end: the
reward is 0 for nearly all, and so is the gradient (TRL #5697). Raise `max_tokens`, or ask for less.
"""

import re

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import drawn_from, said_to
from forgedsl.lint.view import View

finding = rule(__doc__, "W")
LEAST = (
    r"(?i)\b(?:at least|no fewer than|not less than|a minimum of|more than)\s+(\d[\d,]*)\s+"
    r"(?:\w+\s+)?(words|tokens)\b"
)


def check(view: View) -> Findings:
    room = view.max_tokens
    for dataset in drawn_from(view) if room is not None else ():
        said = said_to(dataset)
        counts = any(unit in said.casefold() for unit in ("words", "tokens"))
        demanded = re.search(LEAST, said) if counts else None
        least = int(demanded[1].replace(",", "")) if demanded else 0
        if demanded and room is not None and least >= room:
            yield finding(
                f"the prompts of `{dataset.name}` demand {demanded[0]}, but an answer is cut off "
                f"after {room} tokens",
                dataset.name_span,
                help=f"write `max_tokens = {4 * least}`, or ask for less",
            )
