"""X859 step-breaks: an environment fails for a turn that every policy writes before it has learned.

    found = re.search("<answer>(.*)</answer>", turn.text)
    return self.grade(found.group(1))                         # fires: no tag, found is None
    return self.grade(found.group(1) if found else "")        # silent

`lint --deep` plays with players who say nothing, repeat what they read, write open tags or words
without tags, and call each tool with odd arguments of the right types. The rule fires for errors
that are never meant, such as an attribute of None, an index that does not exist, or a key that is
the turn itself. A run ends if more than a quarter of its trajectories fail; with `on_error = drop`
the policy also never learns that such turns are bad. The rule does not report an error that the
program raises itself.
"""

from __future__ import annotations

import re

from forgedsl.diagnostics import Label
from forgedsl.lint.call_results import Play, shorten
from forgedsl.lint.deep_calls import NEVER_MEANT, played_environments, split_error
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for env, plays in played_environments(view):
        broken = [
            (name, play) for row in plays.rows[:1] for name, play in row.plays.items()
            if play.error.startswith(NEVER_MEANT) or _is_key(play)
        ]  # fmt: skip
        if not broken:
            continue
        name, play = broken[0]
        error, at = split_error(play.error, env.source)
        if at is not None and env.source.text[at.start : at.end].startswith("raise"):
            continue
        last = shorten(play.last)
        by = f"the turn `{last}`"
        if " odd " in name:
            by = f"tool `{name.partition(' ')[0]}` with `{last}`"
        yield finding(
            f"`{env.env.name}` fails for {by}: {error}",
            env.env.name_span,
            related=() if at is None else (Label(text="here", span=at),),
            help="test what was found before it is used, and answer with an observation",
        )


def _is_key(play: Play) -> bool:
    """True for a KeyError with what the player said; other keys may be variables of a run."""
    found = re.match(r"KeyError: '(.+?)'(?: \(|$)", play.error, re.DOTALL)
    return found is not None and found[1].strip().casefold() in play.last.casefold()
