"""What the parameters of a Python reward are given."""

import pytest

from forgedsl import api
from forgedsl.hir.pycalls import inputs_of
from forgedsl.lint.engine import lint_source
from forgedsl.source import SourceFile

BY_NAME = [
    ("prompt, response, target", "prompt response target"),
    ("p, r, t", "prompt response target"),
    ("question, answer, truth", "prompt response target"),
    ("prompt, response, answer", "prompt response target"),
    ("prompt, response, target, level", "prompt response target column level"),
    ("prompt, response, *, tests", "prompt response column tests"),
    ("prompt, response", "prompt response"),
    ("response", "response"),
    ("completion, answer", "response column answer"),
    ("response, messages, row", "response messages row"),
    ("r", "rollout"),
    ("r, cases", "rollout target"),
    ("r, target, scale=2.0", "rollout target column? scale"),
    ("x, y", "rollout target"),
    ("response, target, level=3", "response target column? level"),
]


def load(tmp_path, source, bound):
    (tmp_path / "r.py").write_text(source)
    text = f'import python "r.py" as r\nreward a = r.{bound}\n'
    checked = api.load_text(text, folder=tmp_path).checked
    return checked.rewards["a"].body


@pytest.mark.parametrize(("parameters", "sources"), BY_NAME)
def test_parameters_are_given_by_name_or_else_by_place(tmp_path, parameters, sources):
    body = load(tmp_path, f"def f({parameters}): ...\n", "f")
    assert " ".join(inputs_of(body).by_name.values()) == sources


def test_any_number_of_arguments_is_given_three_by_place(tmp_path):
    assert inputs_of(load(tmp_path, "def f(*args): ...\n", "f")).by_place == (
        "prompt", "response", "target",
    )  # fmt: skip


def test_the_form_of_trl_is_given_lists_and_all_columns(tmp_path):
    inputs = inputs_of(load(tmp_path, "def f(prompts, completions, a, **kw): ...\n", "f"))
    assert inputs.lists
    assert list(inputs.by_name.values()) == ["prompt", "response", "column a", "row"]


def test_keywords_of_a_function_are_bound_and_not_looked_up(tmp_path):
    body = load(tmp_path, "def f(response, tol, level): ...\n", "f(tol = 0.5)")
    assert (body.args, inputs_of(body).by_name) == (
        {"tol": 0.5},
        {"response": "response", "level": "column level"},
    )


JUDGE = """
class Judge:
    def __init__(self, scale, *, limit=1.0): ...
    async def __call__(self, response): ...

made = Judge(3)
"""


@pytest.mark.parametrize(
    ("bound", "makes", "args"),
    [
        ("Judge(2)", "class", {"scale": 2}),
        ("Judge(scale = [1, 5], limit = 3s)", "class", {"scale": [1, 5], "limit": 3.0}),
        ("made", "object", {}),
    ],
)
def test_a_class_is_made_with_its_arguments(tmp_path, bound, makes, args):
    body = load(tmp_path, JUDGE, bound)
    assert (body.makes, body.args, body.asynchronous) == (makes, args, True)
    assert inputs_of(body).by_name == {"response": "response"}


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        ("Judge", "`Judge` needs `scale`"),
        ("Judge(1, 2)", "`Judge` takes 1 positional argument"),
        ("Judge(1, sale = 2)", "`Judge` has no parameter `sale`"),
        ("made(1)", "`made` is an object: name it without arguments"),
    ],
)
def test_wrong_arguments_are_said(tmp_path, bound, message):
    (tmp_path / "r.py").write_text(JUDGE)
    text = f'import python "r.py" as r\nreward a = r.{bound}\n'
    found = lint_source(SourceFile("t.forge", text), tmp_path).diagnostics
    assert [d.message for d in found if d.code == "F114"] == [message]


