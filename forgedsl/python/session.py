"""Services of a pipeline, called from Python: for a training loop of your own.

    with pipeline.session() as s:        starts the services; your code calls them
        s["trainer"], s["generator"], s["sums"], s["grade"]      one handle each
        handle.verb(...) --> Work        `await` it, or `.result()`

All calls run on one thread with an event loop of its own, so that scripts, notebooks and coroutines
use a Session alike. Calls of one service run in the order in which they were made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from forgedsl.python.arguments import (
    check_count,
    check_handle,
    check_is,
    check_lengths,
    check_metrics,
    check_values,
)
from forgedsl.python.generator import Generator
from forgedsl.python.groups import Buffer, Group, assembled
from forgedsl.python.handles import Dataset, Handle, Scorer
from forgedsl.python.open_services import OpenServices
from forgedsl.python.pages import PipelineError
from forgedsl.python.speaking import all_speak_python
from forgedsl.python.trainer import Reference, Trainer
from forgedsl.python.work import Work
from forgedsl.types.flow import Role

if TYPE_CHECKING:
    from forgedsl.lower.job import Job, Node
    from forgedsl_runtime.data_types import Batch


@all_speak_python
class Session(OpenServices):
    """Open services of a pipeline. Made by `pipeline.session()`; see docs/guide/python.md."""

    def __init__(
        self,
        job: Job,
        make_folder: Callable[[], Path],
        release: Callable[[Path], None],
        wanted: Path | None,
    ) -> None:
        super().__init__(job, make_folder, release)
        self._wanted = wanted
        self._handles: dict[str, Handle] = {}
        self._groups = 0
        self._samples = 0
        self._states: dict[str, dict[str, Any]] = {}
        self._step: int | None = None
        """the last that was logged; None after a state was loaded"""

    # ---- what there is

    @property
    def names(self) -> tuple[str, ...]:
        """Services, datasets, rubrics and rewards of the file."""
        job = self.job
        return (*job.services, *job.datasets, *job.rubrics, *job.rewards)

    def __getitem__(self, name: str) -> Any:
        """The Trainer, Reference, Generator, Dataset or Scorer of this name."""
        check_is(name, str, "the name of a service, dataset, rubric or reward is a text")
        if name not in self._handles:
            self._handles[name] = self._handle(name)
        return self._handles[name]

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse an unknown attribute. Services are `s[NAME]`, so that no name can hide a verb."""
        job = self.__dict__.get("job")
        known = () if job is None else (*job.services, *job.datasets, *job.rewards, *job.rubrics)
        hint = f': write s["{name}"]' if name in known else ""
        raise AttributeError(f"a Session has no attribute `{name}`{hint}", name=name, obj=self)

    def _handle(self, name: str) -> Handle:
        job = self.job
        if name in job.trainers:
            return (Trainer if job.services[name].trained else Reference)(self, name)
        if name in job.samplers:
            return Generator(self, name)
        if name in job.datasets:
            return Dataset(self, name)
        if name in job.rubrics or name in job.rewards:
            return Scorer(self, name)
        from forgedsl.mistakes.suggest import did_you_mean, nearest

        if name in job.environments:
            generator = next(iter(job.samplers), "generator")
            raise PipelineError(
                f'`{name}` is an environment, which has no handle: s["{generator}"].sample(...) '
                "plays in it, if the flow's `play` does"
            )
        close = did_you_mean(nearest(name, self.names)) or f"there are {', '.join(self.names)}"
        raise PipelineError(f"the pipeline has no `{name}`; {close}")

    # ---- methods of the session

    def batch(self, groups: Sequence[Group], **fields: str) -> Batch:
        """Make the batch of a step from groups of completions. Each keyword is a field of the loss,
        its value the name of an attribute of the groups: `adv="adv"` takes `group.adv`, one number
        (or one list of numbers per token) for each completion. `behavior` and the token counts need
        no keyword.
        """
        batch = assembled(groups, fields)
        rows = {n: t.batch.seq_len for n, t in self.job.trainers.items() if self._trains(n)}
        widest = max(rows, key=lambda name: rows[name], default=None)
        return batch if widest is None else check_lengths(batch, rows[widest], widest)

    def buffer(self, *, groups: int, max_age: int) -> Buffer:
        """A store of at most `groups` groups, from which those older than `max_age` versions are
        not drawn."""
        number, age = check_count("groups", groups, 1), check_count("max_age", max_age, 0)
        return Buffer(number, age, seed=self.job.seed)

    def sync(self, trainer: Trainer, generator: Generator) -> Work[int]:
        """Send the weights of the trainer to the generator, after all earlier calls of the trainer
        have ended; the result is the version of the weights."""
        check_handle("trainer", trainer, Trainer, self)
        check_handle("generator", generator, Generator, self)
        syncs = self._nodes(Role.TRANSFERS, trainer.name)
        sync = next((node for node in syncs if node.to == generator.name), None)
        if sync is None:
            raise PipelineError(
                f"the flow has no `sync {trainer.name} -> {generator.name}`, which would define "
                "the transport and the dtype"
            )
        self._unasked.check(generator.name)

        async def send() -> int:
            version = trainer.version
            with self._opened_services().this.events.span(
                "sync", service=generator.name, version=version
            ) as end:
                found = await self._opened_services().ask.sync(sync, version)
                end |= {"bytes": found.bytes, "transport": found.transport}
            generator.version = version
            return version

        return self.submit(send, trainer.name)

    def log(self, *, step: int, **fields: float) -> None:
        """Write a row of metrics.jsonl, and to the sinks of the file's `logging`. Fields that have
        the names of a run's metrics, such as `reward_mean` and `loss`, are drawn in the report."""
        numbers = check_metrics(step, fields, self._step)

        async def emit() -> None:
            self._opened_services().this.events.emit("metrics", step=step, **numbers)

        self.submit(emit).result()
        self._step = step

    def save(self, name: str, **values: Any) -> Path:
        """Save the state of every trainer under a name, with values of your own (JSON)."""
        check_values(values)
        for each in filter(self._trains, self.job.trainers):
            self[each].save_state(name).result()
        self._states[name]["mine"] = values
        self._write_states()
        return self.folder / "checkpoints" / f"step-{self._states[name]['step']}"

    def load(self, name: str) -> dict[str, Any]:
        """Load what `save` wrote in this Session; return the values of your own."""
        for each in filter(self._trains, self.job.trainers):
            self[each].load_state(name).result()
        found: dict[str, Any] = self._states[name]["mine"]
        return found

    def _nodes(self, role: Role, target: str) -> list[Node]:
        """The operations of the flow with this role on a service or dataset."""
        return [n for n in self.job.nodes if role in n.roles and n.target == target]

    def _trains(self, name: str) -> bool:
        return self.job.services[name].trained

    def _state(self, name: str) -> int:
        """The number of a saved state; a new one for a new name."""
        if name not in self._states:
            self._states[name] = {"step": len(self._states) + 1, "mine": {}}
        return int(self._states[name]["step"])

    def _write_states(self) -> None:
        text = json.dumps(self._states, indent=1)
        (self.folder / "session.json").write_text(text, encoding="utf-8")

    def __repr__(self) -> str:
        closed = "closed" if self._loop.is_closed() else "not open"
        state = "open" if self._services is not None else closed
        where = self._folder or self._wanted or "with a new folder"
        return f"<Session {where}: {state}; {', '.join(self.names)}>"

    def _repr_html_(self) -> str:
        from forgedsl.python.session_page import session_page

        title = repr(self)[1:-1].partition(";")[0]
        handles = {name: self[name] for name in self.names}
        return session_page(title, self.job, handles, self._step, tuple(self._states))
