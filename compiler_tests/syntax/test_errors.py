"""Syntax errors: which code, at which text, with which fix."""

import pytest

from forgedsl.diagnostics import Reporter
from forgedsl.report import full
from forgedsl.source import SourceFile
from forgedsl.syntax import decode, parse


def errors(text):
    reporter = Reporter()
    parse(SourceFile("t.forge", text), reporter)
    return [(d.code, text[d.span.start : d.span.end]) for d in reporter]


def fixed(text):
    """The text with the fixes of all diagnostics applied."""
    reporter = Reporter()
    parse(SourceFile("t.forge", text), reporter)
    edits = [edit for d in reporter for edit in d.fix.edits]
    for edit in sorted(edits, key=lambda e: -e.span.start):
        text = text[: edit.span.start] + edit.text + text[edit.span.end :]
    return text


SLIPS = [
    ("model m { source = 'x' }\n", "S002", "'"),
    ("param x : int = 1;\n", "S002", ";"),
    ("model m {\n  source = a\n\nparam x : int = 1\n", "S003", "{"),
    ("model m {\n  source = a\n", "S003", "{"),
    ('model m { source = "abc }\n', "S004", '"abc }'),
    ('param a : str = """abc\n\n', "S004", '"""'),
    ("service s : titan(m) { lr = \n }\n", "S005", "lr ="),
    ("param x : int = 1 +\nparam y : int = 2\n", "S005", "+"),
    ("require a = 2\n", "S006", "="),
    ("schedule async { timeout = 10 min }\n", "S007", "10 min"),
    ("schedule async { timeout = 10mins }\n", "S007", "10mins"),
    ("model m { source = hf(\"x\" }\n", "S008", "("),
    ("fn f(a: [B] f32 { return a }\n", "S008", "("),
    ("flow t {\n  p = s.draw(32\n  r = g.sample(p)\n}\n", "S008", "("),
    ("fn f(a: [B] f32) {\n  b = a\n  + 1\n}\n", "S010", "+"),
    ("param a : int = 1\n}\nparam b : int = 2\n", "S017", "}"),
    ("param a : list[int] = [1, 2)\n", "S017", ")"),
    ("model m {\n  source = f(1)\n)\nparam b : int = 2\n", "S017", ")"),
    ("param a : int = 1 .. 3\n", "S001", ".."),
    ("param a : list[int] = [b..4]\n", "S001", ".."),
    ("param x : float = 1e999\n", "S019", "1e999"),
    (r'param x : str = "a\qb"' + "\n", "S020", r"\q"),
    ("model m { optimizer = { lr = 1 } }\n", "S021", "{"),
    ("model m { lr: 3 }\n", "S022", ":"),
    ("flow t {\n  x = f(y).g()\n}\n", "S023", "."),
    ("service s : titan(m) { procs = 1 gpus = 2 }\n", "S024", "gpus"),
    ("param x = 3\n", "S025", "="),
    ("require 1 < x < 2\n", "S026", "<"),
    ("for i in range(3) { }\n", "S027", "for"),
    ("def f(x):\n  return x\n", "S027", "def"),
    ("model policy source = 1\n", "S001", "source"),
]  # fmt: skip


def test_an_open_bracket_is_one_mistake():
    reporter = Reporter()
    lines = ["flow t (", "  p = s.draw(32)", "  r = g.sample(p)", "  t.step(r)", "}", "cluster { }"]
    parse(SourceFile("t.forge", "\n".join(lines)), reporter)
    (found,) = reporter
    assert (found.code, found.span.start) == ("S008", 7)
    assert found.help == "a flow is a block: `flow t { ... }`"


@pytest.mark.parametrize(("text", "code", "where"), SLIPS)
def test_one_slip_gives_one_error_at_its_place(text, code, where):
    assert errors(text) == [(code, where)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("require a = 2\n", "require a == 2\n"),
        ("schedule async { timeout = 10 min }\n", "schedule async { timeout = 10min }\n"),
        ("model m { lr: 3 }\n", "model m { lr = 3 }\n"),
        ("model m { optimizer = { lr = 1 } }\n", "model m { optimizer { lr = 1 } }\n"),
        ("model m { dtype: f32, lr = 3 }\n", "model m { dtype = f32, lr = 3 }\n"),
        ("model m { source = f('a') }\n", 'model m { source = f("a") }\n'),
        ("model m { source = \u201ca\u201d }\n", 'model m { source = "a" }\n'),
        ("// a\nparam x : int = 1\n", "# a\nparam x : int = 1\n"),
        ("run { seed = 1 } // of all {\n// two\n", "run { seed = 1 } # of all {\n# two\n"),
        ("run { seed = 1 name = 2 }\n", "run { seed = 1, name = 2 }\n"),
        ("fn f(a: [B] f32) {\n  b = a\n  + 1\n  return b\n}\n",
         "fn f(a: [B] f32) {\n  b = (a\n  + 1)\n  return b\n}\n"),
        ("model m {\n  source = a\n\nparam x : int = 1\n",
         "model m {\n  source = a\n}\n\nparam x : int = 1\n"),
        ("service s : titan(m) {\n  parallel {\n    tp = 2\n  procs = 1\n}\n",
         "service s : titan(m) {\n  parallel {\n    tp = 2\n  procs = 1\n  }\n}\n"),
        ('service s : titan(m) {\n  o { lr = f(1) )\n}\nmodel m { source = hf("x") ]\n',
         'service s : titan(m) {\n  o { lr = f(1) }\n}\nmodel m { source = hf("x") }\n'),
    ],
)  # fmt: skip
def test_fixes_give_a_file_without_errors(text, expected):
    assert fixed(text) == expected
    assert errors(expected) == []


