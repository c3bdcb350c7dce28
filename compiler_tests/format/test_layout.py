"""The layout rules of fmt, one example each."""

import pytest

from forgedsl.diagnostics import Reporter
from forgedsl.format import format_source
from forgedsl.source import SourceFile
from forgedsl.syntax import parse


def fmt(text):
    source = SourceFile("p", text)
    reporter = Reporter()
    file = parse(source, reporter)
    assert list(reporter) == []
    return format_source(source, file)


CASES = {
    "equals of neighbours stand in one column": (
        "dataset d {\n source = a\n max_prompt_tokens = 5\n system=b\n}\n",
        "dataset d {\n  source = a\n  max_prompt_tokens = 5\n  system = b\n}\n",
    ),
    "names that differ by more than 8 characters are not aligned": (
        "rubric r {\n score = a\n on_truncated = 0.0\n}\n",
        "rubric r {\n  score        = a\n  on_truncated = 0.0\n}\n",
    ),
    "an empty line ends a column": (
        "flow f {\n a = b\n\n long = c\n}\n",
        "flow f {\n  a = b\n\n  long = c\n}\n",
    ),
    "braces of neighbours stand in the column of the equals": (
        "service t : titan(p) {\n procs = 1\n optimizer {lr = 1.0}\n}\n",
        "service t : titan(p) {\n  procs     = 1\n  optimizer { lr = 1.0 }\n}\n",
    ),
    "three settings on a line are a list, not a row": (
        "service t : titan(p) {\n procs = 1 ,gpus = 1,cpus = 2\n optimizer {lr = 1.0}\n}\n",
        "service t : titan(p) {\n  procs = 1, gpus = 1, cpus = 2\n  optimizer { lr = 1.0 }\n}\n",
    ),
    "reports have a column of their own": (
        "loss l(x: f32) {\n a = x\n minimize a\n report a = a\n report bcd = a\n}\n",
        "loss l(x: f32) {\n  a = x\n  minimize a\n  report a   = a\n  report bcd = a\n}\n",
    ),
    "services align constructors": (
        "service a:titan(p) {procs = 1}\nservice bcd:vllm(policy) {procs = 2}\n",
        "service a   : titan(p)     { procs = 1 }\nservice bcd : vllm(policy) { procs = 2 }\n",
    ),
    "one field a line is a table": (
        "loss l(\n a: diff [B,T] f32, # x\n bcd: bool\n) {minimize a}\n",
        "loss l(\n  a   : diff [B, T] f32," + " " * 25 + "# x\n  bcd : bool,\n) {\n"
        "  minimize a\n}\n",
    ),
    "several fields a line stay so": (
        "fn l(\n a: f32 , b : f32,\n c: f32) = a\n",
        "fn l(\n  a: f32, b: f32,\n  c: f32,\n) = a\n",
    ),
    "a line end before the first field only is no layout": (
        "fn l(\n a: f32) = a\n",
        "fn l(a: f32) = a\n",
    ),
    "redundant parentheses around a whole go, others stay": (
        "fn l(a: f32) = ((a) * (b + c) and (d or e))\n",
        "fn l(a: f32) = a * (b + c) and (d or e)\n",
    ),
    "numbers and strings stay as written": (
        'param a:int=1_000\nparam b:str=r"\\d"\nparam c:float=1.50e-6\n',
        'param a : int   = 1_000\nparam b : str   = r"\\d"\nparam c : float = 1.50e-6\n',
    ),
    "blank lines: at most one, none at the ends of a block": (
        "\n\nflow f {\n\n a = b\n\n\n\n c = d\n\n}\n\n\n",
        "flow f {\n  a = b\n\n  c = d\n}\n",
    ),
    "an empty block": ("checkpoint {\n}\n", "checkpoint {}\n"),
    "comments of a run stand behind its longest line": (
        "param aaaaaaaaaaaaaaaaaaaaaaaa : float = 1.0e-6000000 * 12 # a\nparam b : int = 2 # b\n",
        "param aaaaaaaaaaaaaaaaaaaaaaaa : float = 1.0e-6000000 * 12  # a\n"
        "param b : int = 2" + " " * 43 + "# b\n",
    ),
    "text literals are not touched": (
        'dataset d {\n     system = """\n  two\n   three\n """\n}\n',
        'dataset d {\n  system = """\n  two\n   three\n """\n}\n',
    ),
    "a comment inside of brackets gets a line": (
        "flow f {\n x = f(a, # one\n b)\n}\n",
        "flow f {\n  x = f(\n    a," + " " * 43 + "# one\n    b,\n  )\n}\n",
    ),
    "a comment beside an operator": (
        "flow f {\n x = (a # one\n + b)\n}\n",
        "flow f {\n  x = (\n    a" + " " * 44 + "# one\n    + b\n  )\n}\n",
    ),
    "a comment at a place without a line goes above": (
        "flow f {\n ## two\n x = (- # one\n b)\n}\n",
        "flow f {\n  # one\n  ## two\n  x = -b\n}\n",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_layout(case):
    before, after = CASES[case]
    assert fmt(before) == after


@pytest.mark.parametrize("case", CASES)
def test_the_result_is_a_fixed_point(case):
    after = CASES[case][1]
    assert fmt(after) == after


LONG = ", ".join(f"name_{i} = {i}" for i in range(12))


def test_long_calls_are_filled_behind_their_bracket():
    text = fmt(f"model m {{\n  arch = qwen3({LONG})\n}}\n")
    first, second = text.splitlines()[1:3]
    assert len(first) <= 100
    assert second.startswith(" " * len("  arch = qwen3(") + "name_")


def test_long_calls_far_to_the_right_are_indented():
    head = "a_name_of_more_than_thirty_characters = and_a_long_function_name"
    lines = fmt(f"flow f {{\n  {head}({LONG})\n}}\n").splitlines()
    assert lines[1] == f"  {head}("
    assert lines[2].startswith("    name_0 = 0, name_1 = 1,")
    assert lines[-2:] == ["  )", "}"]


def test_long_sums_get_parentheses():
    total = " + ".join(f"term_{i} * weight_{i}" for i in range(8))
    lines = fmt(f"flow f {{\n  x = {total}\n}}\n").splitlines()
    assert lines[1:4] == ["  x = (", "    term_0 * weight_0", "    + term_1 * weight_1"]


def test_a_block_that_is_too_long_is_opened():
    lines = fmt(f"flow f {{ trainer {{ {LONG}, batch {{ rows = 1 }} }} }}\n").splitlines()
    assert lines[:2] == ["flow f {", "  trainer {"]
    assert lines[-3:] == ["    batch { rows = 1 }", "  }", "}"]


def test_fields_that_do_not_fit_are_filled():
    fields = ", ".join(f"field_{i}: diff [B, T] f32" for i in range(6))
    lines = fmt(f"loss l({fields}) {{ minimize field_0 }}\n").splitlines()
    assert lines[0] == "loss l("
    assert lines[1].count(",") == 6
    assert lines[-3:] == [") {", "  minimize field_0", "}"]
