"""One trajectory: turns of the policy and of the environment, one after the other.

    reset -> [ sample a turn -> step -> append what was observed ]* -> Rollout
                                     `-> or open a row that the chat template renders anew

It runs in the completion's task in the controller, which manages credits and deadlines of the run.
Engine and environment are called through `Engine` and `Session`. Between two turns no request of
the trajectory runs, so a weight sync finds no KV cache of it to keep or to recompute.

    ended   done (the environment), turns, tokens (context or row full, or a turn was cut), time
            (`deadline`), error (the environment failed twice, and `on_error` is a score)
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Generic, Protocol, TypeVar

from forgedsl.environment import Start, Step, Task, Turn
from forgedsl.lower import job as spec
from forgedsl_runtime.data_types import Answer, Prompt, Rollout
from forgedsl_runtime.endpoints import RolloutError, seed_of
from forgedsl_runtime.environments.bridge import Bridge, Conversation, TokenizedObservation
from forgedsl_runtime.routes import Routes, join_routes

TRIES = 2
"""tries of a trajectory whose environment fails, with the same seeds"""
SEEDS = 8
"""number of turn seeds made at a time"""
COLLATERAL_TRIES = 3
"""additional tries if the process ended because of another trajectory"""


class Crash(Exception):
    """The environment of a trajectory failed, and the trajectory cannot go on. `collateral`: the
    cause was another trajectory in the same process."""

    def __init__(self, cause: str, *, collateral: bool = False) -> None:
        self.collateral = collateral
        super().__init__(cause)


class Late(Exception):
    """A step took too long; the trajectory goes on."""


class Sampled(Protocol):
    """Fields of a completion that the driver reads (`runtime.data_types.Completion`)."""

    token_ids: list[int]
    logprobs: list[float]
    mask: list[bool]
    text: str
    truncated: bool
    versions: tuple[tuple[int, int], ...]
    started: float
    finished: float
    running: int
    routes: Routes | None


Engine = Callable[[list[int], spec.Sampling, int], Awaitable[Sampled]]


@dataclass(frozen=True, kw_only=True)
class TokenizedStep(Step):
    """A step whose observation was already tokenized in the environment's process."""

    tokenized: TokenizedObservation


class Session(Protocol):
    """The environment object of one trajectory, which parses tool calls of a turn. Its methods
    raise `Crash`, `step` also `Late`."""

    async def reset(self, task: Task, seed: int) -> Start: ...

    async def step(self, turn: Turn) -> Step: ...

    def close(self) -> None: ...


