"""An editor keeps facts of losses from text to text: its findings are those of a new compiler."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forgedsl.ide.workspace import Workspace

DEEP = os.environ.get("FORGE_DEEP") == "1"
PIPELINES = Path(__file__).parents[2] / "pipelines"
FILES = ("grpo_math", "distill_math")
WORD = re.compile(r"\w[\w.]*|[-+*}]")
LIKE = (
    ("+", "-", "*"),
    ("0.0", "1.0", "10.0", "999.0", "1e-6"),
    ("adv", "mask", "logprob", "behavior", "ref", "ratio", "pg", "kl", "stop(logprob)"),
)
"""words to type in place of each other"""


def places(text):
    """The words of a loss that another word can replace: (start, word, the others)."""
    begin = text.index("\nloss ")
    begin = text.index("\n) {", begin)
    for word in WORD.finditer(re.sub(r"#.*", lambda m: "#" * len(m[0]), text), begin):
        if word[0] in "}":
            return
        for alike in LIKE:
            if word[0] in alike:
                yield word.start(), word[0], alike


@st.composite
def edits(draw):
    """A file, and texts that differ from the one before by a word of a loss."""
    name = draw(st.sampled_from(FILES))
    text = (PIPELINES / f"{name}.forge").read_text("utf-8")
    texts = [text]
    for _ in range(draw(st.integers(1, 4))):
        start, word, alike = draw(st.sampled_from([*places(text)]))
        new = draw(st.sampled_from(alike))
        text = text[:start] + new + text[start + len(word) :]
        texts.append(text)
    return PIPELINES / f"{name}.forge", texts


def findings(workspace, path, text):
    workspace.open(path, text)
    return workspace.document(path).findings


@settings(max_examples=100 if DEEP else 6, deadline=None, suppress_health_check=list(HealthCheck))
@given(edits())
def test_findings_after_edits_are_those_of_a_new_compiler(edited):
    path, texts = edited
    editor = Workspace()
    for text in texts:
        assert findings(editor, path, text) == findings(Workspace(), path, text)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("-10.0, 10.0)", "-10.0, 999.0)", "L405"),
        ("1 - eps, 1 + eps", "1 - eps, 1 + 40", "L424"),
        ("pg + beta * kl", "pg - beta * kl", "L420"),
        ("rl.k3(logprob, ref)", "rl.k3(ref, logprob)", "L420"),
    ],
)
def test_a_mistake_typed_into_a_loss_is_found_and_goes_again(old, new, code):
    path = PIPELINES / "grpo_math.forge"
    text = path.read_text("utf-8")
    editor = Workspace()
    assert findings(editor, path, text) == ()
    found = findings(editor, path, text.replace(old, new))
    assert code in {finding.code for finding in found}
    assert findings(editor, path, text) == ()


def test_facts_of_losses_are_kept_and_not_for_ever():
    path = PIPELINES / "grpo_math.forge"
    text = path.read_text("utf-8")
    editor = Workspace()
    findings(editor, path, text)
    kept = {**editor.facts}
    findings(editor, path, text.replace("group      : int   = 8", "group      : int   = 4"))
    assert kept
    assert editor.facts == kept
    for number in range(300):
        editor.facts[number,] = next(iter(kept.values()))
    assert len(editor.facts) < 300
