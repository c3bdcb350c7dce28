"""The process of an environment: state, slow tools, errors, calls that hold it, its death."""

from __future__ import annotations

import asyncio
import hashlib
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forgedsl.environment import Call, Start, Step, Task, Turn
from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl_runtime.data.chat import ChatTokenizer
from forgedsl_runtime.environments.bridge import Bridge, TokenizedObservation
from forgedsl_runtime.environments.connection import PoolRequest
from forgedsl_runtime.environments.process import TOKENIZER_NOT_SENT, EnvironmentProcess
from forgedsl_runtime.environments.worker import (
    LEFT_BEHIND,
    Reply,
    Request,
    ServedEnvironment,
)

TOKENIZER = Path(__file__).parents[2] / "pipelines/tokenizers/arithmetic"
DESK = '''
import asyncio
import os
import threading
import time

from forgedsl.environment import Environment, Start, Step, tool

MEETING = threading.Barrier(64)


class Desk(Environment):
    parts = ("found",)

    def __init__(self, *, rows: int = 3) -> None:
        self.rows, self.heard = rows, []

    def reset(self, task, rng):
        self.first = rng.random()
        return Start(f"{task.text} {self.rows}")

    @tool
    def price(self, key: str) -> str:
        """The price of a thing."""
        time.sleep(30 if key == "slow" else 0)
        return f"{key} costs {len(self.heard)}"

    async def close(self):
        await asyncio.sleep(0.2)

    async def step(self, turn):
        self.heard.append(turn.text)
        match turn.text:
            case "tools":
                return await self.call_tools(turn)
            case "seed":
                return Step(str(self.first))
            case "sleep":
                time.sleep(0)
                await asyncio.sleep(30)
            case "meet":
                await asyncio.to_thread(MEETING.wait, 20)
            case "fail":
                raise ValueError("no such thing")
            case "die":
                os._exit(7)
            case "hold":
                while True:
                    pass
            case "part":
                return Step(rewards={"lost": 1.0})
            case "none":
                return None
            case "number":
                return Step(5)
            case "contents":
                return Step([{"role": "tool"}])
            case "words":
                return Step(rewards={"found": "yes"})
            case "nan":
                return Step(rewards={"found": float("nan")})
            case text if text.startswith("how many calls"):
                return Step(str(len(turn.calls)))
        return Step(" ".join(self.heard), {"found": 1.0})
'''


def served(folder: Path, text: str = DESK, **more: Any) -> ServedEnvironment:
    (folder / "desk.py").write_text(text, encoding="utf-8")
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    given: dict[str, Any] = {"type_name": "Desk", "path": "desk.py", "parts": ("found",)}
    environment = spec.Environment(sha256=sha256, tool_timeout=1.0, **given | more)
    return ServedEnvironment(name="shop", environment=environment, job_dir=str(folder))


def asked(folder: Path, *texts: str | tuple[str, ...], calls: tuple[Call, ...] = ()) -> list[Reply]:
    """The replies to turns of one trajectory; those of a tuple are asked at once, of one each."""

    async def main() -> list[Reply]:
        process = EnvironmentProcess(served(folder))
        try:
            found: list[Reply] = []
            for text in texts:
                at_once = text if isinstance(text, tuple) else (text,)
                keys = [
                    f"{text}{i}" if isinstance(text, tuple) else "a" for i in range(len(at_once))
                ]
                for key in keys:
                    if key != "a" or not found:
                        await process.ask(reset(key))
                found += await asyncio.gather(
                    *(process.ask(step(k, t, calls)) for k, t in zip(keys, at_once, strict=True))
                )
            return found
        finally:
            process.close()

    return asyncio.run(main())


def reset(key: str, seed: int = 5) -> Request:
    return Request(key=key, op="reset", seconds=1.0, task=Task(text="t"), seed=seed)


def step(key: str, text: str, calls: tuple[Call, ...] = ()) -> Request:
    return Request(key=key, op="step", seconds=1.5, turn=Turn(text=text, calls=calls))


def test_an_object_keeps_its_state_and_trajectories_do_not_share_it(tmp_path: Path) -> None:
    one, two, *others = asked(tmp_path, "a", "b", ("c", "d"))
    assert [reply.value for reply in (one, two)] == [
        Step("a", {"found": 1.0}), Step("a b", {"found": 1.0}),
    ]  # fmt: skip
    assert [reply.value.observation for reply in others] == ["c", "d"]


def test_siblings_meet_the_same_game(tmp_path: Path) -> None:
    first, second = asked(tmp_path, ("seed", "seed"))
    assert first.value == second.value


def test_arguments_and_the_task_reach_the_object(tmp_path: Path) -> None:
    async def main() -> Reply:
        process = EnvironmentProcess(served(tmp_path, args={"rows": 8}))
        try:
            return await process.ask(reset("a"))
        finally:
            process.close()

    assert asyncio.run(main()).value == Start("t 8")