class Play(Protocol):
    """One try to run a trajectory. `run` returns how it ended, and raises `Crash`."""

    @property
    def trajectory(self) -> Trajectory: ...

    async def run(self, engine: Engine, seed: int) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a trajectory, in addition to those of its environment: policy turns, tokens of a
    row, and tokens of all its rows."""

    sampling: spec.Sampling
    turns: int | None
    max_row_tokens: int
    max_total_tokens: int = sys.maxsize


@dataclass(slots=True)
class Trajectory:
    """Record of a trajectory so far; tokens are appended and never changed. `starts` are indices in
    `tokens` at which further rows begin."""

    prompt: Prompt
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    turn_rewards: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    turns: int = 0
    num_observed: int = 0
    started: float = 0.0
    finished: float = 0.0
    running: int = 0
    starts: list[int] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    routes: list[Routes | None] = field(default_factory=lambda: [None])
    """by row: the experts of its tokens up to its last turn"""
    tool_form: str = "hermes"
    """form of its tool calls"""

    @property
    def row(self) -> list[int]:
        """Tokens of the last row: the prompt of the next turn."""
        if self.starts:
            return self.tokens[self.starts[-1] :]
        return [*self.prompt.token_ids, *self.tokens]

    @property
    def length(self) -> int:
        """Number of tokens of the last row."""
        return len(self.tokens) - self.starts[-1] if self.starts else self.num_tokens

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all rows."""
        return len(self.prompt.token_ids) + len(self.tokens)

    def append_turn(self, done: Sampled) -> None:
        """Append a turn of the policy."""
        start, text_start = len(self.tokens), sum(map(len, self.texts))
        self.answers.append(
            Answer(
                start=start, end=start + len(done.token_ids), text_start=text_start,
                text_end=text_start + len(done.text), versions=tuple(done.versions),
                started=done.started, finished=done.finished, truncated=done.truncated,
            )
        )  # fmt: skip
        self.tokens += done.token_ids
        self.logprobs += done.logprobs
        self.mask += done.mask
        self.texts.append(done.text)
        self.versions += done.versions
        self.routes[-1] = done.routes
        if not self.turns:
            self.started, self.running = done.started, done.running
        self.finished = done.finished
        self.turns += 1

    def add_rewards(self, rewards: Mapping[str, float]) -> None:
        """Add the environment's rewards for the last turn. They count at the last token of the
        policy that can be learned from."""
        given = {name: float(value) for name, value in rewards.items()}
        for name, value in given.items():
            self.rewards[name] += value
        if given:
            learned = (i for i in reversed(range(len(self.mask))) if self.mask[i])
            self.turn_rewards.append((next(learned, len(self.mask) - 1), given))

    def append_observation(self, tokens: list[int], text: str) -> None:
        """Append an observation; none of its tokens is the policy's, so `mask` is False."""
        self.tokens += tokens
        self.logprobs += [0.0] * len(tokens)
        self.mask += [False] * len(tokens)
        self.texts.append(text)
        self.num_observed += len(tokens)

    def start_row(self, tokens: list[int], text: str) -> None:
        """Begin another row with this prompt; `text` is what was observed."""
        self.starts.append(len(self.tokens))
        self.routes.append(None)
        self.append_observation(tokens, text)

    def _rows_with_routes(self) -> list[tuple[Routes | None, int]]:
        """Return the routes of each row, and its number of tokens."""
        begin = len(self.prompt.token_ids)
        edges = [0, *(begin + start for start in self.starts), self.num_tokens]
        lengths = (end - start for start, end in pairwise(edges))
        return list(zip(self.routes, lengths, strict=True))

    def rollout(self, sibling: int, ended: str, fixed: float | None = None) -> Rollout:
        versions = [version for version, _ in self.versions]
        return Rollout(
            group=self.prompt.group, sibling=sibling, prompt=self.prompt, token_ids=self.tokens,
            logprobs=self.logprobs, mask=self.mask, text="".join(self.texts),
            truncated=ended == "tokens", version_min=min(versions), version_max=max(versions),
            started=self.started, finished=self.finished, running=self.running, turns=self.turns,
            ended=ended, rewards=self.rewards, turn_rewards=tuple(self.turn_rewards),
            num_observed=self.num_observed, row_starts=tuple(self.starts),
            versions=tuple(self.versions), answers=tuple(self.answers),
            routes=join_routes(self._rows_with_routes()), tool_form=self.tool_form,
            fixed=fixed,
        )  # fmt: skip


S = TypeVar("S")


class AnyDriver(Generic[S]):
    """Runs trajectories in an environment or of an agent; `failed` is called with each crash."""

    def __init__(
        self,
        environment: spec.Environment,
        bridge: Bridge,
        begin: Callable[[], S],
        failed: Callable[[str, Prompt], None],
    ) -> None:
        self._spec = environment
        self._bridge = bridge
        self._begin = begin
        self._failed = failed

    def template_warning(self) -> str:
        """Return a warning if trajectories keep what the chat template drops, else ""."""
        if self._spec.history == "template" or self._bridge.appends():
            return ""
        return (
            "the chat template changes earlier turns (for example, it removes their thoughts); "
            "`history = append` keeps them as sampled, `history = template` shows the policy the "
            "template's version and trains on it"
        )

    async def play(
        self, engine: Engine, prompt: Prompt, sibling: int, seed: int, limits: Limits
    ) -> Rollout:
        """Run one trajectory; retry it after a crash.

        Raises:
            RolloutError: the environment failed, and no fixed score can be given.
        """
        fixed = self._spec.on_error
        # with `drop`, the controller does the second try
        left, collateral = 1 if fixed == "drop" else TRIES, COLLATERAL_TRIES
        while left:
            play = self._new(prompt, limits)
            try:
                ended = await play.run(engine, seed)
            except Crash as crash:
                cause = str(crash)
                if crash.collateral and collateral:
                    collateral -= 1
                    continue
                left -= 1
                self._failed(cause, prompt)
            else:
                return play.trajectory.rollout(sibling, ended)
        if fixed == "drop" or not play.trajectory.turns:
            raise RolloutError(f"its environment failed: {cause}")
        return play.trajectory.rollout(sibling, "error", float(fixed))

    def _new(self, prompt: Prompt, limits: Limits) -> Play:
        raise NotImplementedError


