"""Scores out of rewards: failures are counted and bounded, cached calls are not made again."""

from __future__ import annotations

import asyncio
import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from test_reward_process import rollout

from forgedsl.errors import GuardError
from forgedsl.lower import job as spec
from forgedsl_runtime.endpoints import RewardError, Score, ServiceError, ServiceFailure
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.guards import RewardGuard
from forgedsl_runtime.rewards.worker import Item, Outcome
from forgedsl_runtime.services import reward as module
from forgedsl_runtime.services.reward import QUICK_BATCH, RewardClient
from forgedsl_runtime.step_metrics import Meter

PROGRAM: Any = SimpleNamespace(points=lambda parts: sum(parts.values()))
NONE = "ValueError: correct returned None, expected a number"


class FakeMesh:
    """Answers 1 where the response is the target, an error elsewhere; keeps what it was asked."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self.asked: list[Any] = []
        self.dead = False
        self.service, self.origin = "correct", ""

    async def one(self, rank: int, endpoint: str, items: list[Any]) -> list[list[Outcome]]:
        self.asked += items
        await asyncio.sleep(0)
        if self.dead:
            failure = ServiceFailure(service="correct", origin="", message="gone")
            raise ServiceError(failure, died=True)
        return [[_outcome(r.text, target, name) for name in names] for names, r, target in items]


def _outcome(text: str, target: Any, name: str) -> Outcome:
    if name != "always" and text != target:
        return Outcome(error=NONE, seconds=0.5)
    return Outcome(value=1.0, seconds=0.25)


def client_of(make_job: Any, mesh: FakeMesh, **more: Any) -> tuple[RewardClient, list[Any]]:
    python = {"kind": "python", "function": "f", "retries": 0}
    rewards = {"correct": spec.Reward(**(python | more))}
    rewards["beside"] = spec.Reward(**python, monitor=True)
    rewards["always"] = spec.Reward(**python)
    names = ("correct", "always")
    rubrics = {"points": spec.Rubric(function="points", rewards=names, on_truncated=None)}
    job = make_job(rewards=rewards, rubrics=rubrics, origins={"correct": "x.forge:3:1"})
    seen: list[Any] = []
    events = EventLog()
    events.subscribe(seen.append)
    meshes: Any = dict.fromkeys(rewards, mesh)
    return RewardClient(job, meshes, PROGRAM, events), seen


def test_a_score_says_what_each_reward_gave_and_took(make_job: Any) -> None:
    client, _ = client_of(make_job, FakeMesh())
    score = asyncio.run(client.score("points", rollout("yes"), "yes"))
    parts = {"correct": 1.0, "always": 1.0, "beside": 1.0}
    assert score == Score(value=2.0, parts=parts, seconds=dict.fromkeys(parts, 0.25))


def test_a_monitor_that_fails_is_counted_and_changes_no_score(make_job: Any) -> None:
    client, _ = client_of(make_job, FakeMesh())
    score = asyncio.run(client.score("always", rollout("no"), "yes"))
    assert (score.value, score.parts, score.failed) == (1.0, {"always": 1.0}, ("beside",))


def test_an_evaluation_asks_no_monitors(make_job: Any) -> None:
    mesh = FakeMesh()
    client, _ = client_of(make_job, mesh)
    asyncio.run(client.score("always", rollout("yes"), "yes", monitored=False))
    assert [names for names, _, _ in mesh.asked] == [("always",)]


def test_a_dropped_score_names_all_that_failed(make_job: Any) -> None:
    client, _ = client_of(make_job, FakeMesh())
    with pytest.raises(RewardError) as raised:
        asyncio.run(client.score("points", rollout("no"), "yes"))
    assert (raised.value.reason, raised.value.failed) == ("reward correct", ("correct", "beside"))


def test_quick_calls_are_sent_together_and_slow_ones_alone(make_job: Any) -> None:
    class Timed(FakeMesh):
        seconds: float
        sizes: list[int]
        ended = False

        async def one(self, rank: int, endpoint: str, items: list[Item]) -> list[list[Outcome]]:
            self.sizes.append(len(items))
            found = await super().one(rank, endpoint, items)
            each = {"seconds": self.seconds, "ended": self.ended}
            return [[replace(o, **each) for o in outcomes] for outcomes in found]

    async def sizes(seconds: float, calls: int = 80) -> list[int]:
        mesh.seconds, mesh.sizes = seconds, []
        await asyncio.gather(
            *(client.score("correct", rollout("yes"), "yes", monitored=False) for _ in range(calls))
        )
        assert sum(mesh.sizes) == calls
        return mesh.sizes

    mesh = Timed()
    client, _ = client_of(make_job, mesh)
    assert set(asyncio.run(sizes(0.2))) == {1}
    assert asyncio.run(sizes(0.0))[-3] > 1  # once the mean of the durations has become small
    assert max(asyncio.run(sizes(0.0))) == QUICK_BATCH
    assert asyncio.run(sizes(1.0))[-4:] == [1] * 4
    assert asyncio.run(sizes(0.0, 200))[-3] > 1
    mesh.ended = True  # it ends its process, and takes no time by its own clock
    assert asyncio.run(sizes(0.0, 20))[2:] == [1] * 4


@pytest.mark.parametrize(
    ("more", "calls"),
    [({}, 1 + QUICK_BATCH), ({"concurrency": 5}, 5)],
    ids=["synchronous", "asynchronous"],
)
def test_a_process_that_hangs_is_noticed_after_the_calls_it_may_have(
    make_job: Any, monkeypatch: pytest.MonkeyPatch, more: dict[str, int], calls: int
) -> None:
    limits: list[float] = []
    monkeypatch.setattr(
        module, "deadline", lambda what, seconds: limits.append(seconds) or nullcontext()
    )
    client, _ = client_of(make_job, FakeMesh())
    reward = spec.Reward(kind="python", function="f", retries=0, timeout=7.0, **more)
    client._job.rewards["correct"] = reward
    client._pools["correct"] = client._pool("correct", FakeMesh())  # type: ignore[arg-type]
    asyncio.run(client.score("correct", rollout("yes"), "yes", monitored=False))
    assert limits == [calls * (7.0 + module.GRACE) + module.START_SECONDS]


async def _scores(client: RewardClient, texts: list[str]) -> int:
    """How many scores there were before the guard spoke."""
    for number, text in enumerate(texts):
        try:
            await client.score("correct", rollout(text), "yes")
        except RewardError:
            pass
        except GuardError as error:
            error.args = (number, *error.args)
            raise
    return len(texts)


@pytest.mark.parametrize("on_error", ["drop", 0.0])
def test_a_reward_that_fails_too_often_stops_the_run(make_job: Any, on_error: Any) -> None:
    client, _ = client_of(make_job, FakeMesh(), on_error=on_error)
    with pytest.raises(GuardError) as raised:
        asyncio.run(_scores(client, ["yes", "no", "no"] * 100))
    number, text = raised.value.args
    assert number == 31
    assert "reward correct failed for 21 of its last 32 completions (66%; the limit is 25%)" in text
    assert f"21 times: {NONE}\n  for example: prompt 'p', response 'no', target 'yes'" in text
    assert (raised.value.origin, "max_failed" in raised.value.remedy) == ("x.forge:3:1", True)


def test_errors_of_one_kind_with_other_words_are_counted_together() -> None:
    guard = RewardGuard("correct", 0.25, "")
    for number in range(15):
        guard.failed(f"KeyError: '{number}'", f"prompt {number}")
    with pytest.raises(GuardError) as raised:
        guard.failed("KeyError: '15'", "prompt 15")
    said = "limit is 25%); 16 times: KeyError, such as KeyError: '0'\n  for example: prompt 0"
    assert said in str(raised.value)


def test_a_reward_that_always_fails_stops_the_run_sooner(make_job: Any) -> None:
    client, _ = client_of(make_job, FakeMesh())
    with pytest.raises(GuardError, match="failed for 16 of its last 16 completions"):
        asyncio.run(_scores(client, ["no"] * 100))


class Deadly(FakeMesh):
    """Every call ends its process."""

    async def one(self, rank: int, endpoint: str, items: list[Any]) -> list[list[Outcome]]:
        self.asked += items
        await asyncio.sleep(0.01)
        end = Outcome(error="its process ended with exit code 3 in the call", ended=True)
        return [[end for _ in names] for names, _, _ in items]


def test_a_reward_whose_every_call_ends_its_process_stops_the_run_at_once(make_job: Any) -> None:
    mesh = Deadly()
    client, _ = client_of(make_job, mesh)
    with pytest.raises(GuardError) as raised:
        asyncio.run(_scores(client, ["no"] * 100))
    text = raised.value.args[1]
    assert text.startswith("every call of reward correct ends its process (4 of 4 so far): its ")
    assert "exit code 3 in the call\n  for example: prompt 'p', response 'no'" in text
    assert (raised.value.origin, "max_failed" in raised.value.remedy) == ("x.forge:3:1", False)


def test_more_processes_are_no_advice_where_calls_end_them(
    make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Deadly):
        """A call waits too long from the first answer on, however slow the machine is."""

        async def one(self, rank: int, endpoint: str, items: list[Any]) -> list[list[Outcome]]:
            found = await super().one(rank, endpoint, items)
            monkeypatch.setattr(module, "QUEUE_SECONDS", 0.0)
            return found

    client, seen = client_of(make_job, Full())
    asyncio.run(_at_once(client, ["no"] * 8, "always"))
    told = [event["text"] for event in seen if "is the bottleneck" in event["text"]]
    assert told
    assert [text for text in told if "procs" in text] == []
    assert "1 of 1 calls so far ended their process, which is then started again" in told[0]


@pytest.mark.parametrize(("texts", "limit"), [(["yes"] * 4 + ["no"], 0.25), (["no"], 1.0)])
def test_failures_within_the_limit_stop_nothing(
    make_job: Any, texts: list[str], limit: float
) -> None:
    client, _ = client_of(make_job, FakeMesh(), max_failed=limit)
    assert asyncio.run(_scores(client, texts * 80)) == 80 * len(texts)


def test_failures_are_told_at_powers_of_ten(make_job: Any) -> None:
    client, seen = client_of(make_job, FakeMesh(), max_failed=1.0)
    asyncio.run(_scores(client, ["no"] * 120))
    about = [event["text"] for event in seen if event["reward"] == "correct"]
    assert about == [
        f"reward correct (x.forge:3:1) failed: {NONE}",
        f"reward correct (x.forge:3:1) failed (10 times so far): {NONE}",
        f"reward correct (x.forge:3:1) failed (100 times so far): {NONE}",
    ]


def test_a_retry_does_not_wait_behind_all_others(make_job: Any) -> None:
    mesh = FakeMesh()
    client, _ = client_of(make_job, mesh, retries=1)
    asyncio.run(_at_once(client, ["no", *["yes"] * 30]))
    asked = [rollout.text for _, rollout, _ in mesh.asked]
    assert asked.count("no") == 2
    assert asked.index("no", 1) < 6


async def _at_once(client: RewardClient, texts: list[str], name: str = "correct") -> None:
    calls = [client.score(name, rollout(text), "yes", monitored=False) for text in texts]
    await asyncio.gather(*calls, return_exceptions=True)


def test_calls_that_are_made_again_are_told_and_counted(make_job: Any) -> None:
    class Flaky(FakeMesh):
        """Gives no number at each first call."""

        async def one(self, rank: int, endpoint: str, items: list[Any]) -> list[list[Outcome]]:
            found = await super().one(rank, endpoint, items)
            return found if len(self.asked) % 2 == 0 else [[Outcome(value=math.nan)]]

    client, seen = client_of(make_job, Flaky(), retries=1, max_failed=1.0)
    score = asyncio.run(client.score("correct", rollout("yes"), "yes", monitored=False))
    assert (score.value, score.failed, score.retried) == (1.0, (), ("correct",))
    said = "reward correct (x.forge:3:1) failed and is called again: returned nan"
    assert seen[0]["text"] == said
    assert seen[0]["error"] == "returned nan"
    meter = Meter()
    meter.count_score(score)
    assert meter.end_iteration()["retried/correct"] == 1


def test_more_processes_are_no_advice_where_calls_fail(
    make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, seen = client_of(make_job, FakeMesh())
    for pool in client._guards:
        client._guards[pool].record_call("TimeoutError: late")
    monkeypatch.setattr(module, "QUEUE_SECONDS", 0.0)
    asyncio.run(_at_once(client, ["yes"] * 8))
    told = [event["text"] for event in seen if "is the bottleneck" in event["text"]]
    assert told[0].endswith(
        "waiting; 1 of 1 calls so far failed, most recently with: TimeoutError: late"
    )


def test_a_cached_reward_is_asked_once_for_the_same_arguments(make_job: Any) -> None:
    mesh = FakeMesh()
    client, _ = client_of(make_job, mesh, cache=True, max_failed=1.0)
    asyncio.run(_scores(client, ["yes", "yes", "no", "no"]))
    asked = [r.text for names, r, _ in mesh.asked if "correct" in names]
    assert asked == ["yes", "no", "no"]


@pytest.mark.parametrize(("kind", "calls"), [("python", 3), ("endpoint", 1)])
def test_a_cached_reward_that_sees_tokens_is_asked_for_other_tokens_with_the_same_text(
    make_job: Any, kind: str, calls: int
) -> None:
    mesh = FakeMesh()
    client, _ = client_of(make_job, mesh, kind=kind, cache=True)
    first = rollout("yes")
    others = [replace(first, token_ids=[2]), replace(first, rewards={"won": 1.0})]

    async def main() -> None:
        for one in (first, *others, *others):
            await client.score("correct", one, "yes")

    asyncio.run(main())
    assert len([names for names, _, _ in mesh.asked if "correct" in names]) == calls


def test_calls_of_a_pool_that_died_wait_for_the_next(make_job: Any) -> None:
    mesh, fresh = FakeMesh(), FakeMesh()
    mesh.dead = True
    client, _ = client_of(make_job, mesh)

    async def main() -> float:
        call = asyncio.create_task(client.score("always", rollout("yes"), "yes"))
        while not mesh.asked:
            await asyncio.sleep(0)
        pool = client.pool(mesh)  # type: ignore[arg-type]
        assert pool is not None
        pool.lost()
        pool.restore(fresh)  # type: ignore[arg-type]
        return (await call).value

    assert asyncio.run(main()) == 1.0


def test_a_call_that_waits_for_its_turn_is_told_as_a_bottleneck(
    make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUE_SECONDS", 0.0)
    client, seen = client_of(make_job, FakeMesh())

    async def main() -> None:
        await asyncio.gather(*(client.score("correct", rollout("yes"), "yes") for _ in range(8)))

    asyncio.run(main())
    assert "is the bottleneck: a call waited 0 s in the queue, " in seen[0]["text"]
    assert seen[0]["text"].endswith("give it more `procs`")


def test_a_pool_that_does_nothing_at_all_has_failed(
    make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 0.01)
    monkeypatch.setattr(module, "GRACE", 0.0)
    mesh = FakeMesh()
    client, _ = client_of(make_job, mesh, timeout=0.01)

    async def one(rank: int, endpoint: str, items: list[Any]) -> list[list[Outcome]]:
        return await asyncio.Future()

    mesh.one = one  # type: ignore[method-assign]
    with pytest.raises(ServiceError, match="correct: process 0 of the pool gave no answer within"):
        asyncio.run(client.score("correct", rollout("yes"), "yes", monitored=False))


def test_a_call_without_an_answer_is_told(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOW_SECONDS", 0.01)
    mesh = FakeMesh()
    client, seen = client_of(make_job, mesh)

    async def one(rank: int, endpoint: str, items: list[Any]) -> list[list[Outcome]]:
        while not seen:
            await asyncio.sleep(0.01)
        return [[Outcome(value=1.0)] for _ in items]

    mesh.one = one  # type: ignore[method-assign]
    asyncio.run(client.score("always", rollout("yes"), "yes", monitored=False))
    assert "is slow: no result for 0.01 s (its timeout is 30 s) for prompt 'p'" in seen[0]["text"]
