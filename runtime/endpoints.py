"""What the controller asks of the services: one Protocol, no transport.

    controller --(node, items)--> Endpoints --(Monarch messages)--> meshes

`runtime/services.py` implements it over Monarch, the tests over coroutines that sleep. Rules:
- Every call may be cancelled; a cancelled call abandons its remote work. The controller puts the
  deadline of the node around every call but those of rewards, so implementations need none of
  their own for that.
- What a caller may handle is a `RolloutError` (retried, then dropped) or a `DropRollout` (dropped
  at once). `ServiceError` and every other exception end the run.
- A service that fails while nobody calls it is put into `failures`; that ends the run too.
- `step` may be called while a `sync` of the version before it is in flight (overlap). The trainer
  must not change its weights before that version has been snapshotted.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from forgedsl.errors import RunError
from forgedsl.lower.job import Node
from forgedsl.runtime.data_types import Batch, Prompt, Rollout, Sample, StepResult
from forgedsl.runtime.rewards.requests import Requests

GROUP = "group"
"""The argument of a function over the whole batch that numbers the group of each completion."""


class RolloutError(Exception):
    """One completion failed for a reason that another try may not meet again."""


class DropRollout(Exception):
    """The declared policy drops this rollout. Drops are counted by `reason`: keep it short."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class RewardError(DropRollout):
    """A reward failed after its retries, and its `on_error` is drop. `failed` names all rewards
    that failed on this rollout, `seconds` and `retried` are as in `Score`."""

    def __init__(self, reward: str, message: str) -> None:
        super().__init__(f"reward {reward}")
        self.message = message
        self.failed: tuple[str, ...] = (reward,)
        self.retried: tuple[str, ...] = ()
        self.requests: Mapping[str, Requests] = {}
        self.seconds: dict[str, float] = {}

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFailure:
    """A service that can no longer answer."""

    service: str
    origin: str
    """where it was declared: file:line:column"""
    message: str
    died: bool = False
    """a process of it is gone"""


class ServiceError(Exception):
    """A call failed because its service did; `died`: a process of it is gone."""

    def __init__(self, failure: ServiceFailure, *, died: bool = False) -> None:
        self.failure = failure
        self.died = died
        super().__init__(f"{failure.service}: {failure.message}")


class CheckpointError(RunError):
    """A checkpoint could not be written; nothing of it is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of a rollout; `parts` holds the value of each reward behind it, by name,
    `seconds` how long its call took, `failed` the rewards that gave no value, `retried` those that
    were asked again, once for each time."""

    value: float
    parts: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    retried: tuple[str, ...] = ()
    requests: Mapping[str, Requests] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A loss of held-out data; None where no row can be used. A pair is two samples."""

    value: float | None
    reports: dict[str, float] = field(default_factory=dict)
    samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """What one weight transfer moved, and how."""

    bytes: int
    transport: str
    seconds: float


class Endpoints(Protocol):
    """The services of a job. `node` says which service, function or dataset is meant."""

    failures: asyncio.Queue[ServiceFailure]

    async def draw(self, node: Node) -> Prompt | None:
        """The next prompt of `node.target`, `None` at the end of the data (`schedule.epochs`).

        The controller overwrites `group`. `cursor` is the position after the row: a dataset that
        is sent there by `seek` continues with the row that followed.
        """

    async def batches(self, node: Node) -> Batch | None:
        """The next batch of one whole optimizer step, `cursor` set; `None` at the end."""

    async def pairs(self, node: Node) -> list[Rollout] | None:
        """The next pair: [chosen, rejected], both with the same `prompt`, whose `cursor` is set."""

    async def seek(self, node: Node, cursor: int) -> None:
        """Let the next item of this source be the one after position `cursor` (resume)."""

    async def sample(self, node: Node, prompt: Any, sibling: int, seed: int) -> Rollout:
        """One completion. `prompt` is a `Prompt`, or what a node computed (a judge's prompt).

        `sibling` is unique within the group, over all samplers of the flow.
        """

    async def logprobs(self, node: Node, rollouts: Sequence[Rollout | Sample]) -> list[list[float]]:
        """Log-probs of the completion tokens, of a group; of a whole batch if `node.at_step`,
        called before `step` with the weights that the step starts from."""

    async def score(self, node: Node, rollout: Any, target: Any) -> Score:
        """Apply the reward or rubric; its `on_error` may raise `DropRollout` or `RewardError`.

        The controller waits as long as it takes: bounded is each call of a reward, not its queue.
        """

    async def call(self, node: Node, args: dict[str, Any]) -> Any:
        """Call `node.target` of the program; rollout-level arguments are lists over siblings, or
        over the completions of the whole batch if `node.level` is batch, with `GROUP` beside them.

        Returns plain Python: a list with one entry per sibling, or one value for the group.
        """

    async def weight(self, node: Node, results: dict[str, float]) -> float:
        """What `node.weight` of the program says of a row, from the results of its like."""

    async def step(self, node: Node, batch: Batch) -> StepResult:
        """One optimizer step of `node.target` with `node.loss`."""

    async def leave(self, node: Node) -> bool:
        """Have the `step` of this node in progress return with `left`, its service as before it;
        False where it goes on."""

    async def sync(self, node: Node, version: int) -> SyncResult:
        """Bring `version` of `node.target`'s weights to `node.to`; return when all have them."""

    async def eval_prompts(self, name: str) -> list[Prompt]:
        """The held-out prompts of `Job.evals[name]`, `limit` applied."""

    async def evaluate_loss(self, name: str) -> Measured:
        """The loss of the held-out rows of `Job.evals[name]` under the trainer's weights."""

    async def evaluate_sample(self, name: str, prompt: Prompt, sibling: int, seed: int) -> Rollout:
        """One completion of a held-out prompt with the eval's own sampling settings."""

    async def evaluate_score(self, name: str, rollout: Rollout) -> Score:
        """Its score; as `score`, but without monitors."""

    async def save(
        self,
        step: int,
        controller_state: dict[str, Any],
        taken: asyncio.Event,
        replay: bytes | None,
    ) -> str:
        """Write a checkpoint of all trained services, the file of `replay` and `controller_state`
        (JSON); its path. What `taken` says comes first where it can: trainers may go on, their
        state of now is kept."""

    async def amend(self, step: int, controller_state: dict[str, Any]) -> None:
        """Replace the controller's state in the checkpoint of `step`."""

    async def health(self) -> dict[str, str]:
        """One line per service, for messages about a run that does not move on."""


def seed_of(*parts: int | str) -> int:
    """A sampling seed from (run seed, group id, sibling): stable over processes and versions."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
