"""Plays environments with scripted players, in a confined environment process as in a run.

    ProbeRows (rows) --play_environments--> EnvironmentPlays by name

First it looks for a form of answer: a text, or the argument of a tool. In this form, a player who
gives the right answer in every turn must earn more than one who gives a wrong answer. Then other
players play: one is silent, one repeats what it reads, one answers wrong until it is shown the
target. Finally, games are played again with the same seeds, in the same process and in a new one.
All games together have a time limit.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from forgedsl.environment import Task, Turn
from forgedsl.errors import LaunchError
from forgedsl.lint.call_results import SAME, EnvironmentPlays, Play, PlayChange, PlayedRow
from forgedsl.lower.job import Environment, Job
from forgedsl.runtime.data_types import Prompt
from forgedsl.runtime.environments.process import EnvironmentProcess
from forgedsl.runtime.environments.worker import Reply, Request, ServedEnvironment
from forgedsl.runtime.probes import answers
from forgedsl.runtime.probes.confined import REFUSED
from forgedsl.runtime.probes.rewards import CALL, LOADING, ProbeRows, Stopped
from forgedsl.shipped import locate
from forgedsl.tool_calls import Call

SEED = 5
TURNS = 4
"""largest number of turns of a game"""
EFFECTS = "it writes files, starts processes or connects to others"
TOOL = "tool "
"""prefix of a form that names a tool and its parameter for the answer: `tool submit answer`"""
Player = Callable[[str, str], Turn | str]
"""(last observation, all observations so far) -> the next turn, or its text"""


def play_environments(
    job: Job, folder: Path, asked: Mapping[str, ProbeRows], seconds: float,
    progress: Callable[[str], object] = str,
) -> dict[str, EnvironmentPlays]:  # fmt: skip
    """Play environments, each on its rows, for at most `seconds` in all."""

    async def play() -> dict[str, EnvironmentPlays]:
        deadline = time.monotonic() + seconds
        found = {}
        for name, rows in asked.items():
            progress(f"playing environment {name}")
            found[name] = await _play(job, folder, name, rows, deadline)
        return found

    return asyncio.run(play())


async def _play(
    job: Job, folder: Path, name: str, asked: ProbeRows, deadline: float
) -> EnvironmentPlays:
    spec = job.environments[name]
    short = spec.model_copy(update={"tool_timeout": min(spec.tool_timeout, CALL)})
    paths = (spec.path, *(module.path for module in spec.modules.values()))
    codes = [locate(path, folder).read_text("utf-8") for path in paths if path]
    turns = [getattr(n, "max_turns", None) for n in job.nodes if getattr(n, "env", None) == name]
    most = min([TURNS, *(each for each in turns if each)])
    games = _Games(asked, codes, most)
    for fresh in (False, True):
        served = ServedEnvironment(name=name, environment=short, job_dir=str(folder), confined=True)
        process = EnvironmentProcess(served)
        try:
            table = _Table(process, short, deadline)
            await table.start()
            await (games.again(table) if fresh else games.first(table))
        except Stopped as why:
            games.note = str(why)
        finally:
            process.close()
        if games.note or games.change:
            break
    drops = spec.on_error == "drop"
    return replace(games.result, drops_errors=drops)


class _Table:
    """Plays games in one process until `deadline`."""

    def __init__(self, process: EnvironmentProcess, spec: Environment, deadline: float) -> None:
        self.process, self.spec, self.deadline = process, spec, deadline
        self.tools: Sequence[Any] = ()
        self._number = 0

    async def start(self) -> None:
        left = min(LOADING, self.deadline - time.monotonic())
        if left <= 0:
            raise Stopped("the time for calls is over")
        try:
            await self.process.start(left)
        except LaunchError as error:
            raise Stopped(EFFECTS if f"exit code {REFUSED}" in str(error) else str(error)) from None
        found = await self._ask("tools", seconds=CALL)
        self.tools = found.value or ()

    async def _ask(self, op: str, seconds: float, **given: Any) -> Reply:
        if time.monotonic() > self.deadline:
            raise Stopped("the time for calls is over")
        key = str(self._number)
        reply = await self.process.ask(Request(key=key, op=op, seconds=seconds, **given))
        if reply.ended:
            raise Stopped(EFFECTS if f"exit code {REFUSED}" in reply.error else reply.error)
        if reply.late:
            raise Stopped(f"`{op}` took longer than {seconds:g} s")
        return reply

    async def game(self, prompt: Prompt, player: Player, turns: int) -> Play:
        """Play a game on a row; if the environment fails, the error is in the result."""
        self._number += 1
        messages = None if prompt.messages is None else tuple(prompt.messages)
        task = Task(text=prompt.text, messages=messages, target=prompt.target)
        seconds = self.spec.tool_timeout + 1.0
        begun = await self._ask("reset", seconds, task=task, seed=SEED)
        if begun.error:
            return Play(error=begun.error)
        opening = _text(begun.value.observation)
        shown, rewards, last, done, error = [opening], [], "", False, ""
        for number in range(turns):
            made = player(shown[-1] or prompt.text, "\n".join(shown))
            turn = replace(made, number=number) if isinstance(made, Turn) else Turn(
                text=made, number=number
            )  # fmt: skip
            last = turn.text or str(turn.calls[0].arguments if turn.calls else "")
            reply = await self._ask("step", seconds, turn=turn)
            if reply.error:
                error = reply.error
                break
            rewards.append({name: float(value) for name, value in reply.value.rewards.items()})
            done = reply.value.done
            if done:
                break
            shown.append(_text(reply.value.observation))
        await self._ask("close", seconds)
        return Play(
            shown=tuple(shown), rewards=tuple(rewards), done=done, error=error, last=last
        )  # fmt: skip


def _text(observation: Any) -> str:
    """Return an observation as text; for a chat, the text of its messages."""
    if isinstance(observation, str):
        return observation
    return "\n".join(str(message.get("content") or "") for message in observation)


class _Games:
    """The games of one environment, as they are played."""

    def __init__(self, asked: ProbeRows, codes: Sequence[str], turns: int) -> None:
        self.asked, self.codes, self.turns = asked, codes, turns
        self.targets = [answers.answerable_text(prompt.target) for prompt in asked.prompts]
        self.form, self.part, self.note = "", "", ""
        self.rows: list[dict[str, Play]] = [{} for _ in asked.prompts]
        self.change: PlayChange | None = None

    @property
    def result(self) -> EnvironmentPlays:
        return EnvironmentPlays(
            form=self.form, part=self.part, change=self.change, note=self.note,
            rows=tuple(
                PlayedRow(place=place, target=prompt.target, prompt=prompt.text, plays=plays)
                for place, prompt, plays in zip(
                    self.asked.places, self.asked.prompts, self.rows, strict=True
                )
            ),
        )  # fmt: skip

    async def first(self, table: _Table) -> None:
        """Look for the form, let all players play every row, and play all rows again."""
        if None not in self.targets:
            await self._find_form(table)
        for index, prompt in enumerate(self.asked.prompts):
            for name, player in self._players(index, table.tools):
                self.rows[index][name] = await table.game(prompt, player, self.turns)
        await self._repeat(table, "after other games", range(len(self.rows)))

    async def again(self, table: _Table) -> None:
        """Play in a new process, in another order."""
        await self._repeat(table, "in another process", reversed(range(len(self.rows))))

    def _players(self, index: int, tools: Sequence[Any]) -> Iterator[tuple[str, Player]]:
        target, wrong = self.targets[index] or "", self._wrong(index)
        if self.form:
            for name, value in (("right", target), ("wrong", wrong)):
                yield name, _saying(self.form, value)
            yield "told", _told(self.form, wrong, target, self.asked.prompts[index].text)
        yield "silent", lambda last, read: ""
        yield "echo", lambda last, read: last
        yield "words", lambda last, read: "I am not sure"
        yield "tags", lambda last, read: "<think><answer>\\boxed{ #### "
        for tool in tools:
            for kind, call in _odd_calls(tool):
                yield f"{tool['function']['name']} {kind}", _calling(call)

    def _wrong(self, index: int) -> str:
        target = self.targets[index]
        return answers.wrong_for(target, [t for t in self.targets if t]) if target else "zebra"

    async def _find_form(self, table: _Table) -> None:
        """Find a form, and a reward part, such that the right answer earns more than a wrong one on
        every row."""
        prompt = self.asked.prompts[0]
        opening = await table.game(prompt, lambda last, read: "", 1)
        shown = f"{prompt.text}\n{opening.shown[0] if opening.shown else ''}"
        tools = [
            f"{TOOL}{tool['function']['name']} {name}"
            for tool in table.tools for name in tool["function"]["parameters"]["properties"]
        ]  # fmt: skip
        for form in [*tools, *answers.forms(shown, self.codes)]:
            parts = [await self._gaps(table, form, i) for i in range(1)]
            for i in range(1, len(self.rows)) if parts[0] else ():
                parts.append(await self._gaps(table, form, i))
            both = [part for part in parts[0] if all(part in each for each in parts)]
            if both:
                self.form, self.part = form, both[0]
                return

    async def _gaps(self, table: _Table, form: str, index: int) -> list[str]:
        """Return the reward parts in which the right answer earns more than a wrong one."""
        prompt = self.asked.prompts[index]
        values = self.targets[index] or "", self._wrong(index)
        right, wrong = [await table.game(prompt, _saying(form, v), self.turns) for v in values]
        if right.error:
            return []
        return [part for part in table.spec.parts if right.total(part) - wrong.total(part) > SAME]

    async def _repeat(self, table: _Table, when: str, order: Any) -> None:
        for index in order:
            players = dict(self._players(index, table.tools))
            for name, before in self.rows[index].items():
                after = await table.game(self.asked.prompts[index], players[name], self.turns)
                if after != before:
                    self.change = PlayChange(
                        place=self.asked.places[index], before=before, after=after, when=when
                    )
                    return


def _saying(form: str, value: str) -> Player:
    """Make a player who gives one answer in every turn."""
    if not form.startswith(TOOL):
        return lambda last, read: answers.fill(form, value)
    _, name, parameter = form.split(" ")
    given = int(value) if value.lstrip("-").isdigit() else value
    return _calling(Call(name=name, arguments={parameter: given}))


def _calling(call: Call) -> Player:
    return lambda last, read: Turn(text="", calls=(call,))


def _told(form: str, wrong: str, target: str, prompt: str) -> Player:
    """Make a player who answers wrong until an observation shows the target. If the prompt has the
    target, the player always answers wrong."""
    right_turn, wrong_turn = _saying(form, target), _saying(form, wrong)

    def play(last: str, read: str) -> Turn | str:
        known = answers.mentions(read, target) and not answers.mentions(prompt, target)
        return (right_turn if known else wrong_turn)(last, read)

    return play


ODD = {
    "string": ("", "zebra"), "integer": (0, -1), "number": (0.0, -1.5), "boolean": (False,),
    "array": ([],), "object": ({},),
}  # fmt: skip


def _odd_calls(tool: Any) -> Iterator[tuple[str, Call]]:
    """Yield calls of a tool with odd arguments of the types that it asks for."""
    function = tool["function"]
    kinds = {name: p["type"] for name, p in function["parameters"]["properties"].items()}
    if kinds:
        for number in range(2):
            given = {
                name: ODD[kind][min(number, len(ODD[kind]) - 1)] for name, kind in kinds.items()
            }
            yield f"odd {number}", Call(name=function["name"], arguments=given)
