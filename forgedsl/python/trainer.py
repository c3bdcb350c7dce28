"""Handles of models in a Session: a frozen reference, and a trainer.

batch, loss --forward_backward--> gradients --optim_step--> new weights, version + 1
batch, loss --step--> the same, as a run does it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgedsl.python.arguments import (
    check_batch,
    check_count,
    check_counts,
    check_fields,
    check_is,
    check_lengths,
    check_loss,
    check_rate,
    check_target,
)
from forgedsl.python.groups import Group, check_group
from forgedsl.python.handles import Handle, Home
from forgedsl.python.pages import PipelineError
from forgedsl.python.speaking import all_speak_python
from forgedsl.python.work import Work

if TYPE_CHECKING:
    from forgedsl_runtime.data_types import Batch, PassResult, StepResult
    from forgedsl_runtime.losses import LossFunction


@all_speak_python
class Reference(Handle):
    """A frozen model."""

    def logprobs(self, group: Group) -> Work[list[list[float]]]:
        """The log-probs of the completion tokens of a group under this model's weights."""
        rollouts = list(check_group(group).rollouts)
        return self.session.submit(
            lambda: self._services.ask.trainers[self.name].logprobs(rollouts), self.name
        )


@all_speak_python
class Trainer(Reference):
    """A model that is trained. `version` counts its updates, as a policy's version in a run."""

    def __init__(self, session: Home, name: str) -> None:
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

        If the call fails, all gradients since the last `optim_step` are discarded, also those of
        earlier calls: repeat these too.
        """
        self._check_loss(loss, batch)
        given = None if counts is None else check_counts(counts)

        async def run() -> PassResult:
            client, name = self._services.ask.trainers[self.name], await self._register_loss(loss)
            samples, first = self._numbered(batch), not self._gradients
            self._gradients = False  # a pass that fails discards them
            passed = await client.accumulate(samples, name, given, first=first)
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
