"""Services of a pipeline, called from Python: for a training loop of your own.

    with pipeline.session() as s:        starts the services; your code calls them
        s["trainer"], s["generator"], s["sums"], s["grade"]      one handle each
        handle.verb(...) --> Work        `await` it, or `.result()`

All calls run on one thread with an event loop of its own, so that scripts, notebooks and coroutines
use a Session alike. Calls of one service run in the order in which they were made.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from forgedsl.cli.waiting import waiting
from forgedsl.notebook import quiet_widgets
from forgedsl.python.arguments import (
    change_sampling,
    check_batch,
    check_count,
    check_counts,
    check_fields,
    check_handle,
    check_is,
    check_lengths,
    check_loss,
    check_messages,
    check_metrics,
    check_rate,
    check_target,
    check_values,
    list_prompts,
)
from forgedsl.python.groups import Buffer, Group, assembled, check_group
from forgedsl.python.handles import Dataset, Handle, Scorer
from forgedsl.python.pages import PipelineError
from forgedsl.python.speaking import all_speak_python
from forgedsl.python.work import FAILED, Unasked, Work, as_run_error, begun, ending, settle
from forgedsl.types.flow import Role

if TYPE_CHECKING:
    from forgedsl.lower.job import Job, Node
    from forgedsl_runtime.data_types import Batch, PassResult, Prompt, StepResult
    from forgedsl_runtime.losses import LossFunction
    from forgedsl_runtime.session import Services

R = TypeVar("R")


@all_speak_python
class Session:
    """Open services of a pipeline. Made by `pipeline.session()`; see docs/guide/python.md."""

    def __init__(
        self,
        job: Job,
        make_folder: Callable[[], Path],
        release: Callable[[Path], None],
        wanted: Path | None,
    ) -> None:
        self.job = job
        self._folder: Path | None = None
        self._make_folder = make_folder
        self._release = release
        self._wanted = wanted
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._services: Services | None = None
        self._turns: dict[str, asyncio.Lock] = {}
        self._handles: dict[str, Handle] = {}
        self._groups = 0
        self._samples = 0
        self._states: dict[str, dict[str, Any]] = {}
        self._step: int | None = None
        """the last that was logged; None after a state was loaded"""
        self._unasked = Unasked()

    # ---- open and close

    @property
    def folder(self) -> Path:
        """Its run folder, which is made when the Session opens."""
        if self._folder is None:
            raise PipelineError("this Session has no folder yet: it is made when it opens")
        return self._folder

    def open(self) -> Self:
        """Start the services and wait until they are ready. `close` ends them."""
        self._check_new()
        try:
            with waiting(self._starting):
                self._begin().result()
        except BaseException:
            self._ended()
            raise
        return self

    def close(self, status: str = "done") -> None:
        """Stop all processes, and write report.html. The error of a call for whose result nobody
        has asked is raised then."""
        lost = self._lost()
        self._close(ending(lost) if lost or status == "done" else (FAILED, status, ""))
        if lost is not None:
            raise lost

    def _lost(self) -> BaseException | None:
        if self._services is not None:
            asyncio.run_coroutine_threadsafe(begun(), self._loop).result()
        return self._unasked.any_error()

    def _close(self, how: tuple[int, str, str]) -> None:
        try:
            if self._services is not None:
                self._end(*how).result()
        finally:
            self._ended()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._close(ending(error))

    async def __aenter__(self) -> Self:
        self._check_new()
        try:
            with waiting(self._starting):
                await self._begin()
        except BaseException:
            self._ended()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lost = self._lost() if error is None else error
        try:
            if self._services is not None:
                await self._end(*ending(lost))
        finally:
            self._ended()
        if lost is not None and error is None:
            raise lost

    @property
    def _starting(self) -> str:
        return f"starting {', '.join(self.job.services)}"

    def _check_new(self) -> None:
        if self._loop.is_closed():
            raise PipelineError("this Session is closed: open another with pipeline.session()")
        if self._thread.is_alive():
            raise PipelineError("this Session is already open")
        self._folder = self._make_folder()

    def _begin(self) -> Work[None]:
        self._thread.start()
        return Work(asyncio.run_coroutine_threadsafe(self._opened(), self._loop))

    async def _opened(self) -> None:
        from forgedsl_runtime.session import open_services

        quiet_widgets()
        (self.folder / "session.json").write_text("{}", encoding="utf-8")
        self._services = await open_services(self.job, self.folder)

    def _end(self, code: int, status: str, message: str) -> Work[None]:
        assert self._services is not None
        closing = self._services.close(code, status, message)
        return Work(asyncio.run_coroutine_threadsafe(closing, self._loop))

    def _ended(self) -> None:
        """Stop the thread, and release the lock of the run folder."""
        self._services = None
        if self._folder is not None:
            self._release(self._folder)
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(settle(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

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

    def submit(
        self, work: Callable[[], Coroutine[Any, Any, R]], turn: str = "", *, handle: str = ""
    ) -> Work[R]:
        """Begin a call of the handle `turn` or `handle`; calls with one `turn` run one after
        another. If an earlier call of the handle failed, and nobody can ask for its result any
        more, its error is raised."""
        services = self._opened_services()
        self._unasked.check(turn or handle)

        async def in_turn() -> R:
            services.check()
            if not turn:
                return await work()
            async with self._turns.setdefault(turn, asyncio.Lock()):
                await asyncio.sleep(0)  # the error of the call before is known then
                self._unasked.check(turn)
                return await work()

        future = asyncio.run_coroutine_threadsafe(as_run_error(in_turn()), self._loop)
        return Work(future, self._unasked, turn or handle)

    def _opened_services(self) -> Services:
        if self._services is None:
            raise PipelineError("this Session is not open: use `with pipeline.session() as s:`")
        return self._services

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
        state = "open" if self._services is not None else "not open"
        where = self._folder or self._wanted or "with a new folder"
        return f"<Session {where}: {state}; {', '.join(self.names)}>"

    def _repr_html_(self) -> str:
        from forgedsl.python.session_page import session_page

        title = repr(self)[1:-1].partition(";")[0]
        handles = {name: self[name] for name in self.names}
        return session_page(title, self.job, handles, self._step, tuple(self._states))


# ---- handles


@all_speak_python
class Reference(Handle):
    """A frozen model."""

    session: Session

    def logprobs(self, group: Group) -> Work[list[list[float]]]:
        """The log-probs of the completion tokens of a group under this model's weights."""
        rollouts = list(check_group(group).rollouts)
        return self.session.submit(
            lambda: self._services.ask.trainers[self.name].logprobs(rollouts), self.name
        )


