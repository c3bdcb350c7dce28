"""Data types of a run: prompts, rollouts, batches and step results.

Plain data, picklable, without torch: they cross process boundaries inside Monarch messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from forgedsl.lower.job import Sampling
from forgedsl.notebook import page
from forgedsl_runtime.routes import Routes


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
    """chat messages that `text` was rendered from, if the prompt is a chat"""
    columns: dict[str, Any] = field(default_factory=dict)
    """columns of the row that rewards read"""
    level: str | None = None
    """key by which a weighted draw averages the scores of earlier rows
    (forgedsl_runtime.controller.weighted_draw)"""


@dataclass(slots=True, kw_only=True)
class Request:
    """One completion to sample."""

    id: str
    token_ids: list[int]
    sampling: Sampling
    seed: int
    grades: tuple[int, ...] = ()
    """token ids of a judge's grades. For each, the engine returns the log-prob that it is the first
    token of the completion"""
    tenant: str = ""
    """service that asks, if the engine of another one serves it"""


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
    """(policy version, number of tokens that it sampled), in order"""
    grades: tuple[float, ...] = ()
    """log-probs of the requested grades (judge scores)"""
    routes: Routes | None = None
    """experts chosen for each token of prompt and completion, except the last token; None if the
    engine does not record them"""


@dataclass(slots=True, kw_only=True)
class Message:
    """Message of a generator: finished completions, or the error that stopped its engine."""

    completions: list[Completion] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer of the policy in a trajectory, for people: tokens [start, end) of the rollout and
    characters [text_start, text_end) of its text."""

    start: int
    end: int
    text_start: int
    text_end: int
    versions: tuple[tuple[int, int], ...]
    """(policy version, number of tokens that it sampled), in order"""
    started: float
    """unix seconds when its request entered the engine"""
    finished: float
    truncated: bool


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
    """number of unfinished requests in the engine, waiting ones too, when this one entered it"""
    turns: int = 1
    """number of policy turns in this conversation"""
    ended: str = ""
    """why a trajectory in an environment ended: done, turns, tokens, time or error"""
    rewards: dict[str, float] = field(default_factory=dict)
    """rewards of its environment, by part, summed over the turns"""
    turn_rewards: tuple[tuple[int, dict[str, float]], ...] = ()
    """rewards of each turn: (index of the policy's last token of the turn, rewards by part)"""
    num_observed: int = 0
    """tokens that the policy did not write; `mask` is False and `logprobs` 0 on them"""
    row_starts: tuple[int, ...] = ()
    """indices in `token_ids` at which a further training row begins: a prompt that the chat
    template rendered again (`mask` is False), then tokens of the policy"""
    others: tuple[str, ...] = ()
    """sibling answers, for a judge that compares them"""
    versions: tuple[tuple[int, int], ...] = ()
    """(policy version, number of tokens that it sampled), in order"""
    answers: tuple[Answer, ...] = ()
    """answers of a trajectory, in the order of its tokens"""
    tool_form: str = "hermes"
    """form of its tool calls"""
    kept: dict[str, float | list[float]] = field(default_factory=dict)
    """values stored with the rollout in a buffer"""
    routes: Routes | None = None
    """experts of the tokens of prompt and completion, if the sampler recorded them"""
    fixed: float | None = None
    """score set because the environment failed; overrides the rewards"""

    @property
    def response(self) -> str:
        return self.text

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) - self.num_observed

    @property
    def target(self) -> Any:
        return self.prompt.target

    @property
    def starts(self) -> tuple[int, ...]:
        """`row_starts` as indices in prompt and completion together."""
        if not self.row_starts:
            return ()
        return tuple(len(self.prompt.token_ids) + at for at in self.row_starts)

    def part(self, name: str) -> list[float]:
        """Return a reward part per token: each turn's value at the last policy token of the turn,
        else 0."""
        found = [0.0] * len(self.token_ids)
        for place, given in self.turn_rewards:
            found[place] += given.get(name, 0.0)
        return found

    @property
    def play(self) -> dict[str, Any]:
        """Fields that events and samples add for a trajectory: number of turns, why it ended, and
        the number of its training rows if there are several."""
        if not self.ended:
            return {}
        rows = {"rows": 1 + len(self.row_starts)} if self.row_starts else {}
        return {"turns": self.turns, "ended": self.ended, **rows}


