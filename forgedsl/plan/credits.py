"""Admission and window logic of prompt groups: what makes the age bound hold.

A group is *admitted* when it is drawn, *finalized* when it is ready to train on, *taken* into a
batch, and *released* when the generator has pulled the weights that were trained on it; or it is
*dropped* before it is taken. It holds one credit from admission until it is released or dropped:

    admit -> in flight -> finalize -> waiting -> take -> training -> released
                 `------------- drop ------------'

At most `credits` groups are alive, and a group may be overtaken only by the `window - 1` groups
drawn right after it. So at most (credits - 1) + (window - 1) groups are trained on before it, and
its age is at most (credits + window - 2) // prompts steps. When the weights are synced only every
k steps, the k - 1 steps after the last pulled version hold no credits, which adds k - 1; holding
them would need a lag of k - 1 to go on at all, and releasing every step without a sync at once
would break the bound when a pull is late.

The runtime controller and the simulator both use this class; it does no waiting itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

IN_FLIGHT, WAITING, TRAINING = "in_flight", "waiting", "training"


class Credits:
    """Credits and window of one run. Group ids count up from 0 in the order of admission.

    `every` is the number of steps between weight syncs, None in a graph that has no sync.

    Example:
        credits = Credits(prompts=16, credits=32, window=1)
        group = credits.admit()                  # None: wait
        credits.finalize(group)                  # or credits.drop(group)
        if credits.ready():
            batch = credits.take()
            credits.stepped(batch, version=1)    # the trainer's version after the step
            credits.pulled(version=1)            # every generator serves version 1
    """

    def __init__(self, prompts: int, credits: int, window: int = 1, every: int | None = 1) -> None:
        if not 1 <= prompts <= credits or window < 1 or (every is not None and every < 1):
            raise ValueError(f"need 1 <= {prompts=} <= {credits=}, {window=} and {every=} >= 1")
        self.prompts = prompts
        self.credits = credits
        self.window = window
        self.every = every
        self.next_group = 0
        self.pulled_version = 0
        self._state_by_group: dict[int, str] = {}  # in order of admission, hence of id
        self._oldest = 0  # no group before it is in flight
        self._eligible: set[int] = set()  # waiting, and before the end of the window
        self._limit = window
        self._groups_by_version: dict[int, tuple[int, ...]] = {}  # stepped, credits still held

    def admit(self) -> int | None:
        """The id of a new group, or None while every credit is held."""
        if len(self._state_by_group) >= self.credits:
            return None
        group = self.next_group
        self.next_group += 1
        self._state_by_group[group] = IN_FLIGHT
        return group

    def finalize(self, group: int) -> None:
        """`group` is complete: rolled out, scored, not filtered away."""
        self._move(group, (IN_FLIGHT,), WAITING)
        if group < self._limit:
            self._eligible.add(group)
        self._slide()

    def drop(self, group: int) -> None:
        """`group` will not be trained on (failed, filtered, stale): its credit returns."""
        self._move(group, (IN_FLIGHT, WAITING), None)
        self._eligible.discard(group)
        self._slide()

    def ready(self) -> bool:
        """True if enough groups for a full batch can be taken."""
        return len(self._eligible) >= self.prompts

    def take(self) -> tuple[int, ...]:
        """The groups of the next batch, oldest first; legal when `ready()`."""
        if not self.ready():
            raise ValueError(f"{len(self._eligible)} of {self.prompts} groups are ready")
        batch = tuple(sorted(self._eligible)[: self.prompts])
        self._eligible.difference_update(batch)
        for group in batch:
            self._state_by_group[group] = TRAINING
        return batch

    def stepped(self, groups: Iterable[int], version: int) -> None:
        """The step on `groups` is done and made weights `version`."""
        self._groups_by_version[version] = tuple(groups)
        self._release_covered()

    def pulled(self, version: int) -> None:
        """Every generator now samples with weights `version` or newer."""
        self.pulled_version = max(version, self.pulled_version)
        self._release_covered()

    def released(self, groups: Iterable[int]) -> None:
        """Return the credits of trained `groups`; `stepped` and `pulled` do this when it is due."""
        for group in groups:
            self._move(group, (TRAINING,), None)

    def groups(self, state: str) -> tuple[int, ...]:
        """Ids of the groups that are IN_FLIGHT, WAITING or TRAINING, oldest first."""
        return tuple(g for g, s in self._state_by_group.items() if s == state)

    @property
    def alive(self) -> int:
        """Credits held."""
        return len(self._state_by_group)

    @property
    def in_flight(self) -> int:
        """Groups admitted and not yet finalized."""
        return len(self.groups(IN_FLIGHT))

    @property
    def waiting(self) -> int:
        """Groups finalized and not yet taken."""
        return len(self.groups(WAITING))

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on, as plain JSON data."""
        return {
            "next_group": self.next_group,
            "pulled_version": self.pulled_version,
            "groups": [[group, state] for group, state in self._state_by_group.items()],
            "stepped": [[version, list(ids)] for version, ids in self._groups_by_version.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; sizes stay those of this object."""
        self.next_group = state["next_group"]
        self.pulled_version = state["pulled_version"]
        self._state_by_group = dict(sorted(state["groups"]))
        self._groups_by_version = {version: tuple(ids) for version, ids in state["stepped"]}
        self._oldest, self._limit, self._eligible = 0, 0, set()
        self._slide()

    def _release_covered(self) -> None:
        for version in sorted(self._groups_by_version):
            if self.every is None or version < self.pulled_version + self.every:
                self.released(self._groups_by_version.pop(version))

    def _slide(self) -> None:
        """Move the window on; who comes into it may be taken.

        Ids are absolute places in the queue: the window starts at the oldest group in flight and
        does not slide while that group stays, so no group is overtaken by more than window - 1.
        """
        states = self._state_by_group
        while self._oldest < self.next_group and states.get(self._oldest) != IN_FLIGHT:
            self._oldest += 1
        for group in range(self._limit, min(self._oldest + self.window, self.next_group)):
            if states.get(group) == WAITING:
                self._eligible.add(group)
        self._limit = self._oldest + self.window

    def _move(self, group: int, sources: tuple[str, ...], target: str | None) -> None:
        state = self._state_by_group.get(group)
        if state not in sources:
            raise ValueError(f"group {group} is {state or 'not alive'}, not {' or '.join(sources)}")
        if target is None:
            del self._state_by_group[group]
        else:
            self._state_by_group[group] = target