def test_a_slow_step_is_late_and_holds_up_nobody(tmp_path: Path) -> None:
    slow, quick = asked(tmp_path, ("sleep", "a"))
    assert (slow.late, slow.error) == (True, "no answer within 1.5 s")
    assert quick.value.observation == "a"


def test_what_waits_on_a_thread_of_its_own_holds_up_nobody(tmp_path: Path) -> None:
    found = asked(tmp_path, ("meet",) * 64)
    assert [reply.error for reply in found] == [""] * 64


def test_a_slow_tool_is_told_in_its_result_and_the_others_answer(tmp_path: Path) -> None:
    calls = tuple(Call(name="price", arguments={"key": key}) for key in ("nail",))
    late = (Call(name="price", arguments={"key": "slow"}),)
    (reply,) = asked(tmp_path, "tools", calls=calls)
    (second,) = asked(tmp_path, "tools", calls=late)
    assert [m["content"] for m in reply.value.observation] == ["nail costs 1"]
    assert [m["content"] for m in second.value.observation] == [
        "error: price did not answer in time"
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("fail", "ValueError: no such thing (desk.py:44)"),
        ("part", "ValueError: step returned rewards ['lost'], which `parts` does not list"),
        ("none", "TypeError: step returned NoneType, expected Step(observation, rewards={...}"),
        (
            "number",
            "TypeError: step returned an observation that is of type int, neither text nor a",
        ),
        ("contents", "that is not a list of messages with `role` and `content`: {'role': 'tool'}"),
        ("words", "TypeError: step returned 'yes' for `found`, which is not a finite number"),
        ("nan", "TypeError: step returned nan for `found`, which is not a finite number"),
    ],
)
def test_an_error_is_that_of_the_trajectory(tmp_path: Path, text: str, error: str) -> None:
    (reply, other) = asked(tmp_path, (text, "a"))
    assert error in reply.error
    assert other.value.observation == "a"


def test_a_process_that_dies_is_started_again_without_its_trajectories(tmp_path: Path) -> None:
    died, after = asked(tmp_path, "die", "a")
    assert (died.ended, died.error) == (True, "its process ended with exit code 7 in the call")
    assert "its process was restarted, so the trajectory is lost" in after.error


def test_one_trajectory_is_to_blame_for_the_end_of_a_process(tmp_path: Path) -> None:
    died, waiting, after = asked(tmp_path, ("die", "sleep"), "a")
    assert sorted(reply.collateral for reply in (died, waiting)) == [False, True]
    assert after.value is not None or after.collateral


def test_a_trajectory_that_is_over_is_not_to_blame(tmp_path: Path) -> None:
    async def main() -> list[Reply]:
        process = EnvironmentProcess(served(tmp_path))
        try:
            for key in ("a", "b"):
                await process.ask(reset(key))
            end = Request(key="a", op="close", seconds=1.0)
            return await asyncio.gather(process.ask(end), process.ask(step("b", "die")))
        finally:
            process.close()

    closed, died = asyncio.run(main())
    assert (closed.ended, died.ended, died.collateral) == (True, True, False)


def answers(folder: Path, *asked: PoolRequest) -> list[Any]:
    """What a process says to whoever plays, of one thing after the other."""

    async def main() -> list[Any]:
        process = EnvironmentProcess(served(folder))
        try:
            return [(await process.answer(each))[0] for each in asked]
        finally:
            process.close()

    return asyncio.run(main())


def bridge(template: str) -> Bridge:
    return Bridge(ChatTokenizer.load(str(TOKENIZER), template))


CHAT = "{% for m in messages %}{{ m['content'] }}<eos>{% endfor %}:"
FAILS = "{% if messages[2] %}{{ messages[2].name.first.last }}{% endif %}"
BEGIN = PoolRequest("reset", "a", Task(text="t"), 5)
CALLS = "how many calls"


@pytest.mark.parametrize(
    ("told", "chat", "turn"),
    [(None, False, [3]), (None, True, [3, 2]), (None, True, [3]), (CHAT, False, [3]),
     (CHAT, True, [3, 2]), (CHAT, True, [3])],
)  # fmt: skip
def test_tokens_of_what_is_observed_are_made_by_the_process_or_by_who_plays(
    told: str | None, chat: bool, turn: list[int], tmp_path: Path
) -> None:
    here, step = bridge(CHAT), PoolRequest("step", "a", "12", 0, "0", chat)
    given = (
        [PoolRequest("bridge", given=("hermes", [], True, pickle.dumps(bridge(told))), bridge="0")]
        if told
        else []
    )
    *_, found = answers(tmp_path, *given, BEGIN, step)
    assert isinstance(found, Reply) == (told is None)
    said = found.value.observation if isinstance(found, Reply) else TokenizedObservation(*found[:3])
    assert here.tokens_after(turn, said, 99, chat=chat) == here.tokens_after(
        turn, "12", 99, chat=chat
    )
    assert isinstance(found, Reply) or found[3] == {"found": 1.0}


