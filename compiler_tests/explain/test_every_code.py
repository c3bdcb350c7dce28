"""Every code that can be reported has a page, a firing and a silent fixture and a golden rendering.

codes in the source  =  rules (compiler_tests/rules/<CODE>.md, with their renderings)
                      + pages with a bad and a good example (golden/codes/<CODE>.txt)
                      + APART, which need files, bytes or a plan (golden/codes/<CODE>.txt)
"""

import json
import re
from pathlib import Path

import pytest

from forgedsl import api
from forgedsl.cli.data_checks import InputChecker
from forgedsl.diagnostics import Reporter
from forgedsl.explain.codes import pages
from forgedsl.graph.dataflow import build
from forgedsl.lint.engine import Deep, lint_file, lint_source
from forgedsl.lint.registry import CODES
from forgedsl.plan.liveness import check_liveness
from forgedsl.plan.plan import advice, plan
from forgedsl.report import full
from forgedsl.sizes.hosts import Host
from forgedsl.source import SourceFile
from forgedsl.syntax import decode

from .test_codes import base, codes_of_the_code, program_with

ROOT = Path(__file__).parents[2]
PIPELINES = ROOT / "pipelines"
GRPO = (PIPELINES / "grpo_math.forge").read_text("utf-8")
SKILLS = (PIPELINES / "skills_sft.forge").read_text("utf-8")
GUESS = (PIPELINES / "guess_math.forge").read_text("utf-8")
BASE = base()
SECTIONS = re.compile(r"^## (fires|silent)\b", re.M)


def linted(text, folder=PIPELINES, **options):
    result = lint_source(SourceFile("t.forge", text), folder, **options)
    return result.diagnostics, result.sources


def decoded(data):
    reporter = Reporter()
    source = decode(data, "t.forge", reporter)
    return tuple(reporter), {"t.forge": source or SourceFile("t.forge", "")}


def planned(*overrides, **changes):
    """Advice and liveness of the plan of the GRPO pipeline, some of its parts exchanged."""
    loaded = api.load_text(
        GRPO, "t.forge", folder=PIPELINES, profile="none", overrides=list(overrides)
    )
    graph = build(loaded.program, reporter=Reporter())
    made = plan(loaded.program, graph, reporter=Reporter(), base_dir=PIPELINES)
    capacities = {**made.capacities, **changes}
    stuck = check_liveness(graph, made.schedule, capacities)
    return (*advice(loaded.program, graph, made), *stuck), loaded.sources


def python(body, deep=None):
    """The small program with a reward from p.py, whose text is `body`."""

    def run(folder):
        for name in ("sums.jsonl", "test.jsonl"):
            row = {"question": "1 + 1", "answer": "2"}
            (folder / name).write_text(json.dumps(row) + "\n", "utf-8")
        (folder / "t").mkdir()
        (folder / "p.py").write_text(body, "utf-8")
        text = BASE.replace('import "std/rl" as rl', 'import "std/rl" as rl\nimport python "p.py"')
        text = text.replace("reward correct = rl.exact", "reward correct = p.score")
        text = text.replace('local("t")', 'local("forgedsl:tokenizers/arithmetic")')
        return linted(text.replace('\nimport "std/rl" as rl', ""), folder, deep=deep)

    return run


def columns(name):
    def run(folder):
        (folder / "sums.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n', "utf-8")
        text = BASE.replace("row.question", f"row.{name}")
        return linted(text, folder, deep=DEEP)

    return run


def rows(answers):
    """The small program, its answers read behind a mark and compared as mathematics."""

    def run(folder):
        found = ({"question": f"{i} + 1", "answer": answers(i)} for i in range(30))
        (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, found)), "utf-8")
        text = BASE.replace("row.answer", 'after(row.answer, "= ")').replace("exact", "math_equal")
        text = text.replace('local("t")', 'local("forgedsl:tokenizers/arithmetic")')
        return linted(text.replace("sums.draw(4)", "sums.draw(2)"), folder, deep=DEEP)

    return run


def worded(question):
    """The small program with 30 questions in this form, read by a tokenizer of sums."""

    def run(folder):
        found = ({"question": question.format(i), "answer": str(i + 1)} for i in range(30))
        (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, found)), "utf-8")
        text = BASE.replace('local("t")', 'local("forgedsl:tokenizers/arithmetic")')
        return linted(text, folder, deep=DEEP)

    return run


def repeated(distinct):
    """The small program with 30 rows of which so many are distinct."""

    def run(folder):
        found = ({"question": f"{i % distinct} + 1", "answer": "2"} for i in range(30))
        (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, found)), "utf-8")
        return linted(BASE, folder, deep=DEEP)

    return run


