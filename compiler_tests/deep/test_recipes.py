"""The recipes of other projects in docs/guide train as they stand there, for three steps.

A tiny model on this CPU and a few rows take the place of theirs. FORGE_DEEP=1 runs them, one to two
minutes each on two cores; that they lint and plan is a test of the guide.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(os.environ.get("FORGE_DEEP") != "1", reason="minutes; FORGE_DEEP=1"),
    pytest.mark.timeout(900),
]
GUIDE = Path(__file__).parents[2] / "docs/guide"
BLOCK = re.compile(r"^```(\w+) (\S+)\n(.*?)^```$", re.S | re.M)
NAMES = ["Ana Chardin", "Bob Beck", "Carl Dunn", "Dora Ek", "Eva Fo", "Gil Hu", "Ida Jo"]
ROWS = [
    {
        "question": f"{i}+1=", "answer": ("yes", "no")[i % 2] if i % 3 else f"#### {i + 1}",
        "golden_answers": [str(i + 1)], "names": NAMES[i % 5 :] + NAMES[: i % 5],
        "instruction": f"{i}+1=", "input": "add" * (i % 2), "output": f"{i + 1}",
    }
    for i in range(72)
]  # fmt: skip
TRAINED = (
    'policy.source=local("forgedsl:models/tiny_math")', "policy.arch=auto", "policy.dtype=f32",
    "policy.context=256", "trainer.device=cpu", "trainer.procs=1", "trainer.batch.seq_len=250",
    "trainer.batch.rows=8",
)  # fmt: skip
SAMPLED = ("generator.device=cpu", "generator.parallel.tp=1", "generator.sampling.max_tokens=24")
ROWS_FILE, SHORT = 'source=jsonl("rows.jsonl")', "max_prompt_tokens=96"
RECIPES = {
    "alphabet_sort": (f"authors.{ROWS_FILE}", "trainer.parallel.tp=1", "names.max_observation=30"),
    "search_r1": (f"questions.{ROWS_FILE}", f"questions.{SHORT}", "web.max_observation=30",
                  'questions.system="say"'),
    "blackjack": (f"hands.{SHORT}", "reference.device=cpu", "table.max_observation=12"),
    "grpo_agent": (f"questions.{ROWS_FILE}", f"questions.{SHORT}", "biogrid.max_observation=30",
                   'questions.system="say"'),
    "from-torchforge": (f"gsm8k.{ROWS_FILE}", f"gsm8k.{SHORT}", "gsm8k.streaming=false",
                        'gsm8k.system="say"', "reference.device=cpu"),
    "sft": (f"alpaca.{ROWS_FILE}",),
    "from-trl": (f"gsm8k.{ROWS_FILE}", "generator.replicas=1"),
    "from-verl": (f"gsm8k.{ROWS_FILE}", f"gsm8k.{SHORT}", "schedule.epochs=none",
                  "held_out.every=9"),
}  # fmt: skip
PAGES = {"sft": "from-torchforge"}
SMALLER = (
    (r"^logging .*\n", ""),
    (r"draw\((?:32|1024)\)", "draw(4)"),
    (r'split = "test"', 'source = jsonl("held.jsonl")'),
)
"""no account there, fewer rows, of a file that has no splits"""


def write(folder: Path, name: str) -> Path:
    """The files of a recipe, from its page; the program."""
    page = GUIDE / f"{PAGES.get(name, name if name.startswith('from-') else 'agents')}.md"
    for language, path, text in BLOCK.findall(page.read_text("utf-8")):
        if language == "python" and "/" in path:
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        elif path == ("alone" if name == page.stem else f"{name}.forge") and "\nflow " in text:
            for theirs, ours in SMALLER:
                text = re.sub(theirs, ours, text, flags=re.M)
            (folder / f"{name}.forge").write_text(text)
    return folder / f"{name}.forge"


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains(name: str, tmp_path: Path) -> None:
    for file, rows in (("rows", ROWS[8:]), ("held", ROWS[:8])):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{file}.jsonl").write_text(lines)
    program = write(tmp_path, name)
    command = ["run", program.name, "--run-dir", "run", "--set", "schedule.steps=3", *TRAINED]
    command += [*(SAMPLED if "vllm(" in program.read_text() else ()), *RECIPES[name]]
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", *command],
        cwd=tmp_path, capture_output=True, text=True, timeout=870, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in found] == [1, 2, 3]
    assert all(row["loss"] == row["loss"] for row in found)