@dataclass(slots=True, kw_only=True)
class Sample:
    """One training sequence: prompt and completion tokens with per-token fields.

    `token_ids` holds P prompt and T completion tokens. Token fields (behavior, ref, ...) have T
    entries, one per completion token; sequence fields (adv) are floats. `mask` has T entries. In a
    supervised sample, P counts the leading tokens without loss, and may be 0. `row_starts`
    are indices in `token_ids` at which a new row begins: attention does not reach back over them,
    and positions start at 0. For a loss, all rows are one sequence.
    """

    token_ids: list[int]
    num_prompt: int
    mask: list[bool]
    token_fields: dict[str, list[float]] = field(default_factory=dict)
    sequence_fields: dict[str, float] = field(default_factory=dict)
    row_starts: tuple[int, ...] = ()
    versions: tuple[tuple[int, int], ...] = ()
    """(policy version, number of tokens that it sampled), in order; empty if no policy sampled
    them"""
    routes: Routes | None = None
    """experts that the trainer's routers must choose for each token. None: the routers choose by
    their own scores"""


@dataclass(slots=True, kw_only=True, repr=False)
class Batch:
    """Input of one optimizer step. `groups` holds the ids of the groups it consumes."""

    samples: list[Sample]
    beside: list[tuple[str, list[Sample]]] = field(default_factory=list)
    """further losses of the step, each with its samples"""
    groups: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    """group of each sample, if the batch has groups"""
    epochs: int = 1
    minibatches: int = 1
    seed: int = 0
    """the step makes epochs x minibatches updates; the seed shuffles the groups; see updates.py"""
    ages: list[int] = field(default_factory=list)
    """policy version of the trainer minus version_min, per rollout"""
    sample_ages: list[int | None] = field(default_factory=list)
    """age of each of `samples`; None for a sample that no policy sampled"""
    rewards: list[float] = field(default_factory=list)
    cursor: int = 0
    """dataset position after a drawn batch (supervised sources), for exact resume"""

    @property
    def shapes(self) -> dict[str, str]:
        """Fields of its samples with their axes: `{"behavior": "[16, T]", "adv": "[16]"}`; T is the
        number of tokens of a completion."""
        rows = len(self.samples)
        by_token = {name: f"[{rows}, T]" for each in self.samples for name in each.token_fields}
        by_sample = {name: f"[{rows}]" for each in self.samples for name in each.sequence_fields}
        return by_token | by_sample

    def __repr__(self) -> str:
        """`<Batch of 16 samples: 412 tokens, 80 trained; behavior [16, T], adv [16]>`."""
        tokens = sum(len(each.token_ids) for each in self.samples)
        trained = sum(sum(each.mask) for each in self.samples)
        fields = ", ".join(f"{name} {axes}" for name, axes in self.shapes.items())
        counts = f"{tokens} tokens, {trained} trained"
        beside = "".join(f", {len(own)} beside for {loss}" for loss, own in self.beside)
        samples = f"{len(self.samples)} sample{'s' * (len(self.samples) != 1)}"
        return f"<Batch of {samples}{beside}: {counts}; {fields or 'no fields'}>"

    def _repr_html_(self) -> str:
        lengths = [len(each.token_ids) for each in self.samples] or [0]
        facts = {
            "tokens of a sample": f"{min(lengths)} to {max(lengths)}, prompts included",
            "T": "tokens of a completion" if "T" in "".join(self.shapes.values()) else "",
            "groups": str(len(self.groups)) if self.groups else "",
            "mean reward": f"{sum(self.rewards) / len(self.rewards):.4g}" if self.rewards else "",
        }
        return page(repr(self)[1:-1].partition(";")[0], rows=facts | self.shapes)


@dataclass(slots=True, kw_only=True)
class PassResult:
    """Result of a forward and a backward pass, reduced over ranks; no weights have changed."""

    loss: float
    tokens: int
    metrics: dict[str, float]
    kernel: str


@dataclass(slots=True, kw_only=True)
class StepResult:
    """Result of a trainer's step, from rank 0, reduced over ranks."""

    version: int
    """policy version after the step"""
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    """tokens that went through the model, prompts included"""
    metrics: dict[str, float]
    """`entropy` and every `report` of the loss"""
    kernel: str
    """which loss implementation ran, e.g. "torch/linear" """
    experts_load: float | None = None
    """tokens of the busiest expert, divided by the mean over experts; None without experts"""
    routes_changed: float | None = None
    """share of the replayed tokens, over all layers, for which the trainer would have chosen other
    experts; None if no routes are replayed"""
    peak_bytes: int | None = None
    """most bytes that tensors took at a time on a GPU during the step; None on a CPU"""
    skipped: bool = False
    gaps: dict[str, float] = field(default_factory=dict)
    """distance of the sampler's log-probs from those of the trainer before the step, by age"""
    logprobs: list[list[list[list[float]]]] = field(default_factory=list, repr=False)
    """log-probs of the trained tokens under the weights of each update, by update, loss, sample and
    token; empty if the job does not record them"""
    left: bool = False
    """the step was cancelled on request, before it changed the weights"""
    proofs: list[dict[str, Any]] = field(default_factory=list)
    """lines of proofs.jsonl on the first batch of each loss"""