def demonstrated(role, **calls):
    """Supervised training on all tokens of conversations with a message of this role."""

    def run(folder):
        roles = ("user", "assistant", role, "assistant")
        messages = [{"role": each, "content": "1+1=", **calls} for each in roles]
        (folder / "demos.jsonl").write_text(json.dumps({"messages": messages}) + "\n", "utf-8")
        text = SKILLS.replace('parquet("data/skills_demos.parquet")', 'jsonl("demos.jsonl")')
        text = text.replace('local("tokenizers/skills")', 'local("forgedsl:tokenizers/skills")')
        text = text.replace("row.messages", "row.messages, learn = all")
        return linted(text, folder, deep=DEEP)

    return run


def long_chats(on_long):
    """Demonstrations of which a third are longer than a row of the trainer."""

    def run(folder):
        (folder / "data").mkdir()
        chats = [
            [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2" * length}]
            for length in (4, 8, 200)
        ]
        rows = "".join(f"{json.dumps({'messages': chat})}\n" for chat in chats * 10)
        (folder / "data/arithmetic_demos.jsonl").write_text(rows, "utf-8")
        text = (PIPELINES / "sft_math.forge").read_text("utf-8")
        text = text.replace('local("tokenizers', 'local("forgedsl:tokenizers')
        text = text.replace("row.messages", f"row.messages, on_long = {on_long}")
        return linted(text, folder, deep=DEEP)

    return run


def tools(family, size):
    """The game with a tool, played by a model of this family."""

    def run(folder):
        for name in ("environments", "data"):
            (folder / name).mkdir()
        text = (PIPELINES / "environments/sums.py").read_text("utf-8")
        marked = '    @tool\n    def halve(self, x: int) -> str:\n        """Half."""\n\n'
        text = text.replace("    def reset", f"{marked}    def reset")
        (folder / "environments/sums.py").write_text(text, "utf-8")
        for name in ("arithmetic", "arithmetic_test"):
            (folder / f"data/{name}.jsonl").write_text("", "utf-8")
        model = f'{{ source = random(1), arch = {family}("{size}"), tokenizer = hf("a/b"), dtype'
        return linted(GUESS.replace('{ source = local("models/tiny_math"), dtype', model), folder)

    return run


def modules(second):
    def run(folder):
        (folder / "a.forge").write_text('import "b" as b\nparam x : int = 1\n', "utf-8")
        (folder / "b.forge").write_text(second + "param y : int = 1\n", "utf-8")
        return linted((folder / "a.forge").read_text("utf-8"), folder)

    return run


def file(name):
    def run(folder):
        (folder / "t.forge").write_text("forge 1\n", "utf-8")
        result = lint_file(folder / name)
        return result.diagnostics, result.sources

    return run


DEEP = Deep(host=Host(), outside=InputChecker())
SCORE = "def score(prompt, response, target):\n    return 1.0\n"
SFT_EVAL = """\
import "std/rl" as rl
model base { source = hf("Qwen/Qwen3-8B"), arch = qwen3("8B") }
dataset tulu { source = hf("allenai/tulu-3-sft-mixture", split = "train"), chat = row.messages }
dataset sums { source = hf("a/b", split = "test"), prompt = row.question, target = row.answer }
service trainer : titan(base) {
  procs = 8, parallel { dp_shard = 8 }, optimizer { lr = 1e-5 }, batch { seq_len = 4096, rows = 1 }
}
reward exact = rl.exact
flow train {
  batch = tulu.batches()
  trainer.step(batch, loss = rl.sft)
}
schedule sync { epochs = 1 }
eval held_out { dataset = sums, score = exact, every = 5 }
"""
SPLIT = ('eval held_out { dataset = sums, source = jsonl("test.jsonl"), score',
         'eval held_out { dataset = sums, split = "test", score')  # fmt: skip
IPC = "on_swap = recompute }", "on_swap = recompute, transport = ipc }"
LARGE = GRPO.replace('qwen3("1.7B")', 'qwen3("32B")')
APART = {
    "S011": (lambda f: linted("param x : int = " + "(" * 99 + "1" + ")" * 99),
             lambda f: linted("param x : int = " + "(" * 9 + "1" + ")" * 9)),
    "S012": (lambda f: decoded(b" " * (8 * 2**20 + 1)), lambda f: decoded(b" " * 99 + b"x")),
    "S013": (lambda f: decoded(b"param \xff"), lambda f: decoded("# \u00ff".encode())),
    "S014": (lambda f: decoded(b"param a\0"), lambda f: decoded(b"param a")),
    "S015": (lambda f: decoded(b" \n"), lambda f: decoded(b"#\n")),
    "S016": (file("other.forge"), file("t.forge")),
    "F106": (lambda f: linted(GRPO, overrides=["beta=0.0"]), lambda f: linted(GRPO)),
    "F116": (modules('import "a" as a\n'), modules("")),
    "F121": (lambda f: linted(GRPO, overrides=["group"]),
             lambda f: linted(GRPO, overrides=["group=4"])),
    "F131": (lambda f: linted(SFT_EVAL), lambda f: linted(SFT_EVAL[: SFT_EVAL.index("eval ")])),
    "P205": (lambda f: linted(LARGE, profile="none"), lambda f: linted(GRPO)),
    "P211": (lambda f: planned("generator.engine.gpu_memory=0.04"), lambda f: planned()),
    "P212": (lambda f: linted(BASE.replace(*SPLIT)), lambda f: linted(BASE)),
    "P214": (lambda f: linted(GRPO.replace(*IPC)), lambda f: linted(GRPO)),
    "A307": (lambda f: planned("reference.device=cpu"), lambda f: planned()),
    "A308": (lambda f: planned(ref_lp=7), lambda f: planned()),
    "D620": (lambda f: linted(GUESS.replace(", max_turns = guesses)", ")")),
             lambda f: linted(GUESS)),
    "D621": (lambda f: linted(GUESS.replace("seq_len = 96", "seq_len = 64")),
             lambda f: linted(GUESS)),
    "D622": (tools("phi3", "14B"), tools("qwen3", "0.6B")),
    "D611": (columns("question.text"), columns("question")),
    "D613": (rows(lambda i: f"{i} + 1 is {i + 1}"), rows(lambda i: f"it is = {i + 1}")),
    "D614": (rows(lambda i: "= nobody knows what that is"), rows(lambda i: f"= {i + 1}")),
    "D615": (repeated(3), repeated(30)),
    "D616": (demonstrated("tool"), demonstrated("user")),
    "D617": (long_chats("truncate"), long_chats("drop")),
    "D669": (worded("What is {} plus 1?"), worded("{}+1=")),
    "X801": (python("def other(prompt, response, target):\n    return 1.0\n"), python(SCORE)),
    "X805": (python(SCORE.replace("1.0", "1.0 / target"), DEEP), python(SCORE, DEEP)),
    "X804": (python("import nowhere_to_be_found\n" + SCORE, DEEP), python(SCORE, DEEP)),
}  # fmt: skip
"""code: (firing, silent); both take a folder to write into"""
WRITTEN = [page for page in pages().values() if page.bad]


def shown(code, diagnostics, sources, folder=None):
    found = [d for d in diagnostics if d.code == code]
    assert found
    text = full.render(found, sources) + "\n"
    return text.replace(f"{folder}/", "") if folder else text


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.code)
def test_the_bad_example_of_a_page_is_shown_so(page, golden):
    diagnostics, sources = linted(program_with(page.bad), ROOT)
    golden(f"codes/{page.code}.txt", shown(page.code, diagnostics, sources))


