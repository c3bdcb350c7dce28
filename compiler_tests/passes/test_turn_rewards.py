"""`rollout.rewards.NAME` in a flow: rewards of single turns, over the tokens of a play."""

from pathlib import Path

import pytest

import forgedsl.pipelines
from forgedsl.api import load_text
from forgedsl.lower.build import lower
from forgedsl_runtime.group import Dropped, _attribute

FOLDER = Path(forgedsl.pipelines.__file__).parent
TEXT = (FOLDER / "guess_math.forge").read_text()
AT_THE_END = "adv = rl.group_norm(score)"
BY_TURN = "adv = rl.turn_returns(rollout.rewards.solved, rollout.mask)"


def lowered(text):
    loaded = load_text(text, "g.forge", folder=FOLDER)
    made = None
    if loaded.program is not None and not loaded.reporter.has_errors:
        made = lower(loaded.program, reporter=loaded.reporter, sources=loaded.sources,
                     base_dir=FOLDER)  # fmt: skip
    return made, [(d.code, d.message, d.help) for d in loaded.reporter if d.severity == "error"]


def test_an_advantage_reads_them_once_a_step():
    made, problems = lowered(TEXT.replace(AT_THE_END, BY_TURN))
    assert problems == []
    call = next(node for node in made.job.nodes if node.op == "call")
    assert call.level == "batch"
    assert [i.attribute for i in call.inputs] == ["rewards.solved", "mask"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rewards.solved", "rewards.found", "rollouts have no attribute `rewards.found`"),
        ("rollout.rewards.solved", "prompt.rewards.solved",
         "prompts have no attribute `rewards.solved`"),
        ("generator.play(prompt, env = game, n = group, max_turns = guesses)",
         "generator.sample(prompt, n = group)", "rollouts have no attribute `rewards.solved`"),
    ],
)  # fmt: skip
def test_only_what_the_environment_gives_can_be_read(old, new, message):
    text = TEXT.replace(AT_THE_END, BY_TURN).replace("clamp(r.rewards.solved, 0.0, 1.0)", "0.0")
    _, problems = lowered(text.replace(old, new).replace("clamp(r.rewards.early", "clamp(0.0"))
    assert ("F101", message) in [problem[:2] for problem in problems]


@pytest.mark.parametrize(
    ("new", "declared"),
    [("adv = rl.group_norm(rollout.rewards.solved)", "`r` is declared [G]"),
     ("adv = rollout.rewards.solved", "`adv` is declared [B]")],
)  # fmt: skip
def test_they_are_no_numbers_of_a_sequence(new, declared):
    _, problems = lowered(TEXT.replace(AT_THE_END, new))
    assert [p[:2] for p in problems] == [
        ("T701", f"{declared}, but `rollout.rewards.solved` is [B, T]")
    ]


def test_a_dropped_trajectory_stays_dropped():
    made, _ = lowered(TEXT.replace(AT_THE_END, BY_TURN))
    read = next(node for node in made.job.nodes if node.op == "call").inputs[0]
    dead = Dropped("sample generator")
    assert _attribute(dead, read) is dead
