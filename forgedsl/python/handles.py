"""Handles of a Session: the base of all, and those of datasets, rubrics and rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from forgedsl.python.arguments import check_count
from forgedsl.python.groups import Group, check_group
from forgedsl.python.pages import PipelineError
from forgedsl.python.speaking import all_speak_python
from forgedsl.python.work import Work
from forgedsl.types.flow import Role

if TYPE_CHECKING:
    from forgedsl.lower.job import Job, Node
    from forgedsl_runtime.data_types import Batch, Prompt
    from forgedsl_runtime.endpoints import Score
    from forgedsl_runtime.session import Services


R = TypeVar("R")


class Home(Protocol):
    """Interface of the Session that handles belong to."""

    job: Job
    _groups: int
    _samples: int
    _states: dict[str, dict[str, Any]]
    _step: int | None

    @property
    def folder(self) -> Path: ...

    def submit(
        self, work: Callable[[], Coroutine[Any, Any, R]], turn: str = "", *, handle: str = ""
    ) -> Work[R]: ...

    def _nodes(self, role: Role, target: str) -> list[Node]: ...

    def _opened_services(self) -> Services: ...

    def _state(self, name: str) -> int: ...

    def _write_states(self) -> None: ...


@all_speak_python
class Handle:
    """A service, dataset, rubric or reward of a Session."""

    def __init__(self, session: Home, name: str) -> None:
        self.session = session
        self.name = name

    @property
    def _services(self) -> Services:
        return self.session._opened_services()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


@all_speak_python
class Dataset(Handle):
    """Rows of a dataset, in the order in which a run draws them."""

    def draw(self, count: int) -> list[Prompt]:
        """The next prompts; fewer at the end of `schedule.epochs`."""
        count = check_count("count", count, 1)

        async def run() -> list[Prompt]:
            found = []
            for _ in range(count):
                prompt = self._services.ask.datasets[self.name].next_prompt()
                if prompt is None:
                    break
                prompt.group = self.session._groups
                self.session._groups += 1
                found.append(prompt)
            return found

        return self.session.submit(run, self.name).result()

    def batch(self) -> Batch | None:
        """The next batch of a supervised step, for a dataset of demonstrations; None at the end."""
        nodes = self.session._nodes(Role.SUPERVISED, self.name)
        if not nodes:
            raise PipelineError(f"the flow has no `{self.name}.batches()`: draw prompts instead")
        return self.session.submit(lambda: self._services.ask.batches(nodes[0]), self.name).result()


@all_speak_python
class Scorer(Handle):
    """A rubric or a reward."""

    def score(self, group: Group) -> Work[list[float]]:
        """The score of each completion of a group. A completion whose reward fails under
        `on_error = drop` is taken out of the group, as in a run. Values of the rewards behind a
        rubric are in `group.parts` then, by name."""
        from forgedsl_runtime.endpoints import DropRollout

        check_group(group)

        async def one(rollout: Any) -> Score | None:
            try:
                return await self._services.ask.rewards.score(self.name, rollout, rollout.target)
            except DropRollout as error:
                text = f"a completion was dropped: {error}"
                self._services.this.events.emit("warning", service=self.name, text=text)
                return None

        async def run() -> list[float]:
            found = await asyncio.gather(*(one(rollout) for rollout in group.rollouts))
            kept = [(r, s) for r, s in zip(group.rollouts, found, strict=True) if s is not None]
            group.rollouts = [rollout for rollout, _ in kept]
            names = {name: None for _, score in kept for name in score.parts}
            group.parts = {n: [s.parts.get(n, float("nan")) for _, s in kept] for n in names}
            return [score.value for _, score in kept]

        return self.session.submit(run, handle=self.name)
