"""`gymnasium(...)` in the language: names, arguments and spaces are those of the installed package,
which is read and not imported."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from forge_texts import job_of

from forgedsl.api import load_text
from forgedsl.hir.gymnasium_registry import described, registered
from forgedsl.lower import job as spec
from forgedsl.lower.build import lower
from forgedsl.lower.lock import lock_text

pytest.importorskip("gymnasium")

GAME = 'environment game = gymnasium("FrozenLake-v1")'
TEXT = f"""forge 1
import "std/rl" as rl
model policy {{ source = hf("Qwen/Qwen3-1.7B"), arch = qwen3("1.7B"), context = 4096 }}
dataset tasks {{ source = hf("a/b"), prompt = chat(user = row.question), max_prompt_tokens = 512 }}
service trainer   : titan(policy) {{ batch {{ seq_len = 4096, rows = 4 }} }}
service generator : vllm(policy) {{ sampling.max_tokens = 256 }}
{GAME}
reward won(r: Rollout) -> f32 = clamp(r.rewards.reward - 0.1 * r.rewards.invalid, -1.0, 1.0)
rubric grade {{ score = won, on_truncated = -1.0 }}
flow train {{
  prompt  = tasks.draw(16)
  rollout = generator.play(prompt, env = game, n = 8, max_turns = 4)
  score   = grade(rollout)
  batch   = replay(rollout, adv = rl.mean_baseline(score))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> generator
}}
schedule async {{ steps = 5, max_policy_age = 1 }}
"""
MAZE = """
import gymnasium
from gymnasium import spaces


class Maze(gymnasium.Env):
    metadata = {"render_modes": []}
    observation_space = spaces.Dict({"room": spaces.Discrete(9), "said": spaces.Text(80)})
    action_space = spaces.Text(40)

    def __init__(self, *, doors: int = 2, render_mode: str | None = None) -> None:
        self.doors = doors


