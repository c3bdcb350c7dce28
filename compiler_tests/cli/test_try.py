"""`forgec try`: the exported policy of a run answers, and the model it began with beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forge_commands import CliRunner

import forgedsl
from forgedsl.cli.app import app
from forgedsl.cli.chat import Talk
from forgedsl.lower.job import Sampling
from forgedsl.shipped import shipped_root

GRPO = Path(__file__).parents[2] / "pipelines" / "grpo_math.forge"
TINY = shipped_root() / "models/tiny_math"


@pytest.fixture(scope="module")
def run(tmp_path_factory: Any) -> Path:
    """A run folder whose export is the model that it began with."""
    folder = tmp_path_factory.mktemp("run")
    job = forgedsl.load(GRPO, profile="cpu").plan().job
    (folder / "job.json").write_text(job.model_dump_json())
    (folder / "exports").mkdir()
    (folder / "exports/step-4").symlink_to(TINY)
    (folder / "exports/step-6-adapter").mkdir()  # as `forgec export --adapter` writes it
    return folder


def invoke(*words: object, input: str = "") -> Any:
    return CliRunner().invoke(app, ["try", *(str(word) for word in words)], input=input)


def test_a_prompt_is_answered_by_the_policy_and_by_the_base(run: Path) -> None:
    words = (run, "--prompt", "12+30=", "--temperature", "0")
    alone = invoke(*words)
    assert (alone.exit_code, alone.stderr) == (0, "")
    both = invoke(*words, "--against", "base").stdout
    assert both == f"--- policy\n{alone.stdout}--- base\n{alone.stdout}"
    assert any(digit in alone.stdout for digit in "0123456789")


def test_lines_of_standard_input_are_asked_one_by_one(run: Path) -> None:
    done = invoke(run, "--temperature", "0", "--max-tokens", "8", input="1+1=\n2+2=\n\n3+3=\n")
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 2)


def test_text_that_the_tokenizer_does_not_know_is_told(run: Path) -> None:
    done = invoke(run, "--prompt", "12Z+30=", "--temperature", "0")
    assert 'note: the tokenizer of policy does not know "Z": the model reads' in done.stderr


def test_an_empty_prompt_is_refused(run: Path) -> None:
    done = invoke(run, "--prompt", "")
    assert (done.exit_code, "--prompt is empty" in done.stderr) == (2, True)


class Echo:
    """A model that says how many messages it saw; it stands in for one that is slow to load."""

    def __init__(self, *, chats: bool) -> None:
        self.chats = chats
        self.seen: list[Any] = []

    def unknown_text(self, prompt: str) -> str:
        return ""

    def answer(self, prompt: Any, sampling: Sampling, **_: Any) -> str:
        self.seen.append(prompt)
        return f"answer {len(self.seen)}"


def test_a_chat_remembers_and_forgets() -> None:
    model = Echo(chats=True)
    talk = Talk({"policy": model}, Sampling(max_tokens=4), system="Be brief.")
    talk.say("one")
    talk.say("two")
    said = [message["content"] for message in model.seen[1]]
    assert said == ["Be brief.", "one", "answer 1", "two"]
    talk.forget()
    talk.say("three")
    assert [message["content"] for message in model.seen[2]] == ["Be brief.", "three"]


class Stopped(Echo):
    """Ctrl-C comes during its second answer."""

    def answer(self, prompt: Any, sampling: Sampling, **more: Any) -> str:
        if len(self.seen) == 1:
            self.seen.append(prompt)
            raise KeyboardInterrupt
        return super().answer(prompt, sampling, **more)


def test_an_answer_that_is_stopped_leaves_nothing_in_any_chat() -> None:
    """The first model has answered when the second is stopped."""
    first, second = Echo(chats=True), Stopped(chats=True)
    talk = Talk({"policy": first, "base": second}, Sampling(max_tokens=4))
    talk.say("one")
    with pytest.raises(KeyboardInterrupt):
        talk.say("two")
    talk.say("three")
    for model in (first, second):
        said = [message["content"] for message in model.seen[-1]]
        assert said == ["one", "answer 1", "three"]


def test_without_a_template_text_is_continued() -> None:
    for model, plain in ((Echo(chats=False), False), (Echo(chats=True), True)):
        Talk({"policy": model}, Sampling(max_tokens=4), plain=plain).say("one")
        assert model.seen == ["one"]


def test_what_cannot_be_asked_is_told(run: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "job.json").write_text((run / "job.json").read_text())
    told = {
        (bare,): f"{bare} has no export, and no checkpoint to make one from",
        (run, "--step", "9"): "has no export of step 9, and no checkpoint",
        (TINY, "--against", "base"): "--against base needs a run folder",
        (run, "--temperature", "-1"): "--temperature must be at least 0",
        (tmp_path,): "is not a run folder",
    }
    for words, text in told.items():
        done = invoke(*words)
        assert (done.exit_code, text in done.stderr) == (2, True), done.stderr
    (bare / "checkpoints/step-2").mkdir(parents=True)
    (bare / "checkpoints/step-2/controller.json").write_text("{}")
    assert f"has no export; make it: forgec export {bare}" in invoke(bare).stderr
