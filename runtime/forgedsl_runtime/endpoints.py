"""Interface between the controller and the services: one Protocol, independent of transport.

    controller --(node, items)--> Endpoints --(Monarch messages)--> meshes

`forgedsl_runtime.services.endpoints` implements it over Monarch, the tests over coroutines that
sleep.
Rules:
- Every call may be cancelled; a cancelled call abandons its remote work.
- The controller cancels a call at the deadline of its node, so implementations need none. Calls of
  rewards are the exception: the implementation sets their deadlines.
- Callers handle `RolloutError` (retried, then dropped) and `DropRollout` (dropped at once).
  `ServiceError` and every other exception end the run.
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
from forgedsl_runtime.data_types import Batch, Prompt, Rollout, Sample, StepResult
from forgedsl_runtime.rewards.requests import Requests

GROUP = "group"
"""Name of the argument with which a batch-level function gets the group number of each
completion."""


class RolloutError(Exception):
    """A completion failed, and a retry may succeed."""


class DropRollout(Exception):
    """Drops a completion: all its tries failed, its reward failed and has `on_error = drop`, or a
    what-if has no record of it. Drops are counted by `reason`: keep it short."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class RewardError(DropRollout):
    """A reward failed after its retries, and its `on_error` is drop. `failed` names all rewards
    that failed on this rollout; `seconds` and `retried` are as in `Score`."""

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
    """Failure report of a service that can no longer answer."""

    service: str
    origin: str
    """where it was declared: file:line:column"""
    message: str
    died: bool = False
    """one of its processes has died"""


class ServiceError(Exception):
    """A call failed because its service failed. `died`: one of its processes has died."""

    def __init__(self, failure: ServiceFailure, *, died: bool = False) -> None:
        self.failure = failure
        self.died = died
        super().__init__(f"{failure.service}: {failure.message}")


class CheckpointError(RunError):
    """A checkpoint could not be written; its partial files are removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The score of a rollout. `parts` maps each reward to its value, `seconds` to the duration of
    its call. `failed` names rewards without a value. `retried` names a reward once per retry."""

    value: float
    parts: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    retried: tuple[str, ...] = ()
    requests: Mapping[str, Requests] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutLoss:
    """Loss on held-out data; `value` is None if no row can be used. A pair counts as two
    samples."""

    value: float | None
    reports: dict[str, float] = field(default_factory=dict)
    samples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """Result of one weight transfer."""

    bytes: int
    transport: str
    seconds: float
    publish_seconds: float = 0.0
    """part of `seconds` until the trainer has published; in the rest the sampler loads"""
    proved: int = 0
    """number of tensors that the sampler holds bit for bit as published; 0 if this was not
    checked"""
    changed: float | None = None
    """share of the elements that differ from the version before; None if that is not known"""
    unproved: tuple[str, ...] = ()
    """tensors that have no known place in the sampler's engine, so they were not compared"""
    was_random: bool = False
    """True if the sampler had random weights before"""
    base: int = 0
    """number of base weights of the sampler that were compared with the trainer's at this sync, bit
    for bit; 0 if none were"""
    digests: Mapping[str, int] | None = None
    """digest of each published tensor; None if there are none"""


class Endpoints(Protocol):
    """The services of a job. `node` names the service, function or dataset."""

    failures: asyncio.Queue[ServiceFailure]

    async def draw(self, node: Node) -> Prompt | None:
        """Return the next prompt of `node.target`, or None at the end of the data
        (`schedule.epochs`). The controller overwrites `group`. `cursor` is the position after the
        row: after `seek(cursor)` a dataset continues with the next row."""

    async def batches(self, node: Node) -> Batch | None:
        """Return the next batch of one whole optimizer step with `cursor` set, or None at the
        end."""

    async def pairs(self, node: Node) -> list[Rollout] | None:
        """Return the next pair [chosen, rejected]; both have the same `prompt`, with its `cursor`
        set."""

    async def seek(self, node: Node, cursor: int) -> None:
        """Continue this source after position `cursor` (resume)."""

    async def sample(self, node: Node, prompt: Any, sibling: int, seed: int) -> Rollout:
        """Sample one completion. `prompt` is a `Prompt`, or the output of a node (a judge's
        prompt). `sibling` is unique within the group, over all samplers of the flow."""

    async def logprobs(self, node: Node, rollouts: Sequence[Rollout | Sample]) -> list[list[float]]:
        """Return log-probs of the completion tokens of a group. If `node.at_step`, return those of
        the whole batch; the call comes before `step`, under the weights that the step starts from.
        """

    async def score(self, node: Node, rollout: Any, target: Any) -> Score:
        """Apply the reward or rubric; its `on_error` may raise `DropRollout` or `RewardError`. The
        controller sets no deadline. Each call of a reward has its own; the wait in the queue has
        none.
        """

    async def call(self, node: Node, args: dict[str, Any]) -> Any:
        """Call `node.target` of the program. Rollout-level arguments are lists over siblings. If
        `node.level` is batch they are lists over the completions of the whole batch, and `GROUP` is
        added. Returns plain Python: a list with one entry per sibling, or one value for the group.
        """

    async def weight(self, node: Node, results: dict[str, float]) -> float:
        """Return the weight of a row in a weighted draw: `node.weight` applied to `results`, the
        mean score and the number of earlier groups of the row's level."""

    async def step(self, node: Node, batch: Batch) -> StepResult:
        """One optimizer step of `node.target` with `node.loss`."""

    async def abandon_step(self, node: Node) -> bool:
        """Ask the running `step` of this node to return early. Its result then has `left` set, and
        the weights are those before the step. Returns False if the step goes on."""

    async def sync(self, node: Node, version: int) -> SyncResult:
        """Send weights of `version` from `node.target` to `node.to`; return when all replicas have
        them."""

    async def eval_prompts(self, name: str) -> list[Prompt]:
        """Return the held-out prompts of `Job.evals[name]`, with `limit` applied."""

    async def evaluate_loss(self, name: str) -> HeldOutLoss:
        """Return the loss on the held-out rows of `Job.evals[name]` under the trainer's weights."""

    async def evaluate_sample(self, name: str, prompt: Prompt, sibling: int, seed: int) -> Rollout:
        """Sample one completion of a held-out prompt with the eval's own sampling settings."""

    async def evaluate_score(self, name: str, rollout: Rollout) -> Score:
        """Return the score of an eval rollout; as `score`, but without monitors."""

    async def save(
        self,
        step: int,
        controller_state: dict[str, Any],
        taken: asyncio.Event,
        replay: bytes | None,
    ) -> str:
        """Write a checkpoint of all trained services, the `replay` file and `controller_state`
        (JSON). Returns its path. A trainer that copies its state before it writes may train on
        after the copy; `taken` is set once all trainers have copied theirs."""

    async def amend(self, step: int, controller_state: dict[str, Any]) -> None:
        """Replace the controller's state in the checkpoint of `step`."""

    async def health(self) -> dict[str, str]:
        """Return one status line per service, for messages about a stalled run."""


def seed_of(*parts: int | str) -> int:
    """Derive a sampling seed from (run seed, group id, sibling): equal in all processes and
    versions."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