@all_speak_python
class Trainer(Reference):
    """A model that is trained. `version` counts its updates, as a policy's version in a run."""

    def __init__(self, session: Session, name: str) -> None:
        super().__init__(session, name)
        self.version = 0
        self._registered: dict[str, str] = {}
        self._gradients = False

    def forward_backward(
        self, batch: Batch, loss: str | LossFunction, *, counts: Mapping[str, float] | None = None
    ) -> Work[PassResult]:
        """Compute the loss and its gradients, which add up until `optim_step`.

        A loss divides by counts, such as the number of tokens. Without `counts` they are those of
        this batch alone, so two calls have equal weight even if their batches differ in length.
        With the `counts` of all batches together, two calls and an `optim_step` are one `step` on
        both.
        """
        self._check_loss(loss, batch)
        given = None if counts is None else check_counts(counts)

        async def run() -> PassResult:
            client, name = self._services.ask.trainers[self.name], await self._register_loss(loss)
            passed = await client.accumulate(self._numbered(batch), name, given)
            self._gradients = True
            return passed

        return self.session.submit(run, self.name)

    def counts(self, batches: Sequence[Batch], loss: str | LossFunction) -> Work[dict[str, float]]:
        """The counts that the loss divides by, over all batches together."""
        check_is(batches, Sequence, "`batches` must be a list of batches")
        self._check_loss(loss, *batches)
        samples = [sample for batch in batches for sample in batch.samples]

        async def run() -> dict[str, float]:
            return await self._services.ask.trainers[self.name].counts(
                samples, await self._register_loss(loss)
            )

        return self.session.submit(run, self.name)

    def optim_step(self, *, lr: float | None = None) -> Work[StepResult]:
        """Clip the gradients and update the weights; `lr` replaces the schedule's rate, once."""
        lr = check_rate("lr", lr)

        async def run() -> StepResult:
            if not self._gradients:
                raise PipelineError("there are no gradients: call forward_backward first")
            self._gradients = False
            return self._note_version(await self._services.ask.trainers[self.name].apply(lr))

        return self.session.submit(run, self.name)

    def step(
        self, batch: Batch, loss: str | LossFunction, *, epochs: int = 1, minibatches: int = 1
    ) -> Work[StepResult]:
        """Do one step as a run does: `epochs` passes over the batch, each in `minibatches`."""

        self._check_loss(loss, batch)
        epochs = check_count("epochs", epochs, 1)
        minibatches = check_count("minibatches", minibatches, 1)

        async def run() -> StepResult:
            batch.epochs, batch.minibatches = epochs, minibatches
            name = await self._register_loss(loss)
            self._numbered(batch)
            trainer = self._services.ask.trainers[self.name]
            return self._note_version(await trainer.step(batch, name))

        return self.session.submit(run, self.name)

    def save_state(self, name: str) -> Work[Path]:
        """Save model, optimizer and learning-rate schedule under a name."""
        check_is(name, str, "`name` of a state must be a text")
        step = self.session._state(name)

        async def run() -> Path:
            client = self._services.ask.trainers[self.name]
            await client.save(step)
            await client.saved()
            self.session._write_states()
            return self.session.folder / "checkpoints" / f"step-{step}"

        return self.session.submit(run, self.name)

    def load_state(self, name: str) -> Work[int]:
        """Load what `save_state` wrote in this Session; the result is the version."""
        if name not in self.session._states:
            known = ", ".join(self.session._states) or "none"
            raise PipelineError(f"no state `{name}` was saved in this Session; there are {known}")
        step = self.session._state(name)

        async def run() -> int:
            self.version = await self._services.ask.trainers[self.name].restore(step)
            self._gradients, self.session._step = False, None
            return self.version

        return self.session.submit(run, self.name)

    def export(self, folder: str | Path) -> Work[Path]:
        """Write the weights in Hugging Face format."""
        target = check_target(folder)

        async def run() -> Path:
            model = self.session.job.models[self.session.job.services[self.name].model]
            client = self._services.ask.trainers[self.name]
            return Path(await client.export(str(target), model.dtype))

        return self.session.submit(run, self.name)

    def _note_version(self, result: StepResult) -> StepResult:
        self.version = result.version
        return result

    def _numbered(self, batch: Batch) -> Any:
        """The samples, with the number of steps before this one, which some losses read."""
        for sample in batch.samples:
            sample.sequence_fields.setdefault("num_steps", float(self.version))
        return batch.samples

    def _check_loss(self, loss: str | LossFunction, *batches: Batch) -> None:
        spec = check_loss(loss, self.session.job.losses)
        for batch in batches:
            check_fields(check_batch(batch), spec)
            check_lengths(batch, self.session.job.trainers[self.name].batch.seq_len, self.name)

    async def _register_loss(self, loss: str | LossFunction) -> str:
        """Return the name by which the trainer knows a loss. If the job lacks it, it is sent to the
        trainer first."""
        if isinstance(loss, str):
            return loss
        losses = self.session.job.losses
        known_as = next((name for name, spec in losses.items() if spec == loss.spec), None)
        if known_as is not None:
            return known_as
        text = loss.spec.model_dump_json()
        if text not in self._registered:
            name = f"a loss of the Session {len(self._registered) + 1}"
            await self._services.ask.trainers[self.name].register_loss(name, loss.spec)
            self._registered[text] = name
        return self._registered[text]


