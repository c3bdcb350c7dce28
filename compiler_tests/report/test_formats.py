"""Every output format: valid for its readers, complete, and the same on every run."""

import json
import re
from pathlib import Path

import pytest

from forgedsl.diagnostics import Diagnostic, Edit, Fix, Label, Severity, counted
from forgedsl.report import FORMATS, render_as
from forgedsl.report.style import PLAIN
from forgedsl.source import SourceFile, Span

TEXT = 'param a : int = 1\nparam b : int = "\N{GREEK SMALL LETTER ALPHA}|,:%"\n'
SOURCES = {"dir x/t.forge": SourceFile("dir x/t.forge", TEXT)}
FILE = "dir x/t.forge"
FINDINGS = (
    Diagnostic(
        code="L405", name="unbounded-exp", severity=Severity.ERROR, message="100 %, a: b, `c` | d",
        span=Span(FILE, 6, 7), related=(Label(text="here\tthere", span=Span(FILE, 24, 25)),),
        notes=("a fact\nof two lines",), help="do <this> & that",
        fix=Fix(message="use c", edits=(Edit(text="c", span=Span(FILE, 6, 7)),), safe=False),
        profiles=("cpu",),
    ),
    Diagnostic(
        code="F120", name="requirement-failed", severity=Severity.ERROR, message="no",
        span=Span(FILE, 24, 25), table=("  a < b", "  2   1"),
    ),
    Diagnostic(
        code="R508", name="weight-scale", severity=Severity.WARNING, message="large",
        span=Span(FILE, 34, 40),
    ),
    Diagnostic(
        code="L412", name="length-bias", severity=Severity.INFO, message="short",
        span=Span(FILE, 34, 40),
    ),
)  # fmt: skip


def shown(format_, findings=FINDINGS):
    return render_as(format_, findings, SOURCES, PLAIN)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_format_is_as_reviewed(golden, format_):
    golden(f"formats/{format_}.txt", shown(format_) + "\n")


@pytest.mark.parametrize("format_", FORMATS)
def test_no_findings_can_be_shown_too(format_):
    text = shown(format_, ())
    assert "error" not in text.replace('errors="0"', "")


def test_sarif_validates_against_its_schema():
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((Path(__file__).parent / "sarif_2_1_0.json").read_text("utf-8"))
    jsonschema.Draft7Validator.check_schema(schema)
    for findings in (FINDINGS, ()):
        jsonschema.validate(json.loads(shown("sarif", findings)), schema)


def test_sarif_refers_to_its_rules_and_escapes_its_paths():
    (run,) = json.loads(shown("sarif"))["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert [rules[r["ruleIndex"]] for r in run["results"]] == [r["ruleId"] for r in run["results"]]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "dir%20x/t.forge"
    assert place["region"] == {"startLine": 1, "startColumn": 7, "endLine": 1, "endColumn": 8}


def test_github_commands_escape_what_would_end_them():
    lines = shown("github").splitlines()
    assert len(lines) == len(FINDINGS)
    place = r"file=[^,]+,line=\d+,col=\d+,endLine=\d+,endColumn=\d+,title=[^:,]+"
    pattern = rf"::(error|warning|notice) {place}::.+"
    assert all(re.fullmatch(pattern, line) for line in lines)
    assert "%0A" in lines[0]
    assert "100 %25" in lines[0]


def test_one_thing_is_no_plural():
    found = [counted(*asked) for asked in ((1, "row"), (2, "row"), (0, "step"), (3, "batch"))]
    assert found == ["1 row", "2 rows", "0 steps", "3 batches"]
