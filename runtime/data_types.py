"""What flows through a run: prompts, rollouts, groups, batches.

Plain data, picklable, without torch: they cross process boundaries inside Monarch messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class Prompt:
    """One drawn row. `cursor` is the dataset position after it (for exact resume)."""

    group: int
    row: int
    text: str
    token_ids: list[int]
    target: Any
    cursor: int = 0
    messages: list[dict[str, Any]] | None = None
    """what `text` was made of, where the prompt is a chat"""
    columns: dict[str, Any] = field(default_factory=dict)
    """of the row, those that a reward asks for"""
    level: str | None = None
    """what a weighted draw counts its results by"""


@dataclass(slots=True, kw_only=True)
class Completion:
    """A finished request. `running` is how many others were in the engine when it entered."""

    id: str
    token_ids: list[int]
    logprobs: list[float]
    mask: list[bool]
    text: str
    truncated: bool
    version_min: int
    version_max: int
    started: float
    finished: float
    running: int
    versions: tuple[tuple[int, int], ...] = ()
    """(version, tokens that it sampled), in order"""
    grades: tuple[float, ...] = ()
    """log-probs of the grades that were asked for"""


@dataclass(slots=True, kw_only=True)
class Message:
    """What a generator sends: completions, or the error that stopped its engine."""

    completions: list[Completion] = field(default_factory=list)
    error: str = ""


@dataclass(slots=True, kw_only=True)
class Rollout:
    """One completion of a prompt.

    `logprobs[t]` is the sampler's log-prob of `token_ids[t]` under the distribution sampled from;
    `mask[t]` is False where that is not finite. `version_min` and `version_max` are the oldest and
    newest policy version that produced its tokens.
    """

    group: int
    sibling: int
    prompt: Prompt
    token_ids: list[int]
    logprobs: list[float]
    mask: list[bool]
    text: str
    truncated: bool
    version_min: int
    version_max: int
    started: float
    """unix seconds when the request entered the engine"""
    finished: float
    running: int = 0
    """requests that were being decoded when this one entered the engine"""
    turns: int = 1
    """answers of the policy in this conversation"""
    ended: str = ""
    """of a trajectory in an environment: done, turns, tokens, time or error"""
    rewards: dict[str, float] = field(default_factory=dict)
    """what its environment gave, by part, summed over the turns"""
    turn_rewards: tuple[tuple[int, dict[str, float]], ...] = ()
    """the same by turn: the place of the policy's last token in it, and what the turn was given"""
    observed: int = 0
    """tokens that the policy did not write; `mask` is False and `logprobs` 0 on them"""
    others: tuple[str, ...] = ()
    """answers of its siblings, where a judge compares them"""
    versions: tuple[tuple[int, int], ...] = ()
    """(version, how many of the policy's tokens), in order"""
    kept: dict[str, float | list[float]] = field(default_factory=dict)
    """what was put into a buffer beside it"""
    fixed: float | None = None
    """the score, whatever the rewards say: the environment failed"""

    @property
    def response(self) -> str:
        return self.text

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) - self.observed

    @property
    def target(self) -> Any:
        return self.prompt.target

    def part(self, name: str) -> list[float]:
        """A part of the reward by token: at the last one of each turn what the turn was given."""
        found = [0.0] * len(self.token_ids)
        for place, given in self.turn_rewards:
            found[place] += given.get(name, 0.0)
        return found

    @property
    def play(self) -> dict[str, Any]:
        """What events and samples say of a trajectory besides its completion."""
        return {"turns": self.turns, "ended": self.ended} if self.ended else {}


@dataclass(slots=True, kw_only=True)
class Sample:
    """One training sequence: prompt and completion tokens with per-token fields.

    `token_ids` holds P prompt and T completion tokens. Token fields (behavior, ref, ...) have T
    entries, one per completion token; sequence fields (adv) are floats. `mask` has T entries.
    Supervised samples have P = 0 or the unlearned prefix, T the rest.
    """

    token_ids: list[int]
    num_prompt: int
    mask: list[bool]
    token_fields: dict[str, list[float]] = field(default_factory=dict)
    sequence_fields: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Batch:
    """What one optimizer step trains on. `groups` are the ids of the groups it consumes."""

    samples: list[Sample]
    beside: list[tuple[str, list[Sample]]] = field(default_factory=list)
    """further losses of the step, each with what it is computed on"""
    groups: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    """the group of each sample, where there are groups"""
    epochs: int = 1
    minibatches: int = 1
    seed: int = 0
    """epochs x minibatches updates, of groups in an order by the seed; see updates.py"""
    ages: list[int] = field(default_factory=list)
    """policy version of the trainer minus version_min, per rollout"""
    rewards: list[float] = field(default_factory=list)
    examples: list[dict[str, Any]] = field(default_factory=list)
    """a few completions for people: prompt, response, target, score, version"""
    cursor: int = 0
    """dataset position after a drawn batch (supervised sources), for exact resume"""


@dataclass(slots=True, kw_only=True)
class StepResult:
    """What a trainer's step returns (rank 0's, already reduced over ranks)."""

    version: int
    """of the weights after the step"""
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    """tokens that went through the model, prompts included"""
    metrics: dict[str, float]
    """`entropy` and every `report` of the loss"""
    kernel: str
    """which loss implementation ran, e.g. "torch/linear" """
    skipped: bool = False
    left: bool = False
    """it was ended before it changed anything, as was asked"""