def test_a_slash_too_many_may_be_a_division():
    reporter = Reporter()
    parse(SourceFile("t.forge", 'param x : int = 7 // 2\nparam s : str = "a // b"\n'), reporter)
    (only,) = reporter
    assert (only.help, only.fix.safe) == ("write a quotient as `a / b`", False)


def test_a_quote_without_its_other_end_has_no_fix():
    reporter = Reporter()
    parse(SourceFile("t.forge", "model m { source = 'a }\n"), reporter)
    assert [(d.code, d.fix) for d in reporter] == [("S002", None)]


def test_a_value_for_two_names_has_no_fix():
    reporter = Reporter()
    parse(
        SourceFile("t.forge", "fn f(x: float) -> float {\n  y = z = x\n  return y\n}\n"), reporter
    )
    (only,) = reporter
    help_ = "to compare, write `==`; one statement gives a value to one name only"
    assert (only.code, only.help, only.fix) == ("S006", help_, None)


def test_several_mistakes_in_one_pass_without_cascades():
    text = """\
param a : int =
model m { source = 'x', context = 3 }
service s : titan(m) {
  procs = 1 2
  parallel { tp = = 2 }
  gpus = 1
}
require a = 2
flow t {
  x = f(
  y = g(x)
}
param ok : int = 1
"""
    assert [code for code, _ in errors(text)] == ["S005", "S002", "S001", "S001", "S006", "S008"]


def test_the_rest_of_the_file_is_still_read():
    reporter = Reporter()
    text = "param a : int = \nmodel m { source = }\nparam b : int = 2\nmodel n { context = 1 }\n"
    file = parse(SourceFile("t.forge", text), reporter)
    assert [getattr(d, "name", None) for d in file.decls] == ["a", "m", "b", "n"]


def test_at_most_twenty_errors():
    assert len(errors("param a : int =\n" * 100)) == 20


def test_an_unclosed_block_does_not_hide_the_file_below():
    text = "model m {\n  source = a\n\nparam x = 1\n\nloss f(a: [B] f32) { minimize }\n"
    assert [code for code, _ in errors(text)] == ["S003", "S025", "S005"]


@pytest.mark.parametrize("opening", ["(", "[", "f(", "-("])
def test_deep_brackets_are_one_error(opening):
    assert [code for code, _ in errors("param x : int = " + opening * 10_000)] == ["S011"]


@pytest.mark.parametrize("part", ["1 + ", "- ", "not ", "1 ** ", "1 if a else "])
def test_deep_expressions_without_brackets_are_one_error(part):
    assert [code for code, _ in errors("param x : int = " + part * 10_000 + "1\n")] == ["S011"]


def test_deep_blocks_give_few_errors():
    assert 1 <= len(errors("service s : titan(m) " + "{ a " * 10_000)) <= 20


def test_a_long_flat_list_is_fine():
    assert errors("param x : list[int] = [" + "1, " * 5000 + "]\n") == []


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "S015"),
        (b" \n\t\n", "S015"),
        (b"\xef\xbb\xbf", "S015"),
        (b"param a\0", "S014"),
        (b"param \xff", "S013"),
        (b"x" * (8 * 2**20 + 1), "S012"),
    ],
)
def test_what_is_not_source_text_is_one_error(data, code):
    reporter = Reporter()
    assert decode(data, "t.forge", reporter) is None
    assert [d.code for d in reporter] == [code]


def test_rendering_of_an_unclosed_block(golden):
    text = "dataset gsm8k {\n  source = a\n\nservice trainer : titan(policy) {\n  procs = 4\n}\n"
    source = SourceFile("grpo_math.forge", text)
    reporter = Reporter()
    parse(source, reporter)
    golden("syntax/unclosed_block.txt", full.render(reporter, {source.name: source}) + "\n")


def test_a_block_closed_by_the_wrong_bracket_does_not_swallow_what_follows():
    reporter = Reporter()
    text = (
        "dataset d {\n  a = 1\n)\nparam c : int = 1\nservice t : titan(m) { procs = 1 }\n"
        "reward r = f(1)\n}\n"
    )
    file = parse(SourceFile("t.forge", text), reporter)
    assert [d.code for d in reporter] == ["S017", "S001"]
    assert [getattr(d, "name", None) for d in file.decls] == ["c", "t", "r"]
