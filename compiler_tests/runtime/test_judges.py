"""Judges: what an engine's log-probs say, and an endpoint that is busy, late, wrong or locked."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from test_reward_process import rollout

from forgedsl.errors import LaunchError
from forgedsl.lower import job as spec
from forgedsl_runtime.data.chat import ChatTokenizer
from forgedsl_runtime.data_types import Answer
from forgedsl_runtime.events import EventLog
from forgedsl_runtime.rewards.process import RewardProcess
from forgedsl_runtime.rewards.worker import Outcome, Recipe
from forgedsl_runtime.services.judge import Judge, Scorer
from forgedsl_runtime.services.reward import RewardClient

MODEL = ChatTokenizer.load("pipelines/models/tiny_math")


def reward(**more: Any) -> spec.Reward:
    args = {"prompt": "{prompt}|{response}|1 to 3:", "scale": [1, 3], "range": [0.0, 1.0]}
    inputs = {"prompt": "messages", "response": "response"}
    common = {"kind": "judge", "function": "score", "service": "judge", "concurrency": 4}
    return spec.Reward(**common | {"args": args | more.pop("args", {}), "inputs": inputs} | more)


class Engine:
    """Answers with these probabilities of the grades; keeps what it was asked."""

    def __init__(self, *mass: float) -> None:
        self.mass = mass
        self.asked: list[str] = []

    async def sample(self, tokens: list[int], *_: Any, grades: tuple[int, ...]) -> Any:
        self.asked.append(MODEL.decode(tokens))
        return SimpleNamespace(grades=tuple(math.log(p) for p in self.mass))


def judged(engine: Engine, text: str, make_job: Callable[..., spec.Job], **more: Any) -> Outcome:
    job = make_job(rewards={"style": reward(**more)})
    judge = Judge("style", job, engine, MODEL)  # type: ignore[arg-type]
    return asyncio.run(judge.submit((("style",), rollout(text), None)))[0]


def test_a_score_is_the_expected_grade_on_the_range(make_job: Any) -> None:
    assert judged(Engine(0.1, 0.1, 0.2), "7", make_job).value == pytest.approx((2.25 - 1) / 2)
    more = {"range": [-1.0, 1.0]}
    found = judged(Engine(0.1, 0.1, 0.2), "7", make_job, args=more)
    assert found.value == pytest.approx(0.25)


def test_a_judge_that_says_something_else_has_failed(make_job: Any) -> None:
    found = judged(Engine(0.001, 0.002, 0.001), "7", make_job)
    assert "the grades have only 0.40% of the probability of the judge's" in found.error


def test_an_answer_that_is_too_long_for_the_judge_has_failed(make_job: Any) -> None:
    assert "tokens exceeds the judge's context" in judged(Engine(), "7", make_job).error


def test_an_answer_cannot_end_its_turn(make_job: Any) -> None:
    engine = Engine(0.5, 0.3, 0.2)
    judged(engine, "7<eos>8", make_job)
    assert "7<eos>8" not in engine.asked[0]
    assert "8" in engine.asked[0]


def test_a_grade_of_several_tokens_is_refused(make_job: Any) -> None:
    with pytest.raises(LaunchError, match="the grade 10 of style is 2 tokens for the judge judge"):
        judged(Engine(), "7", make_job, args={"scale": [1, 10]})


def test_a_judge_reads_equal_texts_once(make_job: Any) -> None:
    job, engine = make_job(rewards={"style": reward(cache=True)}), Engine(0.5, 0.3, 0.2)
    client = RewardClient(job, {}, SimpleNamespace(), EventLog())  # type: ignore[arg-type]
    client.judge("style", Judge("style", job, engine, MODEL))  # type: ignore[arg-type]

    async def scores() -> list[float]:
        return [
            (await client.score("style", rollout(text), None)).value for text in ("7", "7", "8")
        ]

    first, again, _ = asyncio.run(scores())
    assert (first == again, len(engine.asked)) == (True, 2)


# ---- siblings


def compared(engine: Engine, prompt: str, make_job: Callable[..., spec.Job]) -> list[Outcome]:
    """What a judge says of three siblings."""
    texts = ("7", "8", "9")
    holes = {hole: hole for hole in ("response", "other", "others") if f"{{{hole}}}" in prompt}
    job = make_job(rewards={"style": reward(args={"prompt": prompt}, inputs=holes)})
    judge = Judge("style", job, engine, MODEL)  # type: ignore[arg-type]

    async def outcomes() -> list[Outcome]:
        items = [
            replace(rollout(text), others=tuple(t for t in texts if t != text)) for text in texts
        ]
        found = await asyncio.gather(*(judge.submit((("style",), i, None)) for i in items))
        return [each for (each,) in found]

    return asyncio.run(outcomes())


class Larger(Engine):
    """Prefers the larger digit of two, and what stands first by a third of the scale."""

    async def sample(self, tokens: list[int], *_: Any, grades: tuple[int, ...]) -> Any:
        self.asked.append(text := MODEL.decode(tokens))
        first, second = text[0], text[2]
        mass = (1e-9, 1 / 3, 2 / 3) if first > second else (2 / 3, 1 / 3, 1e-9)
        return SimpleNamespace(grades=tuple(math.log(p) for p in mass))


def test_siblings_are_compared_in_both_orders_and_each_pair_is_asked_once(make_job: Any) -> None:
    engine = Larger()
    found = compared(engine, "{response}|{other}:", make_job)
    assert sorted(engine.asked) == ["7|8:", "7|9:", "8|7:", "8|9:", "9|7:", "9|8:"]
    assert [each.value for each in found] == pytest.approx([1 / 6, 0.5, 5 / 6], abs=1e-6)


def test_all_siblings_are_in_one_prompt(make_job: Any) -> None:
    engine = Engine(0.5, 0.3, 0.2)
    found = compared(engine, "{response}|{others}:", make_job)
    assert engine.asked == ["7|1. 8\n\n2. 9:", "8|1. 7\n\n2. 9:", "9|1. 7\n\n2. 8:"]
    assert len({each.value for each in found}) == 1


def test_one_that_is_left_alone_has_no_score(make_job: Any) -> None:
    inputs = {"response": "response", "other": "other"}
    found = judged(
        Engine(1.0), "7", make_job, args={"prompt": "{response}|{other}:"}, inputs=inputs
    )
    assert "all other completions failed, so there is none to compare with" in found.error


# ---- an endpoint


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.asked.append((self.path, self.headers["Authorization"], body))
        answer = server.answers[min(len(server.asked), len(server.answers)) - 1]
        if answer is None:
            server.released.wait(10)
            return
        status = answer if isinstance(answer, int) else 200
        message = {"role": "assistant", "content": answer}
        found = {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
        text = json.dumps(
            {"id": "1", "object": "chat.completion", "created": 1, "model": "m"} | found
        )
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(text.encode())

    def say_hello(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    """A local endpoint; `answers` in turn: a text, a status, or nothing at all."""
    found: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.asked, found.answers, found.released = [], [], threading.Event()
    threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
    yield found
    found.released.set()
    found.shutdown()
    found.server_close()


def asked(server: Any, *answers: Any, timeout: float = 5.0, **args: Any) -> Outcome:
    """What a call of the endpoint's reward comes to, in a process as in a run."""
    server.answers = list(answers)
    more = {"url": f"http://127.0.0.1:{server.server_port}/v1", "key": "JUDGE_KEY", "model": "m"}
    more |= {"max_tokens": 8, "structured": True, "retries": 2, "timeout": timeout}
    endpoint = reward(kind="endpoint", service=None, args=more | args)
    process = RewardProcess(Recipe(rewards={"style": endpoint}, program="", job_dir="."))

    async def call() -> Outcome:
        try:
            await process.start()
            return (await process.call((("style",), rollout("7"), None)))[0]
        finally:
            process.close()

    return asyncio.run(call())


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "secret")


