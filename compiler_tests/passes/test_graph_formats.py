"""Every view in every format: the 24 that `forgec graph` offers, and what other tools will read."""

import itertools
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from forge_commands import CliRunner

from forgedsl.cli.app import app
from forgedsl.cli.graph import Format, View, drawing_of

PIPELINES = Path(__file__).parents[2] / "pipelines"
CASES = [("grpo_math", "cluster"), ("grpo_math", "gpu1"), ("sft_math", "none")]


@pytest.fixture(scope="module")
def drawings():
    return {
        (name, profile): drawing_of(PIPELINES / f"{name}.forge", profile=profile, overrides=())
        for name, profile in CASES
    }


@pytest.mark.parametrize("case", CASES, ids="-".join)
@pytest.mark.parametrize(("view", "format_"), list(itertools.product(View, Format)))
def test_every_view_in_every_format(drawings, case, view, format_):
    text = drawings[case].render(view, format_)
    name, profile = case
    again = drawing_of(PIPELINES / f"{name}.forge", profile=profile, overrides=())
    assert again.render(view, format_) == text
    assert text.endswith("\n")
    CHECKS[format_](text)


def is_dot(text):
    assert text.startswith("digraph ")
    assert text.count("{") == text.count("}")
    boxes = set(re.findall(r'^ +("(?:[^"\\]|\\.)*") \[label', text, re.MULTILINE))
    for ends in re.findall(r'^ +("[^"]*") -> ("[^"]*")', text, re.MULTILINE):
        assert boxes.issuperset(ends)


def is_mermaid(text):
    first, *lines = text.splitlines()
    if first == "gantt":
        tasks = [re.fullmatch(r"  [\w.]+ \d+ :(\d+), (\d+)", x) for x in lines if " :" in x]
        assert tasks
        assert all(task and int(task[1]) <= int(task[2]) for task in tasks)
        return
    assert first == "flowchart LR"
    boxes = set(re.findall(r"^ +(n\d+_\w+)\[", text, re.MULTILINE))
    for line in lines:
        if "-->" in line or ".->" in line:
            assert boxes.issuperset((line.split()[0], line.split()[-1])), line


def is_svg(text):
    assert ET.fromstring(text).tag.endswith("svg")


def is_html(text):
    assert text.startswith("<!doctype html>")
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", text)


CHECKS = {
    Format.TEXT: lambda text: None,
    Format.JSON: json.loads,
    Format.DOT: is_dot,
    Format.MERMAID: is_mermaid,
    Format.SVG: is_svg,
    Format.HTML: is_html,
}


def test_a_mesh_shows_every_process_and_where_weights_go(drawings):
    text = drawings["grpo_math", "cluster"].render("mesh", "dot")
    assert text.count("subgraph") == 4
    assert len(re.findall(r'label="trainer \d+, reference \d+\\nGPU', text)) == 16
    assert len(re.findall(r"weights: every step, overlapped, age <= 1", text)) == 8


def test_a_schedule_releases_steps_by_weights(drawings):
    text = drawings["grpo_math", "cluster"].render("schedule", "dot")
    assert '"schedule/sync/1" -> "schedule/rollout/3" [label="weights: after step 1"' in text
    sync = drawings["grpo_math", "gpu1"].render("schedule", "dot")
    assert '"schedule/sync/1" -> "schedule/rollout/2"' in sync


def test_the_command_writes_a_file(tmp_path):
    out = tmp_path / "mesh.mmd"
    words = ["graph", str(PIPELINES / "grpo_math.forge"), "--view", "mesh", "--format", "mermaid"]
    done = CliRunner().invoke(app, [*words, "-o", str(out), "--host", "1xH200"])
    assert done.exit_code == 0, done.output
    is_mermaid(out.read_text())
