"""Pairs of a wrong program and its right twin that differ in a few lines of one file.

## what is wrong
a Python file, or the prompt of a judge
~~~
- text of it                       replaced by the `+ ` lines after it: the right twin
+ other text
### forge                          edits of the .forge file of both programs
"""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from forgedsl.cli.data_checks import InputChecker
from forgedsl.lint.engine import Deep, lint_file
from forgedsl.sizes.hosts import Host

FOLDER = Path(__file__).parent
EDIT = re.compile(r"((?:^-(?: .*)?\n)+)((?:^\+(?: .*)?\n)*)", re.M)
PLAYED = """environment game = code.Game { SETTINGS, on_error = 0.0 }
reward solved(r: Rollout) -> f32 = clamp(r.rewards.solved, 0.0, 1.0)
rubric grade { score = solved, on_truncated = 0.0 }"""
SCORED = """reward right = code.right
rubric grade { score = right, on_truncated = 0.0, on_error = drop }"""
JUDGED = """model grader {
  source = hf("Qwen/Qwen3-4B-Instruct-2507"), dtype = bf16, context = 8192
}
service judge : vllm(grader) { replicas = 1 }
reward liked = judge.score(prompt = JUDGE, scale = [1, 5])
rubric grade { score = liked, on_truncated = 0.0 }"""
PLAY = "generator.play(prompt, env = game, n = 8, max_turns = 4)"
KINDS = {
    "rewards": (SCORED, "generator.sample(prompt, n = 8)"),
    "judges": (JUDGED, "generator.sample(prompt, n = 8)"),
    "environments": (PLAYED.replace("SETTINGS", "tool_timeout = 10s, max_observation = 256"), PLAY),
    "agents": (PLAYED.replace("SETTINGS", "deadline = 120s"), PLAY),
}


@dataclass(frozen=True)
class Pair:
    """`wrong` and `right`: the text that differs; `forge`: the file beside it; `code`: the finding
    that is wanted, "open" if nothing tells the mistake."""

    kind: str
    name: str
    code: str
    is_deep: bool
    wrong: str
    right: str
    forge: str


def pairs():
    return [pair for kind in KINDS for pair in _of(kind)]


def _of(kind):
    for section in (FOLDER / f"{kind}.txt").read_text("utf-8").split("\n## "):
        head, _, body = section.removeprefix("## ").partition("\n")
        mark, _, name = head.partition(": ")
        code, _, how = mark.partition(" ")
        wrong, _, edits = body.partition("~~~\n")
        here, _, forge = edits.partition("### forge\n")
        right = _edited(wrong, here, name)
        yield Pair(kind, name, code, how == "deep", wrong, right, _forge(kind, forge, name))


def _forge(kind, edits, name):
    rewards, rollout = KINDS[kind]
    head = "" if kind == "judges" else 'import python "code.py" as code'
    text = (FOLDER / "common.forge").read_text("utf-8")
    replicas = "3" if kind == "judges" else "4"
    for old, new in (("HEAD", head), ("REWARDS", rewards), ("ROLLOUT", rollout)):
        text = text.replace(old, new, 1)
    return _edited(text.replace("REPLICAS", replicas), edits, name)


def _edited(text, edits, name):
    for edit in EDIT.findall(edits.rstrip("\n") + "\n"):
        old, new = (re.sub(r"^[-+] ?", "", side, flags=re.M) for side in edit)
        assert old.strip("\n") in text, f"{name}: {old}"
        text = text.replace(old.strip("\n"), new.strip("\n"))
    return text


def codes(pair, text, folder, is_deep=False):
    """Codes of everything but information."""
    forge = pair.forge.replace("JUDGE", f'"""\n{textwrap.indent(text, "  ")}  """')
    (folder / "code.py").write_text(text, "utf-8")
    (folder / "t.forge").write_text(forge, "utf-8")
    (folder / "tasks.jsonl").write_bytes((FOLDER / "tasks.jsonl").read_bytes())
    checker = InputChecker()
    deep = Deep(host=Host(), outside=checker, calls=checker.calls) if is_deep else None
    found = lint_file(folder / "t.forge", deep=deep).diagnostics
    return {d.code: d.message for d in found if d.severity != "info"}
