"""The grammar itself, and the trees it gives."""

from importlib import resources
from pathlib import Path

import lark
import pytest

from forgedsl.diagnostics import Reporter
from forgedsl.source import SourceFile
from forgedsl.syntax import ast, cache, parse, parse_value
from forgedsl.syntax import recovering_parser as parser_module

PIPELINES = sorted(Path("pipelines").glob("*.forge")) + sorted(
    Path("pipelines/std").glob("*.forge")
)


def tree(text):
    reporter = Reporter()
    file = parse(SourceFile("t.forge", text), reporter)
    assert list(reporter) == []
    return file


def expression(text):
    reporter = Reporter()
    found = parse_value(SourceFile("t.forge", text), reporter)
    assert list(reporter) == []
    return found


def shape(node):
    """An expression with every operation in parentheses."""
    match node:
        case ast.Binary():
            return f"({shape(node.left)} {node.operator} {shape(node.right)})"
        case ast.Unary():
            return f"({node.operator} {shape(node.operand)})"
        case ast.Conditional():
            return f"({shape(node.then)} if {shape(node.test)} else {shape(node.otherwise)})"
        case ast.Path():
            return node.text
        case ast.Index():
            return f"({shape(node.base)} at {shape(node.key)})"
        case ast.String():
            return node.value
        case ast.Integer():
            return str(node.value)
    raise AssertionError(node)


def test_the_grammar_is_lalr_1_without_any_conflict_or_collision_of_terminals():
    pytest.importorskip("interegular")
    text = resources.files("forgedsl.grammar").joinpath("forge.lark").read_text("utf-8")
    lark.Lark(text, strict=True, **parser_module.OPTIONS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + b * c", "(a + (b * c))"),
        ("a - b - c", "((a - b) - c)"),
        ("-a ** b", "(- (a ** b))"),
        ("-a.b[0] ** c", "(- ((a.b at 0) ** c))"),
        ("a[b + c][-1].d", "(((a at (b + c)) at (- 1)) at d)"),
        ('a["b"].c.d', "(((a at b) at c) at d)"),
        ("a ** -b", "(a ** (- b))"),
        ("a ** b ** c", "(a ** (b ** c))"),
        ("not a == b", "(not (a == b))"),
        ("a or b and c", "(a or (b and c))"),
        ("a if b else c if d else e", "(a if b else (c if d else e))"),
        ("(a + b) * c", "((a + b) * c)"),
    ],
)
def test_precedence(text, expected):
    assert shape(expression(text)) == expected


@pytest.mark.parametrize(
    ("text", "seconds"), [("10min", 600.0), ("500ms", 0.5), ("1.5h", 5400.0), ("2d", 172800.0)]
)
def test_durations_are_seconds(text, seconds):
    assert expression(text).value == seconds


@pytest.mark.parametrize(("text", "value"), [("64k", 64_000), ("2GiB", 2**31), ("1_000M", 1e9)])
def test_sizes_and_counts(text, value):
    assert expression(text).value == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"a\nb"', "a\nb"),
        (r'"\"q\""', '"q"'),
        (r'"\u00e9"', "\N{LATIN SMALL LETTER E WITH ACUTE}"),
        (r'r"\d+"', r"\d+"),
        ('"""one "quoted" line"""', 'one "quoted" line'),
        ('"""\n    a\n      b\n    """', "a\n  b\n"),
        ('""', ""),
    ],
)
def test_strings(text, value):
    assert expression(text).value == value


def test_spans_cover_the_text_of_a_node():
    text = "x = (a + b) * f(c,\n d)"
    file = tree(f"flow t {{ {text} }}")
    value = file.decls[0].block.items[0].value
    source = f"flow t {{ {text} }}"
    assert source[value.span.start : value.span.end] == "(a + b) * f(c,\n d)"
    assert source[value.left.span.start : value.left.span.end] == "(a + b)"


def test_newlines_inside_parentheses_do_not_end_a_statement():
    file = tree("param a : int = (1\n + 2\n\n # comment\n + 3)\nparam b : int = 1\n")
    assert [decl.name for decl in file.decls] == ["a", "b"]


def test_statements_of_a_block_end_at_newline_or_comma():
    one_line = tree("service s : titan(m) { procs = 1, gpus = 2, parallel { tp = 2 } }")
    many_lines = tree(
        "service s : titan(m) {\n procs = 1\n\n gpus = 2,\n parallel { tp = 2\n }\n}\n"
    )
    names = [[getattr(i, "name", None) or i.path.text for i in f.decls[0].block.items]
             for f in (one_line, many_lines)]  # fmt: skip
    assert names[0] == names[1] == ["procs", "gpus", "parallel"]


def test_statement_words_are_names_where_no_statement_can_stand():
    file = tree("schedule sync { steps = 1 }\nparam report : int = 1\n")
    assert file.decls[0].name == "sync"
    assert file.decls[1].name == "report"


def test_doc_comments_belong_to_the_declaration_below():
    file = tree("# no doc\nparam a : int = 1\n\n## first\n## second\nparam b : int = 2\n")
    assert [decl.doc for decl in file.decls] == ["", "first\nsecond"]


def test_a_service_of_which_nothing_is_set_needs_no_braces():
    bare, braced = (tree(f"service g : vllm(m){end}\n").decls[0] for end in ("", " {}"))
    assert (bare.block.items, bare.name, bare.kind) == (
        braced.block.items,
        braced.name,
        braced.kind,
    )


def test_crlf_and_bom_change_nothing():
    plain = tree("param a : int = 1\nflow t {\n x = f(a)\n}\n")
    windows = tree("param a : int = 1\r\nflow t {\r\n x = f(a)\r\n}\r\n")
    assert [type(d) for d in plain.decls] == [type(d) for d in windows.decls]


@pytest.mark.parametrize("path", PIPELINES, ids=str)
def test_shipped_files_parse(path):
    assert tree(path.read_text("utf-8")).decls


@pytest.mark.parametrize("damage", [b"", b"not a pickle", b"\x80\x05N."])
def test_a_damaged_grammar_cache_is_rebuilt(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    parser_module._Parser()
    entry = next((tmp_path / "forgedsl").glob("grammar-*"))
    entry.write_bytes(damage)
    fresh = parser_module._Parser()
    assert fresh.lark.parse("param a : int = 1\n", start="start").decls


def test_without_a_writable_cache_the_grammar_is_built_in_memory(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert cache.load("grammar-x") is None
    assert parser_module._Parser().lark.parse("param a : int = 1\n", start="start").decls


def test_the_second_start_reads_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    parser_module._Parser()
    monkeypatch.setattr(lark, "Lark", type("NoBuild", (lark.Lark,), {"__init__": None}))
    assert parser_module._Parser().lark.parse("param a : int = 1\n", start="start").decls


def test_a_file_may_end_after_its_edition():
    assert tree("forge 1").edition is not None
    assert tree("\n\nforge 1").edition is not None
