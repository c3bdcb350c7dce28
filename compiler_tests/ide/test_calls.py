"""Signature help: the parameters of the call at the cursor, and which of them is written."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from test_meant import TEXT

from forgedsl import api
from forgedsl.hir.modules import standard_modules
from forgedsl.ide import calls, complete
from forgedsl.ide.workspace import Workspace
from forgedsl.schema import builtins
from forgedsl.syntax import ast
from forgedsl.syntax.walk import walk

PIPELINES = sorted(Path(__file__).parents[2].glob("pipelines/**/*.forge"))
CURSOR = "|"
LOSS = "  ratio = exp(logprob - behavior)"
STEP = "trainer.step(batch, loss = rl.dapo)"


def shown(old, new, path=Path("a.forge"), text=TEXT):
    """The label at the cursor, the text of the active parameter, and the documentation."""
    start = text.index(old)
    written = text[:start] + new + text[start + len(old) :]
    offset = written.index(CURSOR)
    workspace = Workspace()
    workspace.open(path, text)
    assert workspace.document(path).tree.decls  # what was there before the last keystroke
    workspace.open(path, written.replace(CURSOR, "", 1))
    found = calls.signature(workspace.document(path), offset)
    if found is None:
        return None
    for each in found.parameters:
        assert found.label[slice(*each.place)] == each.text
    active = "" if found.active is None else found.parameters[found.active].text
    return found.label, active, found.doc


@pytest.mark.parametrize(
    ("old", "new", "label", "active"),
    [
        (LOSS, "  ratio = clamp(logprob, |", "clamp(x, lo, hi)", "lo"),
        (LOSS, "  ratio = clamp(max(logprob, 0.0), |", "clamp(x, lo, hi)", "lo"),
        (LOSS, "  ratio = clamp(max(logprob, |", "max(x, axis, [mask])", "axis"),
        (LOSS, "  ratio = rl.k3(|", "fn rl.k3(", "lp: [B, T] f32"),
        (STEP, "trainer.step(batch, loss = rl.dapo(|", "loss rl.dapo(", "logprob: diff [B, T] f32"),
        (STEP, "trainer.step(batch, loss = rl.dapo(clip_low = 0.1|", "loss rl.dapo(", "clip_low"),
        (STEP, "trainer.step(batch, loss = own(adv = |", "loss own(", "adv: [B] f32"),
        (STEP, "trainer.step(|", "trainer.step(batch: stream, loss, epochs: int", "batch"),
        (STEP, "trainer.step(batch, loss = rl.dapo, |", "trainer.step(batch: str", "epochs"),
        ("sums.draw(8)", "sums.draw(|", "sums.draw(count: int, weight)", "count"),
        ("prompt, n = 8", "prompt, n = |", "generator.sample(prompt: stream, n: int)", "n"),
        ("correct(rollout, ", "correct(rollout, |", "correct(rollout, target)", "target"),
        ("replay(rollout, ", "replay(rollout, adv = |", "replay(rollout: stream, NAME = ...)", ""),
        ("jsonl(", 'mixture([jsonl("a"), |', "mixture(sources: a list, weights: a list)",
         "sources: a list"),
        ("jsonl(", "jsonl(|", "jsonl(path: a string)", "path: a string"),
        ("jsonl(", 'jsonl("da|', "jsonl(path: a string)", "path: a string"),
        ("jsonl(", 'hf("a", split = |', "hf(id: a string", "split: a string or none = none"),
        ("rl.math_equal", "rl.math_equal(|", "math_equal(", "tolerance"),
        ("after(row.answer", "after(row.answer, |", "after(s, sep)", "sep"),
        ("schedule", "launcher = slurm(|", "slurm(partition: a string", "partition: a string"),
        ("rl.math_equal", "generator.score(prompt = |", "score(prompt: a string", "prompt"),
    ],
)  # fmt: skip
def test_the_parameters_of_a_call_are_shown(old, new, label, active):
    found = shown(old, new)
    assert found[0].startswith(label), found
    assert found[1].startswith(active), found
    assert bool(found[1]) == bool(active)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (LOSS, "  # clamp(|"),
        (LOSS, "  ratio = clamp(logprob, 0, 1)|"),
        (LOSS, "  ratio = no_such(|"),
        (LOSS, "  ratio = (|"),
        ("loss own(", "loss own(|"),
        ("titan(policy) {", "titan(policy) { |"),
    ],
)
def test_elsewhere_nothing_is_shown(old, new):
    assert shown(old, new) is None


def test_parameters_have_defaults_and_meanings():
    label, _, doc = shown(STEP, "trainer.step(batch, loss = rl.dapo(clip_low = 0.1, |")
    assert "clip_low: float = 0.2" in label
    assert doc.startswith(api.load_functions("std/rl")[0]["dapo"].doc[:20])


def test_functions_of_modules_and_python_are_shown(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def digits(response: str, base: int = 10) -> float:\n    return 1.0\n"
    )
    (tmp_path / "parts.forge").write_text("fn twice(x: float, by: float = 2.0) -> float = x * by\n")
    text = 'import python "mine.py" as mine\nimport "parts" as parts\nreward r = mine.digits\n'
    path = tmp_path / "a.forge"
    found = shown("mine.digits", "mine.digits(|", path, text)
    assert found[:2] == ("mine.digits(response: str, base: int = 10) -> float", "response: str")
    found = shown("mine.digits", "mine.digits(base = |", path, text)
    assert found[1] == "base: int = 10"
    found = shown("reward r = mine.digits", "param a : float = parts.twice(1.0, |", path, text)
    assert found[0] == "fn parts.twice(x: float, by: float = 2.0) -> float"
    assert found[1] == "by: float = 2.0"


def test_every_function_of_the_library_and_of_the_language_has_a_signature():
    document = Workspace().document(Path("a.forge"))
    for name, params in builtins.FUNCTIONS.items():
        workspace = Workspace()
        workspace.open("a.forge", f"fn f(x: float) -> float = {name}(")
        found = calls.signature(workspace.document("a.forge"), len(workspace.text("a.forge")))
        assert len(found.parameters) == len(params)
    assert document.text == ""
    for module in standard_modules():
        for name, function in api.load_functions(module)[0].items():
            workspace = Workspace()
            text = f'import "{module}" as rl\nfn f(x: float) -> float = rl.{name}('
            workspace.open("a.forge", text)
            found = calls.signature(workspace.document("a.forge"), len(text))
            assert [each.name for each in found.parameters] == [f.name for f in function.fields]


def unmatched(path, step):
    """Calls of a pipeline whose signature is missing, or whose active parameter is another one than
    that of the argument at the cursor."""
    document = Workspace().document(path)
    written = [n for n in walk(document.tree.decls) if isinstance(n, ast.Call) and n.args]
    for call in written[::step]:
        if call.function.text in HEADS:
            continue
        for number, arg in enumerate(call.args):
            found = calls.signature(document, arg.value.span.start)
            if found is None:
                yield f"{path.name}: {call.function.text}"
                break
            names = [each.name for each in found.parameters]
            if arg.name is not None and arg.name in names:
                if found.active is None or names[found.active] != arg.name:
                    yield f"{path.name}: {call.function.text}({arg.name} =)"
            elif arg.name is None and found.active != number and "..." not in names:
                yield f"{path.name}: {call.function.text} {number} {found.active}"


HEADS = ("titan", "vllm", "openai", "value_head")
"""constructors of services, whose argument is a model"""


def test_calls_of_pipelines_have_their_signature():
    assert [each for path in PIPELINES[::6] for each in unmatched(path, 2)] == []


@pytest.mark.deep
def test_every_call_of_every_pipeline_has_its_signature():
    assert [each for path in PIPELINES for each in unmatched(path, 1)] == []


LOCK = """from forgedsl.environment import Environment, Start, Step


