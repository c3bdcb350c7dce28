"""An agent with the client of OpenAI on real meshes, and the same game played as an environment.

The endpoint gives the policy's own tokens: with equal weights the ratio of every token is 1, and
both runs train on the same batches, bit for bit, since their turns have the same seeds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tolerance
import torch
from shipped_game import lines, played

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]
STEPS = 3
AGENT = '''
import re

from openai import AsyncOpenAI

from forgedsl import Agent

ANSWER = re.compile(r"<answer>(\\d{1,4})</answer>")


class Guesser(Agent):
    """`Guess` of pipelines/environments/sums.py as an agent."""

    parts = ("solved", "early")

    def __init__(self, *, guesses: int = 4) -> None:
        self.guesses = guesses

    async def run(self, task, model):
        said = [dict(message) for message in task.messages]
        async with AsyncOpenAI(base_url=model.url, api_key=model.key) as client:
            for turn in range(self.guesses):
                done = await client.chat.completions.create(model=model.name, messages=said)
                choice = done.choices[0]
                if choice.finish_reason == "length":
                    break
                found = ANSWER.search(choice.message.content)
                if found is not None and found[1] == task.target:
                    left = (self.guesses - turn - 1) / max(1, self.guesses - 1)
                    return {"solved": 1.0, "early": left}
                hint = "?" if found is None else "+" if int(found[1]) < int(task.target) else "-"
                answer = {"role": "assistant", "content": choice.message.content}
                said += [answer, {"role": "user", "content": hint + task.text}]
'''
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{% endif %}"
)
PROGRAM = """
import json, os, re, urllib.request

task = json.load(open(os.environ["FORGE_TASK"]))
said, left, headers = task["messages"], {}, {
    "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json",
}
for turn in range(3):
    body = json.dumps({"model": os.environ["FORGE_MODEL"], "messages": said}).encode()
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        (choice,) = json.load(answer)["choices"]
    if choice["finish_reason"] == "length":
        break
    text = choice["message"]["content"]
    found = re.search(r"<answer>(\\d{1,4})</answer>", text)
    if found is not None and found[1] == task["target"]:
        left = {"solved": 1.0, "early": (2 - turn) / 2}
        break
    hint = "?" if found is None else "+" if int(found[1]) < int(task["target"]) else "-"
    said.append({"role": "assistant", "content": text})
    said.append({"role": "user", "content": hint + task["text"]})
print(json.dumps(left))
"""
"""`Guesser` as a program that needs nothing but Python"""
CHATS = (
    ("f32, context = 256", f'f32, context = 256, chat_template = "{TEMPLATE}"'),
    ("prompt = row.question", "prompt = chat(user = row.question)"),
    ("async { steps = 60, max_policy_age = 1 }", "sync { steps = 60 }"),
)
AS_AGENT = (
    *CHATS,
    ("sums.Guess(", "sums.Guesser("),
    ("tool_timeout = 5s, max_observation = 9", "deadline = 60s"),
)
AS_PROGRAM = (
    *CHATS,
    ('import python "environments/sums.py" as sums\n', ""),
    (
        "sums.Guess(guesses = guesses)",
        f'program(["{sys.executable}", "environments/sums.py"], parts = ["solved", "early"])',
    ),
    ("tool_timeout = 5s, max_observation = 9", "deadline = 60s"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agent")
    return played(folder, steps=STEPS, edits=AS_AGENT, environment=lambda source: AGENT)


def batches(run: Path) -> list[dict[str, Any]]:
    found = [json.loads((run / f"batches/step-{k + 1}.json").read_text()) for k in range(STEPS)]
    return [each["batch"] for each in found]


def test_the_trainer_scores_what_the_engine_sampled(run: Path) -> None:
    steps = lines(run / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2, 3]
    first = steps[0]
    assert first["age_max"] == 0
    near = tolerance.near(torch.float32, tolerance.of_shipped("tiny_math", 256, first["tokens"]))
    assert first["loss/ratio"] == pytest.approx(1.0, **near)


def test_the_same_game_as_an_environment_gives_the_same_batches(
    run: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = played(tmp_path_factory.mktemp("environment"), steps=STEPS, edits=CHATS)
    mine, theirs = batches(run), batches(other)
    turns = [sample["turns"] for sample in lines(run / "samples.jsonl")]
    assert max(turns) > 1
    assert [b["samples"] for b in mine] == [b["samples"] for b in theirs]


def test_the_same_agent_as_a_program_gives_the_same_batches(
    run: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("program")
    other = played(folder, steps=STEPS, edits=AS_PROGRAM, environment=lambda source: PROGRAM)
    assert [b["samples"] for b in batches(run)] == [b["samples"] for b in batches(other)]
    printed = "".join(log.read_text("utf-8", "replace") for log in (other / "logs").rglob("*.log"))
    assert '] {"solved": 1.0' in printed