@pytest.mark.parametrize(
    ("text", "help_text"),
    [
        ("rubric g { score = r.f }", "`reward NAME = r.f`"),
        (
            "flow t {\n  a = d.draw(1)\n  b = r.f(a)\n}",
            "declare it with `reward NAME = r.f`, and call `NAME` here",
        ),
    ],
)
def test_a_function_that_is_no_declared_reward_says_how_to_declare_it(tmp_path, text, help_text):
    (tmp_path / "r.py").write_text("def f(response): ...\n")
    source = SourceFile("t.forge", f'import python "r.py" as r\n{text}\n')
    found = lint_source(source, tmp_path).diagnostics
    assert help_text in [d.help for d in found if d.code == "F119"]


@pytest.mark.parametrize(
    ("source", "help_text"),
    [
        (
            "f = lambda response: 1.0",
            "r.py has this name, but it is a lambda: a reward must be a `def`",
        ),
        ("class f: pass", "r.py has this name, but it is a class without `__call__`"),
        (
            "from x import f",
            "r.py has this name, but it is imported: write `def reward(...): return f(...)`",
        ),
        ("def g(response): ...", "known are `g`"),
    ],
)
def test_what_a_file_has_of_that_name_is_said(tmp_path, source, help_text):
    (tmp_path / "r.py").write_text(source + "\n")
    text = SourceFile("t.forge", 'import python "r.py" as r\nreward a = r.f\n')
    (found,) = (d for d in lint_source(text, tmp_path).diagnostics if d.code == "X801")
    assert found.help.startswith(help_text)


@pytest.mark.parametrize(
    ("written", "help_text"),
    [
        ('import python "s.py" as r', "did you mean `r.py`?"),
        ('import "r.py" as r', 'to import Python, write `import python "r.py" as r`'),
    ],
)
def test_a_file_that_cannot_be_imported_says_what_is_meant(tmp_path, written, help_text):
    (tmp_path / "r.py").write_text("def f(response): ...\n")
    found = lint_source(SourceFile("t.forge", f"{written}\n"), tmp_path).diagnostics
    assert help_text in [d.help for d in found if d.code == "F115"]


def test_a_parameter_comes_before_an_import_of_its_name(tmp_path):
    (tmp_path / "r.py").write_text("def f(response): ...\n")
    text = 'import python "r.py" as r\nreward a = r.f\nreward b(r: Rollout) -> f32 = r.num_tokens\n'
    found = lint_source(SourceFile("t.forge", text), tmp_path).diagnostics
    assert [d.code for d in found if d.code == "X801"] == []


def test_a_file_that_is_no_python_is_said_with_its_line_and_reason(tmp_path):
    (tmp_path / "r.py").write_text("x = 1\ndef f(:\n")
    text = 'import python "r.py" as r\nreward a = r.f\n'
    found = lint_source(SourceFile("t.forge", text), tmp_path).diagnostics
    said = [d.message for d in found if d.code == "F115"]
    assert said == ["`r.py` is not valid Python (line 2: invalid syntax)"]


FLOW = """forge 1
import "std/rl" as rl
import python "r.py" as r
model policy { source = local("forgedsl:models/tiny_math"), dtype = f32, context = 64 }
dataset sums { source = jsonl("d.jsonl"), prompt = row.question, target = row.answer }
service trainer : titan(policy) { device = cpu, optimizer { lr = 1e-4 }, batch { rows = 4 } }
service gen : vllm(policy) { device = cpu, sampling { max_tokens = 8 } }
reward good = r.good
flow train {
  prompt  = sums.draw(2)
  rollout = gen.sample(prompt, n = 2)
  score   = good(rollout)
  batch   = replay(rollout, adv = rl.group_norm(score))
  trainer.step(batch, loss = rl.dapo)
  sync trainer -> gen
}
schedule sync { steps = 2 }
"""


@pytest.mark.parametrize(
    ("signature", "found"),
    [
        (
            "prompt, response, target",
            ["`good` needs a target, because `good` compares the response with it"],
        ),
        ("response, target=None", []),
        ("response", []),
    ],
)
def test_a_reward_that_takes_a_target_is_called_with_one(tmp_path, signature, found):
    (tmp_path / "r.py").write_text(f"def good({signature}): return 1.0 if response else 0.0\n")
    (tmp_path / "d.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    said = lint_source(SourceFile("t.forge", FLOW), tmp_path).diagnostics
    assert [d.message for d in said if d.code == "F114"] == found
