"""Plays environments with scripted players, in a confined environment process as in a run.

    ProbeRows (rows) --play_environments--> EnvironmentPlays by name

First it looks for a form of answer: a text, or the argument of a tool, after which a turn without
calls may be needed. In this form, a player who gives the right answer in every turn must earn more
than one who gives a wrong answer. Then other players play: one is silent, one repeats what it
reads, one answers wrong until it is shown the target, one calls the tool of the answer again and
again, some give extreme numbers to its other parameters. Finally, games are played again with the
same seeds, in the same process and in a new one. All games together have a time limit.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from forgedsl.environment import Task, Turn
from forgedsl.errors import LaunchError
from forgedsl.lint.call_results import (
    ARGUMENT,
    CHEATS,
    SAME,
    EnvironmentPlays,
    Play,
    PlayChange,
    PlayedRow,
    Worse,
)
from forgedsl.lower.job import Environment, Job
from forgedsl.shipped import locate
from forgedsl.tool_calls import Call
from forgedsl_runtime.data_types import Prompt
from forgedsl_runtime.environments.process import EnvironmentProcess
from forgedsl_runtime.environments.worker import Reply, Request, ServedEnvironment
from forgedsl_runtime.probes import answers
from forgedsl_runtime.probes.confined import REFUSED
from forgedsl_runtime.probes.rewards import CALL, LOADING, ProbeRows, Stopped

SEED = 5
TURNS = 4
"""largest number of turns of a game"""
EFFECTS = "it writes files, starts processes or connects to others"
TOOL, CALL_THEN = "tool ", "call "
"""prefixes of a form that names a tool and its parameter for the answer: `tool submit answer`; with
`call`, the tool is called once, and then a turn follows without calls"""
END = "That is my answer."
EXTREME = (0, 1, 1000)
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
"""an address in the memory of a process, which differs between processes"""
Player = Callable[[str, str, int], Turn | str]
"""(last observation, all observations so far, number of the turn) -> the next turn, or its text"""


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
            made = player(shown[-1] or prompt.text, "\n".join(shown), number)
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
    if not isinstance(observation, str):
        observation = "\n".join(str(message.get("content") or "") for message in observation)
    return ADDRESS.sub("0x", observation)


class _Games:
    """The games of one environment, as they are played."""

    def __init__(self, asked: ProbeRows, codes: Sequence[str], turns: int) -> None:
        self.asked, self.codes, self.turns = asked, codes, turns
        self.targets = [answers.answerable_text(prompt.target) for prompt in asked.prompts]
        self.form, self.part, self.note = "", "", ""
        self.worse: Worse | None = None
        self.rows: list[dict[str, Play]] = [{} for _ in asked.prompts]
        self.change: PlayChange | None = None

    @property
    def result(self) -> EnvironmentPlays:
        return EnvironmentPlays(
            form=self.form, part=self.part, change=self.change, note=self.note,
            worse=None if self.form else self.worse,
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
                yield name, self._saying(value, tools)
            yield "told", self._answers_once_seen(index, tools)
            yield from self._calling_again(target, wrong, tools)
            yield from self._cheating(index)
        yield "silent", lambda last, read, number: ""
        yield "echo", lambda last, read, number: last
        yield "words", lambda last, read, number: "I am not sure"
        yield "tags", lambda last, read, number: "<think><answer>\\boxed{ #### "
        for tool in tools:
            for kind, call in _odd_calls(tool):
                yield f"{tool['function']['name']} {kind}", _calling(call)

    def _saying(self, value: str, tools: Sequence[Any]) -> Player:
        return _saying(self.form, value, tools)

    def _answers_once_seen(self, index: int, tools: Sequence[Any]) -> Player:
        target, wrong = self.targets[index] or "", self._wrong(index)
        return _answers_once_seen(
            self.form, wrong, target, self.asked.prompts[index].text, tools, self.turns
        )

    def _cheating(self, index: int) -> Iterator[tuple[str, Player]]:
        """Yield players who give, in the form of a text, what is not right and may be rewarded."""
        target, prompt = self.targets[index] or "", self.asked.prompts[index]
        if self.form.startswith((TOOL, CALL_THEN)):
            return
        made = answers.cheats(self.form, target, self._wrong(index), prompt.text, (), ())
        for each in made:
            if each.kind in CHEATS:
                yield each.kind, lambda last, read, number, text=each.text: text  # type: ignore[misc]

    def _calling_again(
        self, target: str, wrong: str, tools: Sequence[Any]
    ) -> Iterator[tuple[str, Player]]:  # fmt: skip
        """Yield players who hand in the right answer again and again, and those who give extreme
        numbers to the other parameters of the tool."""
        kind, *named = self.form.split(" ")
        if f"{kind} " not in (TOOL, CALL_THEN):
            return
        if self.turns > 2 and f"{kind} " == CALL_THEN:
            yield "again", _saying(self.form, target, tools, times=self.turns - 1)
        name, parameter = named
        for other in _numbers(name, parameter, tools):
            for number in EXTREME:
                given = {other: number}
                yield (
                    f"{ARGUMENT}{name} {other} {number}",
                    _saying(self.form, wrong, tools, more=given),
                )
                yield (
                    f"{ARGUMENT}right {other} {number}",
                    _saying(self.form, target, tools, more=given),
                )

    def _wrong(self, index: int) -> str:
        target = self.targets[index]
        return answers.wrong_for(target, [t for t in self.targets if t]) if target else "zebra"

    async def _find_form(self, table: _Table) -> None:
        """Find a form, and a reward part, such that the right answer earns more than a wrong one on
        every row."""
        prompt = self.asked.prompts[0]
        opening = await table.game(prompt, lambda last, read, number: "", 1)
        shown = f"{prompt.text}\n{opening.shown[0] if opening.shown else ''}"
        tools = [
            f"{prefix}{tool['function']['name']} {name}"
            for prefix in (TOOL, CALL_THEN)[: self.turns]
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
        """Return the reward parts in which the right answer earns more than a wrong one. Keep the
        game of the first row in which a turn with the right answer earns more, and the whole game
        less."""
        prompt = self.asked.prompts[index]
        values = self.targets[index] or "", self._wrong(index)
        players = [_saying(form, value, table.tools) for value in values]
        right, wrong = [await table.game(prompt, player, self.turns) for player in players]
        if right.error:
            return []
        for part in table.spec.parts if not index and not wrong.error else ():
            one, other = (play.rewards[0].get(part, 0.0) for play in (right, wrong))
            if one - other > SAME and wrong.total(part) - right.total(part) > SAME:
                self.worse = self.worse or Worse(
                    part=part, right=right.total(part), wrong=wrong.total(part), last=wrong.last
                )
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


def _saying(
    form: str, value: str, tools: Sequence[Any], *, times: int = 1,
    more: Mapping[str, object] | None = None,
) -> Player:  # fmt: skip
    """Make a player who gives one answer in every turn. In a form with CALL_THEN, the player calls
    the tool in the first turns, `times` of them, and then says END. `more` are other arguments of
    the tool."""
    if not form.startswith((TOOL, CALL_THEN)):
        return lambda last, read, number: answers.fill(form, value)
    kind, name, parameter = form.split(" ")
    given = int(value) if _takes(name, parameter, tools) != "string" and _is_int(value) else value
    arguments = {**_required(name, tools), **(more or {}), parameter: given}
    called = _calling(Call(name=name, arguments=arguments))
    if f"{kind} " == TOOL:
        return called
    return lambda last, read, number: called(last, read, number) if number < times else END


def _is_int(value: str) -> bool:
    return value.lstrip("-").isdigit()


def _parameters(name: str, tools: Sequence[Any]) -> Mapping[str, Any]:
    """Return the schema of the parameters of a tool."""
    functions = [tool["function"] for tool in tools if tool["function"]["name"] == name]
    return functions[0]["parameters"] if functions else {"properties": {}}


def _takes(name: str, parameter: str, tools: Sequence[Any]) -> str:
    """Return the type that a tool asks for."""
    return str(_parameters(name, tools)["properties"].get(parameter, {}).get("type", ""))


def _required(name: str, tools: Sequence[Any]) -> dict[str, object]:
    """Return values for the arguments that a tool requires."""
    schema = _parameters(name, tools)
    kinds = {each: _takes(name, each, tools) for each in schema.get("required", ())}
    return {each: ODD[kind][0] for each, kind in kinds.items() if kind in ODD}


def _numbers(name: str, parameter: str, tools: Sequence[Any]) -> list[str]:
    """Return the parameters of a tool that take numbers, without the one for the answer."""
    names = [each for each in _parameters(name, tools)["properties"] if each != parameter]
    return [each for each in names if _takes(name, each, tools) in ("integer", "number")]


def _calling(call: Call) -> Player:
    return lambda last, read, number: Turn(text="", calls=(call,))


def _answers_once_seen(
    form: str, wrong: str, target: str, prompt: str, tools: Sequence[Any], turns: int
) -> Player:  # fmt: skip
    """Make a player who answers wrong until an observation shows the target. If the prompt has the
    target, the player always answers wrong."""
    times = max(1, turns - 1)
    right_turn, wrong_turn = (
        _saying(form, value, tools, times=times) for value in (target, wrong)
    )  # fmt: skip

    def play(last: str, read: str, number: int) -> Turn | str:
        known = answers.mentions(read, target) and not answers.mentions(prompt, target)
        return (right_turn if known else wrong_turn)(last, read, number)

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
