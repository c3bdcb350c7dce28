"""Agents in the language: how a class is read, what it becomes in a job, what is refused."""

from pathlib import Path
from typing import Any

import pytest
from forge_texts import job_of

from forgedsl.agent import Agent
from forgedsl.api import load_text
from forgedsl.hir.pyclass import REWARD

AGENTS = """
import agents
import forgedsl
from forgedsl.agent import Agent as Base


class Fixer(forgedsl.Agent):
    parts = ("solved", "tidy")

    def __init__(self, *, shell: str = "bash") -> None:
        pass

    async def run(self, task, model):
        return {"solved": 1.0}


class Common(Base):
    async def run(self, task, model, *extra):
        return 1.0


class Derived(Common):
    pass


class Foreign(agents.Agent):
    async def run(self, task, model):
        return 1.0


class NoRun(Base):
    pass


class NotAsync(Base):
    def run(self, task, model):
        return 1.0


class Short(Base):
    async def run(self, task):
        return 1.0


class Long(Base):
    async def run(self, task, model, *, key):
        return 1.0


class Yields(Base):
    async def run(self, task, model):
        yield 1.0


class Static(Base):
    @staticmethod
    async def run(self, task, model):
        return 1.0


raise SystemExit("the compiler executes nothing")
"""
BODY = 'fix.Fixer(shell = "sh") { procs = 2, deadline = 60s, on_error = 0.0 }'
TEXT = f"""forge 1
import "std/rl" as rl
import python "fix.py" as fix
model policy {{ source = hf("Qwen/Qwen3-1.7B"), arch = qwen3("1.7B"), context = 4096 }}
dataset tasks {{ source = hf("a/b"), prompt = row.question, max_prompt_tokens = 512 }}
service trainer   : titan(policy) {{ batch {{ seq_len = 4096, rows = 4 }} }}
service generator : vllm(policy) {{ sampling.max_tokens = 256 }}
environment fixer = {BODY}
reward solved(r: Rollout) -> f32 = clamp(r.rewards.solved, 0.0, 1.0)
flow train {{
  prompt  = tasks.draw(16)
  rollout = generator.play(prompt, env = fixer, n = 8)
  score   = solved(rollout)
  batch   = replay(rollout, adv = rl.mean_baseline(score))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> generator
}}
schedule async {{ steps = 5, max_policy_age = 1 }}
eval held {{ dataset = tasks, env = fixer, max_turns = 3, score = solved, every = 5, limit = 8 }}
"""


def lowered(folder: Path, *edits: tuple[str, str]) -> tuple[Any, list[tuple[str, str]]]:
    """(job or None, messages of errors and warnings by code)."""
    (folder / "fix.py").write_text(AGENTS, encoding="utf-8")
    job, found = job_of(TEXT, *edits, folder=folder)
    return job, [(d.code, d.message) for d in found if d.severity in ("error", "warning")]


def test_an_agent_is_an_environment_of_the_job(tmp_path: Path) -> None:
    job, said = lowered(tmp_path)
    assert said == []
    agent = job.environments["fixer"]
    assert (agent.agent, agent.type_name, agent.args) == (True, "Fixer", {"shell": "sh"})
    assert (agent.parts, agent.deadline, agent.procs) == (("solved", "tidy"), 60.0, 2)


def test_environments_of_jobs_do_not_mention_agents() -> None:
    from forgedsl.lower.job import Environment

    assert "agent" not in Environment(type_name="E", path="", sha256="").model_dump()


def test_an_agent_that_names_no_parts_has_one(tmp_path: Path) -> None:
    edits = ('fix.Fixer(shell = "sh")', "fix.Derived"), ("rewards.solved", "rewards.reward")
    job, said = lowered(tmp_path, *edits)
    assert said == []
    assert job.environments["fixer"].parts == REWARD == Agent.parts


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoRun", "has no `async def run(self, task, model)`"),
        ("NotAsync", "has a `run` that is not async"),
        ("Short", "has `run(self, task)`, which is called with a task and a model"),
        ("Long", "has `run(self, task, model, *, key)`, which is called with a task and a model"),
        ("Yields", "has a `run` that yields; it returns the reward at its end"),
        ("Static", "has a `run` that is a static or class method"),
    ],
)
def test_a_class_whose_run_cannot_be_called_is_refused(
    tmp_path: Path, name: str, message: str
) -> None:
    _, said = lowered(tmp_path, ('fix.Fixer(shell = "sh")', f"fix.{name}"))
    ((code, text),) = said
    assert (code, text.startswith(f"agent `{name}` {message}")) == ("X802", True), text


@pytest.mark.parametrize(
    ("old", "new", "code", "message"),
    [
        ("fix.Fixer(", "fix.Fixr(", "X801", "`fix` has no environment `Fixr`"),
        ('fix.Fixer(shell = "sh")', "fix.Foreign", "X801", "`fix` has no environment `Foreign`"),
        ('shell = "sh"', "shell = 5", "F109", "`shell` of `Fixer` must be a string"),
        ('shell = "sh"', 'shel = "sh"', "F114", ""),
        (", deadline = 60s", "", "D620", "a trajectory of agent `fixer` never ends if"),
        ("procs = 2", "tool_timeout = 2s", "F113", "`tool_timeout` has no effect: Fixer is an"),
        ("procs = 2", "max_observation = 9", "F113", "`max_observation` has no effect: Fixer is"),
        (
            "r.rewards.solved",
            "r.rewards.solvd",
            "F101",
            "no environment of `rollout` has a reward part",
        ),
    ],
)
def test_mistakes_are_told_at_their_place(
    tmp_path: Path, old: str, new: str, code: str, message: str
) -> None:
    _, said = lowered(tmp_path, (old, new))
    assert [c for c, _ in said][:1] == [code], said
    assert said[0][1].startswith(message)


def test_a_setting_without_effect_is_told_where_a_command_sets_it(tmp_path: Path) -> None:
    (tmp_path / "fix.py").write_text(AGENTS, encoding="utf-8")
    given = ("fixer.max_observation=9",)
    found = load_text(TEXT, "test.forge", folder=tmp_path, overrides=given)
    assert [d.code for d in found.reporter if d.severity == "error"] == ["F113"]


def test_tools_that_nothing_reads_are_a_warning(tmp_path: Path) -> None:
    edits = ("Qwen/Qwen3-1.7B", "m/14B"), ('qwen3("1.7B")', 'phi3("14B")')
    _, said = lowered(tmp_path, *edits)
    assert ("D622", "the form in which models of `phi3` call tools is not known, but agent `fixer` "
            "would get tool calls as text") in said  # fmt: skip