gymnasium.register("Maze-v0", entry_point=Maze)
gymnasium.register(id="Dark-v0", entry_point="maze:Maze")
"""


def lowered(folder: Path, call: str) -> tuple[spec.Job | None, list[tuple[str, str, str]]]:
    """(job or None, (code, message, help) of each error) with `gymnasium(CALL)`."""
    (folder / "envs").mkdir(exist_ok=True)
    (folder / "envs/maze.py").write_text(MAZE, "utf-8")
    (folder / "envs/broken.py").write_text("import (\n", "utf-8")
    (folder / "envs/latin.py").write_bytes(b"# \xff\n")
    job, found = job_of(TEXT, ('"FrozenLake-v1"', call), folder=folder)
    return job, [(d.code, d.message, d.help) for d in found if d.severity == "error"]


def test_an_environment_of_the_package_is_part_of_the_job_with_its_version(tmp_path: Path) -> None:
    job, said = lowered(tmp_path, '"FrozenLake-v1", is_slippery = false, desc = ["SG"]')
    assert said == []
    assert job is not None
    game = job.environments["game"]
    assert (game.type_name, game.path, game.gymnasium) == ("gymnasium", "", True)
    options = {"is_slippery": False, "desc": ["SG"]}
    assert game.args == {"id": "FrozenLake-v1", "options": options}
    assert game.parts == ("reward", "invalid")
    assert game.packages == {"gymnasium": metadata.version("gymnasium")}
    assert f'gymnasium = "{metadata.version("gymnasium")}"' in lock_text(job)


def test_a_file_beside_registers_an_environment_and_is_a_file_of_the_job(tmp_path: Path) -> None:
    call = '"envs/maze.py:Maze-v0", doors = 3, observation = "{room}: {said}"'
    job, said = lowered(tmp_path, call)
    assert said == []
    assert job is not None
    game = job.environments["game"]
    assert (game.path, game.args["id"]) == ("inputs/envs/maze.py", "Maze-v0")
    assert game.sha256 == hashlib.sha256(MAZE.encode()).hexdigest()
    assert [*game.packages] == ["gymnasium"]


def test_other_environments_have_no_new_field() -> None:
    given = {"type_name": "A", "path": "a.py", "sha256": "", "agent": True}
    assert "gymnasium" not in spec.Environment(**given).model_dump()


WRONG = [
    ("", "F114", "needs the name of an environment as its first", 'gymnasium("FrozenLake-v1")'),
    ('"FrozenLake-v0"', "F101", "has no environment `FrozenLake-v0`", "mean `FrozenLake-v1`?"),
    ('"FrozenLake"', "F101", "has no environment `FrozenLake`", "mean `FrozenLake-v1`?"),
    ('"Taxy-v4"', "F101", "has no environment `Taxy-v4`", "mean `Taxi-v4`?"),
    ('"Taxi-v4", is_rany = true', "F114", "no parameter `is_rany`", "mean `is_rainy`?"),
    ('"Taxi-v4", is_rainy = 3', "F109", "`is_rainy` of `gymnasium` must be true or false", ""),
    ('"Taxi-v4", render_mode = "ansi"', "F114", "no parameter `render_mode`", "a run chooses"),
    ('"CartPole-v1"', "F113", "observations of `CartPole-v1` are of Box", "class `Environment`"),
    ('"Pusher-v5"', "F113", "observations of `Pusher-v5` are of Box", "class `Environment`"),
    ('"Taxi-v4", actions = ["n"]', "F113", "names 1 action, but there are 6", "in the order"),
    ('"Blackjack-v1", actions = ["A", "a"]', "F113", "must be different names", "in the order"),
    ('"Taxi-v4", observation = "{rendr}"', "F113", "no `{rendr}`", "mean `render`?"),
    ('"Blackjack-v1", observation = "{3}"', "F113", "no `{3}`", "known are `{observation}`"),
    ('"envs/maxe.py:Maze-v0"', "F115", "cannot read `envs/maxe.py`: no such",
     "mean `envs/maze.py`?"),
    ('"envs/broken.py:Maze-v0"', "F115", "is not valid Python (line 1: ", ""),
    ('"envs/latin.py:Maze-v0"', "F115", "`envs/latin.py` is not UTF-8", ""),
    ('"/envs/maze.py:Maze-v0"', "F115", "relative to the .forge file", ""),
    ('"envs/maze.py"', "F113", "does not end with the name", 'gymnasium("envs/maze.py:NAME")'),
    ('"envs/maze.py:"', "F113", "does not end with the name", 'gymnasium("FrozenLake-v1")'),
    ('""', "F113", "does not end with the name", 'gymnasium("FrozenLake-v1")'),
    ("3", "F109", "`id` of `gymnasium` must be a string", '`"3"`'),
    ('"Nothing-v1"', "F101", "has no environment `Nothing-v1`", "pprint_registry"),
    ('"envs/maze.py:Other-v1"', "F101", "no environment `Other-v1`", "`Maze-v0`, `Dark-v0`"),
    ('"Taxi-v4", observation = ""', "F113", "`observation` of `gymnasium` is empty", "{message}"),
    ('"envs/maze.py:Maz-v0"', "F101", "registers no environment `Maz-v0`", "mean `Maze-v0`?"),
    ('"envs/maze.py:Maze-v0", door = 3', "F114", "no parameter `door`", "mean `doors`?"),
    ('"envs/maze.py:Dark-v0", door = 3', "F114", "no parameter `door`", "mean `doors`?"),
    ('"envs/maze.py:Maze-v0", actions = ["a"]', "F113", "any text is an action", ""),
    ('"envs/maze.py:Maze-v0", observation = "{rom}"', "F113", "no `{rom}`", "mean `room`?"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "code", "message", "help_text"), WRONG)
def test_what_cannot_be_played_is_refused(
    call: str, code: str, message: str, help_text: str, tmp_path: Path
) -> None:
    job, said = lowered(tmp_path, call)
    assert job is None
    ((found, told, helped),) = said
    assert found == code
    assert message in told
    assert help_text in helped


def test_the_fix_of_a_name_changes_the_name_alone(tmp_path: Path) -> None:
    """A name that is written with an escape is not changed."""
    for call, fixed in (('"Taxy-v4"', '"Taxi-v4"'), ('"Taxi-v4\\n"', None)):
        text = TEXT.replace('"FrozenLake-v1"', call)
        (told,) = (d for d in load_text(text, "t.forge", folder=tmp_path).reporter)
        if fixed is None:
            assert told.fix is None
            continue
        assert told.fix is not None
        (edit,) = told.fix.edits
        after = text[: edit.span.start] + edit.text + text[edit.span.end :]
        assert after == text.replace(call, fixed)


def test_the_newest_of_many_versions_is_proposed(tmp_path: Path) -> None:
    text = "import gymnasium\n" + "".join(
        f'gymnasium.register("Maze-v{number}", entry_point="maze:Maze")\n' for number in range(12)
    )
    (tmp_path / "maze.py").write_text(text, "utf-8")
    text = TEXT.replace("FrozenLake-v1", "maze.py:Maze-v99")
    (told,) = (d for d in load_text(text, "t.forge", folder=tmp_path).reporter)
    assert told.help == "did you mean `Maze-v11`?"


def test_a_part_that_gymnasium_does_not_give_is_told(tmp_path: Path) -> None:
    text = TEXT.replace("r.rewards.invalid", "r.rewards.invald")
    found = load_text(text, "t.forge", folder=tmp_path)
    lower(found.program, reporter=found.reporter, sources=found.sources, base_dir=tmp_path)
    (told,) = (d for d in found.reporter if d.severity == "error")
    assert (told.code, "did you mean `invalid`?" in told.help) == ("F101", True)


def test_the_package_is_read_and_agrees_with_what_it_registers() -> None:
    """In a process of its own: nothing has imported gymnasium before."""
    script = """
import sys
from forgedsl.hir.gymnasium_registry import described, registered
read = {name: described(entry) for name, entry in registered().items()}
assert "gymnasium" not in sys.modules
import gymnasium
assert {*read} == {*gymnasium.registry}, {*read} ^ {*gymnasium.registry}
for name in ("FrozenLake-v1", "Taxi-v4", "CliffWalking-v1", "Blackjack-v1", "CartPole-v1"):
    made, found = gymnasium.make(name), read[name]
    assert type(made.observation_space).__name__ == found.observation.name, name
    assert int(made.action_space.n) == found.action.size, name
    assert tuple(made.metadata["render_modes"]) == found.modes, name
print(len(read))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 40


def test_a_space_that_depends_on_arguments_is_left_to_the_run(tmp_path: Path) -> None:
    text = MAZE.replace(
        "        self.doors = doors\n",
        "        self.observation_space = spaces.Box(0, 1) if doors else spaces.Discrete(3)\n",
    )
    file = tmp_path / "maze.py"
    file.write_text(text, "utf-8")
    known = registered(file=file)
    assert known is not None
    assert described(known["Maze-v0"]).observation is None
    for broken in ("import (", "\0", ""):
        file.write_text(broken, "utf-8")
        assert not registered(file=file)
    assert registered("no_such_package_here") is None
