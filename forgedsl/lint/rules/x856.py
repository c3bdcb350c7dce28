"""X856 game-changes: with the same row, the same seed and the same turns, an environment differs.

    self.word = random.choice(WORDS)            # fires: not the `rng` that `reset` is given
    class Shop(Environment): cart = []          # fires: one cart for all trajectories
    self.word = rng.choice(WORDS)               # silent

`lint --deep` plays each game again after other games, and in a new process. The trajectories of a
group are compared with each other, so all must play one game, and none may find what another left
behind (gem #68). Chance comes from `rng` alone, state is set in `reset`, and nothing depends on the
order of a set or on `hash`, which differ between processes.
"""

from __future__ import annotations

from forgedsl.lint.call_results import Play, shorten
from forgedsl.lint.deep_calls import played_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for env, plays in played_environments(view):
        change = plays.change
        if change is None:
            continue
        what, first, then = _difference(change.before, change.after)
        yield finding(
            f"`{env.env.name}` {what} {change.when}, with the same row, seed and turns",
            env.env.name_span,
            notes=(f"{change.place}: `{shorten(first)}`, then `{shorten(then)}`",),
            help="draw from the `rng` of `reset`, and set all state in `reset`, on `self`",
        )


def _difference(before: Play, after: Play) -> tuple[str, str, str]:
    """Return what differs first in two games, and both."""
    for number, (one, other) in enumerate(zip(before.shown, after.shown, strict=False)):
        if one != other:
            what = "shows another first observation" if not number else "shows another observation"
            return what, one, other
    for one_turn, other_turn in zip(before.rewards, after.rewards, strict=False):
        if one_turn != other_turn:
            return "gives other rewards", str(dict(one_turn)), str(dict(other_turn))
    if before.error != after.error:
        return "fails", before.error or "no error", after.error or "no error"
    return "ends elsewhere", f"{len(before.rewards)} turns", f"{len(after.rewards)} turns"