class Driver(AnyDriver[Session]):
    """Runs trajectories in an environment."""

    def _new(self, prompt: Prompt, limits: Limits) -> Play:
        return _Play(self._spec, self._bridge, self._begin(), prompt, limits)


class _Play:
    """One try of a trajectory."""

    def __init__(
        self,
        environment: spec.Environment,
        bridge: Bridge,
        session: Session,
        prompt: Prompt,
        limits: Limits,
    ) -> None:
        self._spec, self._bridge, self._session = environment, bridge, session
        self._limits = limits
        self._chat = prompt.messages is not None
        self.trajectory = Trajectory(
            prompt, rewards=dict.fromkeys(environment.parts, 0.0), tool_form=bridge.tool_form
        )

    async def run(self, engine: Engine, seed: int) -> str:
        """Run to the end; return how the trajectory ended.

        Raises:
            Crash: the environment failed.
            RolloutError: the deadline passed before the first turn.
        """
        clock = asyncio.timeout(self._spec.deadline)
        try:
            async with clock:
                return await self._turns(engine, seed)
        except TimeoutError:
            if not clock.expired():
                raise
        finally:
            self._session.close()
        if not self.trajectory.turns:
            raise RolloutError(
                f"the trajectory had no turn within its deadline of {self._spec.deadline:g} s"
            )
        return "time"

    async def _turns(self, engine: Engine, seed: int) -> str:
        prompt, trajectory = self.trajectory.prompt, self.trajectory
        messages = None if prompt.messages is None else tuple(prompt.messages)
        task = Task(text=prompt.text, messages=messages, target=prompt.target)
        start = await self._session.reset(task, seed_of("environment", prompt.group, prompt.row))
        limit = self._spec.max_observation
        trajectory.prompt = self._bridge.first_prompt(prompt, start.observation, limit)
        follows = self._chat and self._spec.history == "template"
        talk = Conversation(self._bridge, prompt, start.observation, limit) if follows else None
        if trajectory.length >= self._limits.max_row_tokens:
            raise RolloutError(
                f"its prompt has {trajectory.length} tokens, which leaves no room for a turn"
            )
        for number, turn_seed in enumerate(_seeds(seed)):
            done = await engine(trajectory.row, self._turn_sampling(), turn_seed)
            trajectory.append_turn(done)
            if done.truncated:
                return "tokens"
            step = await self._step(Turn(text=done.text, number=number))
            trajectory.add_rewards(step.rewards)
            if step.done:
                return "done"
            if number + 1 == self._limits.turns:
                return "turns"
            observation = step.tokenized if isinstance(step, TokenizedStep) else step.observation
            seen, text = self._bridge.tokens_after(
                done.token_ids, observation, limit, chat=self._chat
            )
            new_prompt = None if talk is None else talk.new_row_prompt(done.text, step.observation)
            if new_prompt is None and self._fits(trajectory.length + len(seen), len(seen)):
                trajectory.append_observation(seen, text)
            elif new_prompt is not None and self._fits(len(new_prompt), len(new_prompt)):
                trajectory.start_row(new_prompt, text)
            else:
                return "tokens"
        raise AssertionError("there is a seed for every turn")

    def _fits(self, row: int, more: int) -> bool:
        """True if a row of so many tokens, `more` of them new, leaves room for a turn."""
        limits = self._limits
        return (
            row < limits.max_row_tokens
            and self.trajectory.num_tokens + more < limits.max_total_tokens
        )

    def _turn_sampling(self) -> spec.Sampling:
        sampling, trajectory, limits = self._limits.sampling, self.trajectory, self._limits
        room = min(
            limits.max_row_tokens - trajectory.length,
            limits.max_total_tokens - trajectory.num_tokens,
        )
        most = min(sampling.max_tokens or room, room)
        least = min(sampling.min_tokens, most)
        if (most, least) == (sampling.max_tokens, sampling.min_tokens):
            return sampling
        return sampling.model_copy(update={"max_tokens": most, "min_tokens": least})

    async def _step(self, turn: Turn) -> Step:
        """Do a step; if it is late, the policy is shown an error as the observation."""
        try:
            return await self._session.step(turn)
        except Late as late:
            return Step(f"error: {late}")


def _seeds(seed: int) -> Iterator[int]:
    """Yield the seeds of all turns. They are computed in blocks of SEEDS, since the first digest of
    a block takes ten times as long as each next one."""
    for first in count(0, SEEDS):
        yield from [seed_of(seed, number) for number in range(first, first + SEEDS)]
