"""One source: groups on their way through the stages, with credits, slots and room on the edges.

    draw -> Unit -> stages fire as their inputs come -> waiting -> taken into a batch
             `-- dropped: filter, too few completions left, stale; the credit returns

`forgedsl.plan.credits` decides who is admitted and taken, as in the controller. A stage begins a
group when it has a slot and room for its output on every edge; then its inputs leave their edges.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from forgedsl.plan.credits import TRAINING, WAITING, Credits
from forgedsl.sim.world import World

if TYPE_CHECKING:
    from forgedsl.sim.workload import Source, Stage

TAKE = -1
"""the batch as a reader of edges"""
FREE = ("call", "mask", "keep")
"""operations that take no time"""

Fire = Callable[["Unit", int, "int | None"], None]


class Unit:
    """A group. Lists are by stage, then by completion."""

    __slots__ = (
        "begun", "cut", "dead", "gone", "group", "holds", "left", "local", "need", "todo", "tokens",
        "versions",
    )  # fmt: skip

    def __init__(self, local: int, group: int, need: list[list[int]], left: list[int]) -> None:
        self.local = local
        self.group = group
        self.need = need
        """inputs that are still missing"""
        self.left = left
        """completions that a stage still owes"""
        self.todo = len(left)
        self.dead: dict[int, set[int]] = {}
        self.versions: dict[int, list[int]] = {}
        self.tokens: dict[int, list[float]] = {}
        self.cut: set[tuple[int, int]] = set()
        """completions that reached the limit of their length, as (stage, completion)"""
        self.begun: dict[int, list[int] | None] = {}
        """stages that have, or wait for, a slot; with the completions that wait with it"""
        self.holds: list[tuple[int, int]] = []
        """room it takes, as (stage, reader); reader == stage: a slot"""
        self.gone = False


class Groups:
    """All groups of one source."""

    def __init__(self, world: World, source: Source, stride: int, fire: Fire) -> None:
        self.world = world
        self.source = source
        self.stages = source.stages
        self.waiting: dict[int, Unit] = {}
        self.in_flight = 0
        self.ended = False
        self.dropped: Counter[str] = Counter()
        self.credits = Credits(
            prompts=source.quota, credits=source.credits, window=source.window, every=source.every
        )
        self.open = 0
        """groups drawn and neither dropped nor trained on"""
        self.moved: Callable[..., None] = lambda **_: None
        self._stride = stride
        self._fire = fire
        self._need = [_missing(stage, self.stages) for stage in self.stages]
        self._left = [stage.width or 1 for stage in self.stages]
        self._gated = [_is_gated(stage, source.credits) for stage in self.stages]
        self._room = {
            (i, reader): stage.room if i != reader else stage.slots
            for i, stage in enumerate(self.stages)
            for reader in (*_edges(stage), i)
        }
        self._queues: list[deque[Unit]] = [deque() for _ in self.stages]

    def can_draw(self) -> bool:
        return self.credits.alive < self.credits.credits and self._has_room(0, slot=False)

    def draw(self) -> Unit:
        """Admit a group; its first stages fire."""
        local = self.credits.admit()
        assert local is not None, "asked first"
        need = [list(missing) for missing in self._need]
        unit = Unit(local, local * self._stride + self.source.index, need, list(self._left))
        self.in_flight += 1
        self.open += 1
        for queue, stage in zip(self._queues[1:], self.stages[1:], strict=True):
            if stage.room is not None:
                queue.append(unit)
        if self._gated[0]:
            self._hold(unit, 0, slot=False)
        for sibling in range(self.stages[0].width or 1):
            self.complete(unit, 0, sibling)
        return unit

    def complete(self, unit: Unit, at: int, sibling: int, *, dead: bool = False) -> None:
        """One value of a stage is there."""
        if unit.gone:
            return
        if dead:
            unit.dead.setdefault(at, set()).add(sibling)
        unit.left[at] -= 1
        done = unit.left[at] == 0
        stage = self.stages[at]
        if done:
            unit.todo -= 1
            if self._gated[at] and at in unit.begun:
                self._give_back(unit, at, at)
        for reader in stage.readers:
            if unit.gone:
                return
            if not self.stages[reader].each:
                if done:
                    unit.need[reader][0] -= 1
                    if unit.need[reader][0] == 0:
                        self._ready(unit, reader, None)
            elif stage.width is not None:
                self._one_more(unit, reader, sibling)
            elif done:
                for other in range(self.stages[reader].width or 1):
                    self._one_more(unit, reader, other)
        if unit.todo == 0 and not unit.gone:
            unit.todo = -1  # a stage that it set off may have been the last one
            self._finish(unit)

    def drop(self, unit: Unit, reason: str) -> None:
        """Give a group up that is not in a batch; its credit returns."""
        unit.gone = True
        self.open -= 1
        self.dropped[reason] += 1
        if self.waiting.pop(unit.local, None) is None:
            self.in_flight -= 1
        self.credits.drop(unit.local)
        while unit.holds:
            self._give_back(unit, *unit.holds[-1])
        self.moved()

    def take(self) -> list[Unit]:
        return self._taken(self.credits.take())

    def take_rest(self) -> list[Unit]:
        """What is left of an ended source."""
        rest = self.credits.groups(WAITING)
        for local in rest:
            self.credits.drop(local)
        return self._taken(rest)

    def consumed(self, units: list[Unit], step: int) -> None:
        self.open -= len(units)
        held = set(self.credits.groups(TRAINING))
        self.credits.stepped([u.local for u in units if u.local in held], step)
        self.moved()

    @property
    def over(self) -> bool:
        """It has ended and cannot fill its quota any more."""
        return self.ended and not self.in_flight and not self.credits.ready()

    def alive(self, unit: Unit, at: int) -> list[int]:
        """Completions of a stage that are not dropped."""
        dead = unit.dead.get(at, ())
        return [s for s in range(self.stages[at].width or 1) if s not in dead]

    # ---- firing

    def _one_more(self, unit: Unit, reader: int, sibling: int) -> None:
        need = unit.need[reader]
        need[sibling] -= 1
        if need[sibling] == 0:
            self._ready(unit, reader, sibling)

    def _ready(self, unit: Unit, at: int, sibling: int | None) -> None:
        if not self._gated[at]:
            self._fire(unit, at, sibling)
        elif at not in unit.begun:
            unit.begun[at] = [] if sibling is None else [sibling]
            if self.stages[at].room is None:
                self._queues[at].append(unit)
            self._begin(at)
        elif (waiting := unit.begun[at]) is not None and sibling is not None:
            waiting.append(sibling)
        else:
            self._fire(unit, at, sibling)

    def _begin(self, at: int) -> None:
        """Let groups begin a stage while it has slots and room.

        Where edges hold less than all groups they are queues, and groups pass in order: a younger
        one would take the room without which an older one can never be taken into a batch.
        """
        queue = self._queues[at]
        while queue and (queue[0].gone or at in queue[0].begun) and self._has_room(at, slot=True):
            unit = queue.popleft()
            if unit.gone:
                continue
            self._hold(unit, at, slot=True)
            siblings = unit.begun[at]
            unit.begun[at] = None
            for given in self.stages[at].inputs:
                self._give_back(unit, given, at)
            if not self.stages[at].each:
                self._fire(unit, at, None)
            for sibling in siblings or ():
                self._fire(unit, at, sibling)

    def _has_room(self, at: int, *, slot: bool) -> bool:
        readers = (*_edges(self.stages[at]), *((at,) if slot else ()))
        rooms = [self._room[at, reader] for reader in readers]
        return all(room is None or room > 0 for room in rooms)

    def _hold(self, unit: Unit, at: int, *, slot: bool) -> None:
        for reader in (*_edges(self.stages[at]), *((at,) if slot else ())):
            room = self._room[at, reader]
            if room is not None:
                self._room[at, reader] = room - 1
                unit.holds.append((at, reader))

    def _give_back(self, unit: Unit, at: int, reader: int) -> None:
        if (at, reader) in unit.holds:
            unit.holds.remove((at, reader))
            room = self._room[at, reader]
            assert room is not None, "only what is counted is held"
            self._room[at, reader] = room + 1
            self._begin(at)
            if at == 0:
                self.moved()

    def _finish(self, unit: Unit) -> None:
        self.waiting[unit.local] = unit
        self.in_flight -= 1
        self.credits.finalize(unit.local)
        self.moved(ready=True)

    def _taken(self, locals_: tuple[int, ...]) -> list[Unit]:
        units = [self.waiting.pop(local) for local in locals_]
        for unit in units:
            while unit.holds:
                self._give_back(unit, *unit.holds[-1])
        return units


def _missing(stage: Stage, stages: tuple[Stage, ...]) -> list[int]:
    return [len(stage.inputs)] * (stage.width or 1 if stage.each else 1)


def _edges(stage: Stage) -> tuple[int, ...]:
    return (*stage.readers, TAKE) if stage.to_take else stage.readers


def _is_gated(stage: Stage, credits: int) -> bool:
    """Whether anything can ever hold a group up before this stage."""
    return stage.room is not None or (stage.slots < credits and stage.op not in FREE)
