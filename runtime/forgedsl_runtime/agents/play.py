"""Runs one trajectory of an agent, in the controller: samples its requests and collects its rows.

    begin -> [ ask -> sample after its row -> answer ]*, several at a time -> end -> Rollout

It is the counterpart of `driver.Driver` for agents, with the same tries, ends and limits:

    ended   done (the agent returned), turns (`max_turns` answers were given), tokens (a prompt had
            no room, or the run's token limit cut the last answer), time (`deadline`), error
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from forgedsl.environment import Task
from forgedsl.lower import job as spec
from forgedsl_runtime.agents.session import Ask, Event
from forgedsl_runtime.data_types import Prompt
from forgedsl_runtime.endpoints import RolloutError, seed_of
from forgedsl_runtime.environments.driver import (
    AnyDriver,
    Crash,
    Engine,
    Limits,
    Sampled,
    Trajectory,
)

TURNS = "max_turns_exceeded"
LENGTH = "context_length_exceeded"


class AgentSession(Protocol):
    """The agent of one trajectory, and its requests. Its methods raise `Crash`."""

    def close(self) -> None: ...

    async def begin(self, task: Task, seed: int, limits: Limits) -> None: ...

    async def events(self) -> list[Event]: ...

    def answer(self, number: int, tokens: list[int], text: str, finish: str) -> None: ...

    def refuse(self, number: int, message: str, code: str) -> None: ...


@dataclass(slots=True)
class Row:
    """A training row. For each answer: the tokens and text that precede it, and the answer."""

    answers: list[tuple[int, list[int], str, Sampled]] = field(default_factory=list)
    """(number of the request, tokens, text, answer)"""
    tokens: list[int] = field(default_factory=list)


class AgentPlay:
    """One try of a trajectory of an agent."""

    def __init__(
        self, environment: spec.Environment, session: AgentSession, prompt: Prompt, limits: Limits,
        tool_form: str,
    ) -> None:  # fmt: skip
        self._spec, self._session, self._prompt, self._limits = (
            environment, session, prompt, limits,
        )  # fmt: skip
        self._tool_form = tool_form
        self._rows: dict[int, Row] = {}
        self._rewards: Mapping[str, float] = {}
        self._sampling: dict[asyncio.Task[None], int] = {}
        """by task: the number of its request"""
        self._reserved = 0
        """tokens that requests in flight may add"""
        self._last = ""
        """the limit that the last request reached: "turns", "tokens", or "" for none. If no request
        is sampled after that one, the trajectory ended by this limit"""

    @property
    def trajectory(self) -> Trajectory:
        """The record: rows one after the other, in the order of their first answers."""
        rows = list(self._rows.values())
        prompt = self._prompt
        if rows:
            _, tokens, text, _ = rows[0].answers[0]
            prompt = replace(prompt, token_ids=tokens, text=text)
        trajectory = Trajectory(
            prompt, rewards=dict.fromkeys(self._spec.parts, 0.0), tool_form=self._tool_form
        )
        for row in rows:
            for index, (_, tokens, text, answer) in enumerate(row.answers):
                if index:
                    trajectory.append_observation(tokens, text)
                elif row is not rows[0]:
                    trajectory.start_row(tokens, text)
                trajectory.append_turn(answer)
        if rows:
            answers = [answer for row in rows for *_, answer in row.answers]
            trajectory.started = min(answer.started for answer in answers)
            trajectory.finished = max(answer.finished for answer in answers)
            trajectory.add_rewards(self._rewards)
        return trajectory

    async def run(self, engine: Engine, seed: int) -> str:
        """Run to the end; return how the trajectory ended.

        Raises:
            Crash: the agent failed.
            RolloutError: the agent got no answer before its deadline, or its prompt has no room.
        """
        clock = asyncio.timeout(self._spec.deadline)
        try:
            async with clock:
                return await self._serve(engine, seed)
        except TimeoutError:
            if not clock.expired():
                raise
        finally:
            self._session.close()
            for task in self._sampling:
                task.cancel()
            await asyncio.gather(*self._sampling, return_exceptions=True)
        if not self._rows:
            raise RolloutError(f"no turn within its deadline of {self._spec.deadline:g} s")
        return "time"

    async def _serve(self, engine: Engine, seed: int) -> str:
        prompt = self._prompt
        messages = None if prompt.messages is None else tuple(prompt.messages)
        task = Task(text=prompt.text, messages=messages, target=prompt.target)
        own = seed_of("environment", prompt.group, prompt.row)
        await self._session.begin(task, own, self._limits)
        listening = asyncio.ensure_future(self._session.events())
        try:
            while True:
                await asyncio.wait(
                    {listening, *self._sampling}, return_when=asyncio.FIRST_COMPLETED
                )
                for task_ in [each for each in self._sampling if each.done()]:
                    del self._sampling[task_]
                    if not task_.cancelled():
                        task_.result()
                if not listening.done():
                    continue
                for event, given in listening.result():
                    if event == "ask":
                        ask = Ask(*given)
                        sampling = asyncio.create_task(self._sample(engine, seed, ask))
                        self._sampling[sampling] = ask.number
                    elif event == "cancel":
                        self._undo(given)
                    elif event == "full":
                        self._last = "tokens"
                    else:
                        return self._ended(given.value, given.error, collateral=given.collateral)
                listening = asyncio.ensure_future(self._session.events())
        finally:
            listening.cancel()

    async def _sample(self, engine: Engine, seed: int, ask: Ask) -> None:
        """Sample one answer and send it."""
        limits, sampling = self._limits, self._limits.sampling
        row = Row() if ask.new else self._rows[ask.row]
        given = sum(len(each.answers) for each in self._rows.values())
        given += sum(not each.done() for each in self._sampling)
        if limits.turns is not None and given > limits.turns:
            self._last = "turns"
            message = f"a trajectory has at most {limits.turns} answers (`max_turns`)"
            return self._session.refuse(ask.number, message, TURNS)
        length = len(row.tokens) + len(ask.tokens)
        used = sum(len(each.tokens) for each in self._rows.values()) + self._reserved
        room = min(limits.max_row_tokens - length, limits.max_total_tokens - used - len(ask.tokens))
        if room <= 0:
            self._last = "tokens"
            message = (
                f"the prompt has {length} tokens, which leave no room: a row has at most "
                f"{limits.max_row_tokens} tokens, all rows of a trajectory at most "
                f"{limits.max_total_tokens}"
            )
            return self._session.refuse(ask.number, message, LENGTH)
        most = min(sampling.max_tokens or room, room)
        wanted = most if ask.max_tokens is None else min(most, ask.max_tokens)
        self._reserved += len(ask.tokens) + wanted
        try:
            asked = sampling.model_copy(
                update={
                    "max_tokens": wanted,
                    "min_tokens": min(sampling.min_tokens, wanted),
                    "stop": tuple(dict.fromkeys((*sampling.stop, *ask.stop))),
                }
            )
            done = await engine([*row.tokens, *ask.tokens], asked, _seed(seed, ask))
        finally:
            self._reserved -= len(ask.tokens) + wanted
        self._rows.setdefault(ask.row, row)
        row.answers.append((ask.number, ask.tokens, ask.text, done))
        row.tokens += [*ask.tokens, *done.token_ids]
        self._last = "tokens" if done.truncated and wanted == most else ""
        finish = "length" if done.truncated else "stop"
        return self._session.answer(ask.number, done.token_ids, done.text, finish)

    def _undo(self, number: int) -> None:
        """Remove a request whose client has disconnected. If it was sampled, remove its answer too:
        no client received it, so no request continues it."""
        for task in [task for task, each in self._sampling.items() if each == number]:
            task.cancel()
        for index, row in list(self._rows.items()):
            if row.answers and row.answers[-1][0] == number:
                _, tokens, _, answer = row.answers.pop()
                del row.tokens[len(row.tokens) - len(tokens) - len(answer.token_ids) :]
                if not row.answers:
                    del self._rows[index]

    def _ended(self, rewards: Mapping[str, float], error: str, *, collateral: bool) -> str:
        if not error and not self._rows and not self._last:
            error = "it sent no request to the policy"
        if error and (collateral or not self._last):
            raise Crash(error, collateral=collateral)
        if not self._rows:
            raise RolloutError("its first prompt leaves no room for an answer")
        # a limit ended the trajectory; an error that the agent raises after that is not its failure
        self._rewards = {} if error else rewards
        return self._last or "done"


class AgentDriver(AnyDriver[AgentSession]):
    """Runs trajectories of an agent."""

    def _new(self, prompt: Prompt, limits: Limits) -> AgentPlay:
        return AgentPlay(self._spec, self._begin(), prompt, limits, self._bridge.tool_form)


def _seed(seed: int, ask: Ask) -> int:
    """Return the seed of an answer. It depends on the number of the turn in the conversation, as in
    an environment. It changes with each repetition of a request, and with the client's `seed`."""
    turn = seed_of(seed, ask.depth)
    if ask.repeat_index:
        turn = seed_of(turn, "again", ask.repeat_index)
    return turn if ask.seed is None else seed_of(turn, "seed", ask.seed)
