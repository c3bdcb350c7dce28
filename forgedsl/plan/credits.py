"""Credits and window of prompt groups, which guarantee the bound of the policy age.

A group is *admitted* when it is drawn, *finalized* when it is ready to train on, *taken* into a
batch, and *released* when the generator has pulled the weights trained on it. It can be *dropped*
before it is taken. It holds one credit from admission until it is released or dropped:

    admit -> in flight -> finalize -> waiting -> take -> training -> released
                 `------------- drop ------------'

At most `credits` groups are alive, and a group may be overtaken only by the `window - 1` groups
drawn right after it. So at most (credits - 1) + (window - 1) groups are trained on before it, and
its age is at most (credits + window - 2) // prompts steps. If weights are synced only every k
steps, the k - 1 steps after the last pulled version hold no credits, which adds k - 1 to the age.
(If they held credits, a lag of at least k - 1 would be needed. If every step without a sync
released its credits at once, a late pull would break the bound.)

The runtime controller and the simulator both use this class. It never waits.
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
        # in order of admission, which is the order of ids
        self._state_by_group: dict[int, str] = {}
        self._oldest = 0  # all groups before it are finalized
        self._eligible: set[int] = set()  # waiting groups inside of the window
        self._limit = window
        # trained groups that still hold credits
        self._groups_by_version: dict[int, tuple[int, ...]] = {}

    def admit(self) -> int | None:
        """Admit a group; return its id, or None if all credits are held."""
        if len(self._state_by_group) >= self.credits:
            return None
        group = self.next_group
        self.next_group += 1
        self._state_by_group[group] = IN_FLIGHT
        return group

    def finalize(self, group: int) -> None:
        """Mark `group` as complete: sampled, scored and kept by filters."""
        self._move(group, (IN_FLIGHT,), WAITING)
        if group < self._limit:
            self._eligible.add(group)
        self._slide()

    def drop(self, group: int) -> None:
        """Drop `group`, which will not be trained on (failed, filtered, stale); its credit
        returns."""
        self._move(group, (IN_FLIGHT, WAITING), None)
        self._eligible.discard(group)
        self._slide()

    def ready(self) -> bool:
        """True if enough groups for a full batch can be taken."""
        return len(self._eligible) >= self.prompts

    def take(self) -> tuple[int, ...]:
        """Take the groups of the next batch, oldest first. Requires `ready()`."""
        if not self.ready():
            raise ValueError(f"{len(self._eligible)} of {self.prompts} groups are ready")
        batch = tuple(sorted(self._eligible)[: self.prompts])
        self._eligible.difference_update(batch)
        for group in batch:
            self._state_by_group[group] = TRAINING
        return batch

    def stepped(self, groups: Iterable[int], version: int) -> None:
        """Record that the step on `groups` is done and made weights `version`."""
        self._groups_by_version[version] = tuple(groups)
        self._release_covered()

    def pulled(self, version: int) -> None:
        """Record that every generator samples with weights `version` or newer."""
        self.pulled_version = max(version, self.pulled_version)
        self._release_covered()

    def released(self, groups: Iterable[int]) -> None:
        """Release the credits of trained `groups`. Called by `stepped` and `pulled`."""
        for group in groups:
            self._move(group, (TRAINING,), None)

    def groups(self, state: str) -> tuple[int, ...]:
        """Ids of the groups that are IN_FLIGHT, WAITING or TRAINING, oldest first."""
        return tuple(g for g, s in self._state_by_group.items() if s == state)

    @property
    def alive(self) -> int:
        """Number of credits held."""
        return len(self._state_by_group)

    @property
    def in_flight(self) -> int:
        """Number of groups admitted and not yet finalized."""
        return len(self.groups(IN_FLIGHT))

    @property
    def waiting(self) -> int:
        """Number of groups finalized and not yet taken."""
        return len(self.groups(WAITING))

    def state_dict(self) -> dict[str, Any]:
        """Return the state needed to continue, as JSON data."""
        return {
            "next_group": self.next_group,
            "pulled_version": self.pulled_version,
            "groups": [[group, state] for group, state in self._state_by_group.items()],
            "stepped": [[version, list(ids)] for version, ids in self._groups_by_version.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of `state_dict`. Numbers of credits and window stay those of this
        object."""
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
        """Move the window forward. Waiting groups inside of it may be taken.

        Ids are positions in the queue. The window starts at the oldest group in flight and does not
        move while that group stays, so at most window - 1 groups overtake it.
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
