"""What rewards and environments gave when `lint --deep` called them; rules X850 and following.

RewardCalls        a reward: the scores of constructed answers, by row and kind of answer
EnvironmentPlays   an environment: episodes of scripted players, who answer right, wrong, nothing

`forgedsl_runtime.probes` makes them. Without --deep there are none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from forgedsl.records import dataclass, field

RIGHT, WRONG, EMPTY = "right", "wrong", "empty"
CHEATS = {
    "mentioned": "for a wrong answer after words that mention the right one",
    "inside": "for an answer that contains the right one",
    "among": "for several answers in one place, one of them right",
    "part": "for the first digit or letter of the right answer",
    "blank": "for nothing in the place of the answer",
    "nan": "for `nan`",
    "evaluated": "for Python that gives the right number",
    "reversed": "for the right answer backwards",
    "near": "for a number that is not far from the right one",
}
"""kinds of answers that some players of environments give, with how messages name them"""
ARGUMENT = "argument "
"""prefix of players who give a number to a parameter of the tool that takes the answer:
`argument submit confidence 1000` with a wrong answer, `argument right confidence 1000`"""
SAME = 1e-9
"""scores that differ by less are equal"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a reward: the answer, and its score or the error. `said` describes the answer in
    messages: "an empty answer"."""

    kind: str
    said: str
    text: str
    score: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledRow:
    """The calls on one row of the data, by kind."""

    place: str
    target: Any
    calls: Mapping[str, Call]

    def score(self, kind: str) -> float | None:
        """Return the score of one kind of answer, if it has one."""
        return self.calls[kind].score if kind in self.calls else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """An answer that got another score when it was scored again. `when`: what differed between the
    two calls."""

    call: Call
    place: str
    then: float
    when: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardCalls:
    """All calls of a reward. `form` is the form of the right answer, with `{}` for the target; it
    is "" if no right answer gets more than a wrong one. `note` says why some or all calls were not
    made."""

    reads_target: bool = False
    form: str = ""
    rows: tuple[CalledRow, ...] = ()
    tried: tuple[Call, ...] = ()
    """calls with all forms, on the first row"""
    change: Change | None = None
    drops_errors: bool = True
    """answers whose call fails are left out of training"""
    note: str = ""

    @property
    def all(self) -> Iterator[Call]:
        """Yield all calls."""
        yield from self.tried
        for row in self.rows:
            yield from row.calls.values()

    def scores(self, kind: str) -> list[float] | None:
        """Return the scores of one kind of answer, by row; None if a row has none."""
        found = [row.score(kind) for row in self.rows]
        scores = [score for score in found if score is not None]
        return scores if scores and len(scores) == len(found) else None

    def at_least_right(self, kind: str, *, more: bool = False) -> bool:
        """True if this kind of answer gets as much as the right one on every row; with `more`,
        if it gets more."""
        mine, right = self.scores(kind), self.scores(RIGHT)
        if mine is None or right is None:
            return False
        least = SAME if more else -SAME
        return all(a - b > least for a, b in zip(mine, right, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One game: the observation before each turn, the rewards of each turn by part, and True if it
    ended. `last` is the last turn of the player; `error` says why the game failed there."""

    shown: tuple[str, ...] = ()
    rewards: tuple[Mapping[str, float], ...] = ()
    done: bool = False
    error: str = ""
    last: str = ""

    def total(self, part: str) -> float:
        return sum(turn.get(part, 0.0) for turn in self.rewards)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRow:
    """The games on one row of the data, by player."""

    place: str
    target: Any
    prompt: str
    plays: Mapping[str, Play]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayChange:
    """A game that was played twice with the same seed and the same turns, and differed."""

    place: str
    before: Play
    after: Play
    when: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Worse:
    """A player who answers wrong until the end gets more than one who answers right, though a turn
    with the right answer gets more than one with a wrong answer. `last` is a wrong turn."""

    part: str
    right: float
    wrong: float
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPlays:
    """All games of an environment. `form` is the form of the right answer, "" if no right answer
    gets more than a wrong one. `part` is the reward part in which it gets more."""

    form: str = ""
    part: str = ""
    worse: Worse | None = None
    rows: tuple[PlayedRow, ...] = ()
    change: PlayChange | None = None
    drops_errors: bool = True
    note: str = ""

    def totals(self, player: str) -> list[float] | None:
        """Return the total reward of a player, by row; None if a game was not played, or failed."""
        plays = [row.plays.get(player) for row in self.rows]
        found = [p.total(self.part) for p in plays if p is not None and not p.error]
        return found if found and len(found) == len(plays) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResults:
    """Results of the calls of a view: by reward, and by environment."""

    rewards: Mapping[str, RewardCalls] = field(default_factory=dict)
    environments: Mapping[str, EnvironmentPlays] = field(default_factory=dict)


def shorten(text: str) -> str:
    """Shorten an answer for a message."""
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else f"{flat[:40]} ... {flat[-16:]}"