@all_speak_python
class Generator(Handle):
    """An engine that samples completions."""

    session: Session
    version = 0
    """version of its weights"""
    _tokenizer: Any = None

    def sample(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        n: int = 1,
        seed: int | None = None,
        **sampling: Any,
    ) -> Work[list[Group]]:
        """Sample `n` completions of each prompt: a group per prompt. `sampling` changes the file's
        settings, such as `temperature=0.7`; this is refused if the generator plays in an
        environment."""
        from forgedsl_runtime.endpoints import seed_of

        asked, n = list_prompts(prompts), check_count("n", n, 1)
        if seed is not None:
            check_count("seed", seed, 0)
        settings = self._sampling(sampling)
        nodes = self.session._nodes(Role.SAMPLES, self.name)
        played = nodes[0] if nodes and nodes[0].env is not None else None
        if played is not None and sampling:
            raise PipelineError(f"{self.name} plays in an environment, with the file's sampling")
        self.session._samples += 1
        root = (self.session.job.seed, self.session._samples) if seed is None else (seed,)

        async def one(group: int, prompt: Prompt, sibling: int) -> Any:
            ask, number = self._services.ask, seed_of(*root, group, sibling)
            if played is not None:
                return await ask.sample(played, prompt, sibling, number)
            client = ask.samplers[self.name]
            return await ask.complete(client, settings, prompt, sibling, number)

        async def run() -> list[Group]:
            calls = [one(g, p, k) for g, p in enumerate(asked) for k in range(n)]
            found = await asyncio.gather(*calls)
            return [
                Group(prompt=prompt, rollouts=found[g * n : (g + 1) * n])
                for g, prompt in enumerate(asked)
            ]

        return self.session.submit(run, handle=self.name)

    def chat(self, messages: str | Sequence[Mapping[str, Any]], **sampling: Any) -> Work[str]:
        """The answer to a chat, or to a plain text: the model's chat template is applied."""
        from forgedsl_runtime.data.reader import load_tokenizer
        from forgedsl_runtime.data_types import Prompt

        job, folder = self.session.job, self.session.folder
        settings = self._sampling(sampling)
        said = check_messages(messages)
        self.session._samples += 1
        number = self.session._samples

        async def run() -> str:
            if self._tokenizer is None:
                model = job.services[self.name].model
                self._tokenizer = await asyncio.to_thread(
                    load_tokenizer, job, model, folder, folder
                )
            text = self._tokenizer.prompt_text(said)
            tokens = self._tokenizer.prompt_tokens(said, text)
            prompt = Prompt(group=0, row=0, text=text, token_ids=tokens, target=None)
            ask = self._services.ask
            done = await ask.complete(ask.samplers[self.name], settings, prompt, 0, number)
            return done.text

        return self.session.submit(run, handle=self.name)

    def _sampling(self, given: Mapping[str, Any]) -> Any:
        """The file's sampling settings with some of them changed."""
        return change_sampling(self.session.job.samplers[self.name].sampling, given)