def test_tool_calls_are_read_in_the_form_of_the_model(tmp_path: Path) -> None:
    text = CALLS + '[TOOL_CALLS]price[ARGS]{"key": "nail"}'
    told = PoolRequest("bridge", given=("mistral", [], True, None), bridge="0")
    for given, count in (([told], 1), ([], 0)):
        *_, found = answers(tmp_path, *given, BEGIN, PoolRequest("step", "a", text, 0, "0", True))
        assert found.value.observation == str(count)


def test_a_template_that_fails_in_the_process_is_left_to_who_plays(tmp_path: Path) -> None:
    told = PoolRequest(
        "bridge", given=("hermes", [], True, pickle.dumps(bridge(FAILS))), bridge="0"
    )
    nothing, _, found = answers(tmp_path, told, BEGIN, PoolRequest("step", "a", "12", 0, "0", True))
    assert (nothing, found.value) == (None, Step("12", {"found": 1.0}))


def test_who_plays_is_told_of_a_tokenizer_that_cannot_be_read(tmp_path: Path) -> None:
    (reply,) = answers(
        tmp_path, PoolRequest("bridge", given=("hermes", [], True, b"none"), bridge="0")
    )
    assert reply.error.startswith(f"{TOKENIZER_NOT_SENT}: UnpicklingError")


def test_the_end_of_a_trajectory_is_answered_where_it_fails(tmp_path: Path) -> None:
    assert answers(tmp_path, BEGIN, PoolRequest("close", "a"))[1] is None
    (tmp_path / "bad").mkdir()
    process = served(tmp_path / "bad", DESK.replace("asyncio.sleep(0.2)", "asyncio.sleep('x')"))

    async def main() -> Any:
        made = EnvironmentProcess(process)
        try:
            await made.answer(BEGIN)
            return (await made.answer(PoolRequest("close", "a")))[0]
        finally:
            made.close()

    assert asyncio.run(main()).error.startswith("could not close a trajectory: TypeError")


def test_a_call_that_holds_the_interpreter_costs_the_process(tmp_path: Path) -> None:
    held, after = asked(tmp_path, "hold", "a")
    assert held.ended
    assert "the process was killed" in held.error
    assert "its process was restarted, so the trajectory is lost" in after.error


def test_an_environment_that_cannot_be_made_is_told_at_the_start(tmp_path: Path) -> None:
    async def start(given: ServedEnvironment) -> None:
        await EnvironmentProcess(given).start()

    with pytest.raises(LaunchError, match=r"environment shop: Desk\(many = 1\) failed: TypeError"):
        asyncio.run(start(served(tmp_path, args={"many": 1})))
    with pytest.raises(
        LaunchError, match=r"environment shop: desk.py has no environment class Dusk"
    ):
        asyncio.run(start(served(tmp_path, type_name="Dusk")))


@pytest.mark.parametrize(
    ("method", "remedy"),
    [("setp(self, turn)", "rename `setp` to `step`"), ("look(self)", "write `step`, or remove")],
)
def test_reward_parts_that_no_turn_gives_are_told_at_the_start(
    tmp_path: Path, method: str, remedy: str
) -> None:
    code = (
        "from forgedsl.environment import Environment, Step\n\n\nclass Desk(Environment):\n"
        f'    parts = ("found",)\n\n    def {method}:\n        return Step()\n'
    )

    async def start() -> None:
        await EnvironmentProcess(served(tmp_path, code)).start()

    with pytest.raises(LaunchError, match=f"no `step`, so no turn gives them; {remedy}"):
        asyncio.run(start())


HANGS = """
import time

from forgedsl.environment import Environment, Step


class Desk(Environment):
    parts = ("found",)

    def step(self, turn):
        time.sleep(30)
        return Step()
"""


def test_a_process_that_is_replaced_says_why(tmp_path: Path) -> None:
    """Trajectories that are over and whose calls hang cost the process, and so one that plays."""

    async def main() -> Reply:
        process = EnvironmentProcess(served(tmp_path, HANGS))
        keys = [f"{i}" for i in range(LEFT_BEHIND + 1)]
        try:
            for key in (*keys, "plays"):
                await process.ask(reset(key))
            short = [replace(step(key, "a"), seconds=0.1) for key in keys]
            late = await asyncio.gather(*map(process.ask, short))
            assert all(reply.late for reply in late)
            waiting = asyncio.ensure_future(process.ask(replace(step("plays", "a"), seconds=20.0)))
            await asyncio.sleep(0)
            for key in keys:
                await process.ask(Request(key=key, op="close", seconds=1.0))
            return await waiting
        finally:
            process.close()

    assert "its process was replaced in the call: other calls" in asyncio.run(main()).error