class Lock(Environment):
    parts = ("opened", "near")

    def __init__(self, tries: int = 3) -> None:
        self.tries = tries

    def reset(self, task, rng):
        return Start()

    def step(self, turn):
        return Step(rewards={"opened": 1.0, "near": 1.0}, done=True)
"""


def completed(folder, text, cursor):
    """The labels that are offered at the end of `cursor` in a text."""
    (folder / "hilo.py").write_text(LOCK)
    workspace = Workspace()
    path = folder / "a.forge"
    workspace.open(path, text)
    assert workspace.document(path).program is not None
    offset = text.index(cursor.replace(CURSOR, "")) + cursor.index(CURSOR)
    return [item.label for item in complete.complete(workspace.document(path), offset)]


def test_completion_knows_a_class_of_an_environment(tmp_path):
    """Its reward parts behind `r.rewards.`, and its arguments."""
    text = TEXT.replace(
        "reward correct",
        "environment lock = hilo.Lock()\n"
        "reward opened(r: Rollout) -> f32 = r.rewards.opened\nreward correct",
        1,
    ).replace('import "std/rl" as rl', 'import "std/rl" as rl\nimport python "hilo.py" as hilo')
    assert {"opened", "near"} <= {*completed(tmp_path, text, "r.rewards.|opened")}
    assert "num_tokens" not in completed(tmp_path, text, "r.rewards.|opened")
    assert any(label.startswith("tries") for label in completed(tmp_path, text, "hilo.Lock(|)"))