def test_an_endpoint_is_asked_in_the_openai_form(server: Any) -> None:
    assert asked(server, '{"grade": 2}').value == 0.5
    path, key, body = server.asked[0]
    assert (path, key, body["model"]) == ("/v1/chat/completions", "Bearer secret", "m")
    assert body["messages"] == [{"role": "user", "content": "p|7|1 to 3:"}]
    schema = body["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["grade"]["enum"] == [1, 2, 3]


def test_a_busy_endpoint_is_asked_again(server: Any) -> None:
    assert asked(server, 503, 429, '{"grade": 3}').value == 1.0
    assert len(server.asked) == 3


def test_an_endpoint_that_stays_broken_is_the_error_of_the_call(server: Any) -> None:
    found = asked(server, 500, retries=0)
    assert f"127.0.0.1:{server.server_port}/v1: Error code: 500" in found.error


def test_an_endpoint_that_does_not_answer_is_asked_again(server: Any) -> None:
    assert asked(server, None, '{"grade": 2}', timeout=0.5).value == 0.5


def test_an_endpoint_that_never_answers_is_late(server: Any) -> None:
    found = asked(server, None, timeout=0.3, retries=0)
    assert f"no answer from http://127.0.0.1:{server.server_port}/v1 within 0.3 s" in found.error


def test_an_endpoint_that_is_not_there_is_named_with_the_cause(server: Any) -> None:
    found = asked(server, url="http://127.0.0.1:9/v1", retries=0)
    assert found.error == "ConnectionError: http://127.0.0.1:9/v1 cannot be reached: " + (
        "All connection attempts failed"
    )


def test_what_is_no_chat_completion_is_shown(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "do_POST", Handler.say_hello)
    assert "is not a chat completion: '<html>'" in asked(server).error


@pytest.mark.parametrize(
    "answer",
    [
        '{"grade": 4}',
        '{"grade": true}',
        *(pytest.param(text, marks=pytest.mark.full) for text in ("2", '{"grade": "2"}', "[]")),
        "",
    ],
)
def test_an_answer_that_is_no_grade_has_failed(server: Any, answer: str) -> None:
    found = asked(server, answer)
    assert f"the judge answered {answer!r}, which is not a grade from 1 to 3" in found.error


def test_a_plain_endpoint_answers_with_the_grade_alone(server: Any) -> None:
    assert asked(server, " 2\n", structured=False).value == 0.5
    assert "response_format" not in server.asked[0][2]
    found = asked(server, "2 of 3", "2 of 3", structured=False)
    assert "which is not a grade" in found.error


def requests(found: Outcome) -> tuple[int, int, int, int]:
    sent = found.requests
    assert sent is not None
    return sent.made, sent.again, sent.slow, sent.failed


def test_requests_are_counted_with_those_made_again(server: Any) -> None:
    assert requests(asked(server, '{"grade": 2}')) == (1, 0, 0, 0)


def test_refused_requests_are_counted(server: Any) -> None:
    assert requests(asked(server, 503, 429, '{"grade": 3}')) == (3, 2, 0, 2)


def test_a_request_without_answer_is_slow_and_failed(server: Any) -> None:
    assert requests(asked(server, None, '{"grade": 2}', timeout=0.5)) == (2, 1, 1, 1)


def test_what_fails_at_last_is_counted_too(server: Any) -> None:
    assert requests(asked(server, 500, retries=1)) == (2, 1, 0, 2)


def test_a_malformed_answer_is_asked_for_once_more(server: Any) -> None:
    found = asked(server, "four", '{"grade": 3}')
    assert (found.value, requests(found)) == (1.0, (2, 1, 0, 1))
    server.asked.clear()
    again = asked(server, "four")
    assert ("not a grade" in again.error, len(server.asked)) == (True, 2)


def test_fields_of_the_request_have_other_names_or_are_left_out(server: Any) -> None:
    more = {"rename": ["max_tokens=max_completion_tokens"], "omit": ["temperature"]}
    asked(server, '{"grade": 2}', **more)
    asked(server, '{"grade": 2}')
    fields, plain = (body.keys() - {"messages", "model"} for *_, body in server.asked)
    assert fields == {"max_completion_tokens", "response_format"}
    assert plain == {"max_tokens", "temperature", "response_format"}
    assert server.asked[0][2]["max_completion_tokens"] == 8


def test_requests_come_into_the_metrics_of_a_step() -> None:
    from forgedsl_runtime.endpoints import Score
    from forgedsl_runtime.rewards.requests import Requests
    from forgedsl_runtime.step_metrics import Meter

    meter = Meter()
    for _ in range(2):
        meter.count_score(Score(value=1.0, requests={"style": Requests(made=3, again=2, failed=1)}))
    record = meter.end_iteration()
    names = ("made", "again", "slow", "failed")
    assert [record[f"requests_{name}/style"] for name in names] == [6, 4, 0, 2]
    assert "requests_made/style" not in meter.end_iteration()


def test_a_key_that_is_not_there_is_told_at_the_start(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JUDGE_KEY")
    with pytest.raises(
        LaunchError, match="JUDGE_KEY is not set; it must hold the API key for http"
    ):
        asked(server, "2")


# ---- reward models


class Head:
    """Says these values of the tokens of an answer; keeps what it was asked."""

    def __init__(self, *values: float) -> None:
        self.values_of = list(values)
        self.asked: list[Any] = []

    async def values(self, items: list[Any]) -> list[list[float]]:
        self.asked += items
        return [self.values_of[: len(item.mask)] for item in items]


def scored(head: Head, make_job: Any, make_titan: Any, **more: Any) -> Outcome:
    liked = spec.Reward(kind="scorer", function="score", service="rm")
    job = make_job(rewards={"liked": liked}, services={"rm": make_titan()})
    scorer = Scorer("liked", job, head)  # type: ignore[arg-type]
    return asyncio.run(scorer.submit((("liked",), replace(rollout("7"), **more), None)))[0]


def test_a_reward_model_scores_by_the_last_token_that_the_policy_wrote(
    make_job: Any, make_titan: Any
) -> None:
    head = Head(1.0, -2.5, 9.0)
    more = {"token_ids": [4, 5, 6], "mask": [True, True, False]}
    assert scored(head, make_job, make_titan, **more).value == -2.5
    assert len(head.asked) == 1


@pytest.mark.parametrize(
    ("finished", "mask", "value"),
    [
        ((1.0, 2.0), [True] * 4, 4.0),
        ((2.0, 1.0), [True] * 4, 2.0),  # the first row went on after the second had ended
        ((2.0, 1.0), [True, False, True, True], 1.0),
        ((2.0, 1.0), [False, False, True, True], 4.0),
    ],
)
def test_of_several_rows_the_answer_that_was_sampled_last_is_scored(
    finished: tuple[float, float], mask: list[bool], value: float, make_job: Any, make_titan: Any
) -> None:
    answers = tuple(
        Answer(
            start=2 * at, end=2 * at + 2, text_start=0, text_end=0, versions=((0, 2),),
            started=0.0, finished=end, truncated=False,
        )
        for at, end in enumerate(finished)
    )  # fmt: skip
    more = {"token_ids": [4, 5, 6, 7], "mask": mask, "row_starts": (2,), "answers": answers}
    assert scored(Head(1.0, 2.0, 3.0, 4.0), make_job, make_titan, **more).value == value


def test_an_answer_over_the_rows_of_the_reward_model_has_failed(
    make_job: Any, make_titan: Any
) -> None:
    long = make_titan().batch.seq_len
    found = scored(Head(), make_job, make_titan, token_ids=[4] * long, mask=[True] * long)
    assert "more than batch.seq_len" in found.error