@pytest.mark.parametrize("code", APART)
def test_a_code_that_needs_more_than_a_text_fires_and_is_shown_so(code, tmp_path, golden):
    diagnostics, sources = APART[code][0](tmp_path)
    golden(f"codes/{code}.txt", shown(code, diagnostics, sources, tmp_path))


@pytest.mark.parametrize("code", APART)
def test_a_code_that_needs_more_than_a_text_is_silent(code, tmp_path):
    diagnostics, _ = APART[code][1](tmp_path)
    assert code not in [d.code for d in diagnostics]


def test_one_mistake_gives_one_message(tmp_path):
    """Where a whole program is not involved, nothing else is said."""
    for code in ("S011", "S012", "S013", "S014", "S015", "S016"):
        diagnostics, _ = APART[code][0](tmp_path)
        assert [d.code for d in diagnostics] == [code]


def test_every_code_has_a_page_both_fixtures_and_a_golden():
    reported = set(codes_of_the_code())
    with_pages = {page.code for page in WRITTEN}
    assert reported == with_pages | set(CODES) | set(APART)
    assert not with_pages & set(APART)
    assert reported <= set(pages())
    for code in CODES:
        text = (ROOT / f"compiler_tests/rules/{code}.md").read_text("utf-8")
        assert set(SECTIONS.findall(text)) == {"fires", "silent"}, code
        assert f"[{code}]" in text, code
    golden = {path.stem for path in (ROOT / "compiler_tests/golden/codes").glob("*.txt")}
    assert golden == with_pages | set(APART)


def test_rows_that_call_tools_in_a_field_can_be_learned_whole_only(tmp_path):
    diagnostics, _ = demonstrated("tool", tool_calls=[{"function": {"name": "add"}}])(tmp_path)
    assert "D616" not in {d.code for d in diagnostics}
