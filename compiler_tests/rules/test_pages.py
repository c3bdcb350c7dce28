"""Every rule has a page, <CODE>.md: edits of the sound program under which it fires, stays silent,
or is suppressed, and what the user sees when it fires.

    ## fires: renamed        at least one finding of the rule, and its rendering is the text block
    ## silent                no finding at all
    ## suppressed            no finding at all

`- ` lines of an `edit` block are replaced by the `+ ` lines after them; `file NAME` blocks stand
beside the program. `--update-golden` rewrites the text blocks.
"""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from forgedsl.cli.data_checks import InputChecker
from forgedsl.lint import registry
from forgedsl.lint.config import Config
from forgedsl.lint.engine import Deep, lint_source
from forgedsl.lint.registry import CALLED, CODES, SUBJECTS, rule_of
from forgedsl.report import full
from forgedsl.sizes.hosts import Host
from forgedsl.source import SourceFile

from .conftest import BASE

FOLDER = Path(__file__).parent
LOSS_RULES = [f"L{number}" for number in (403, 405, *range(407, 415))]
THREAD = re.compile(r"#\d+|\b\d{4}\.\d{5}\b")
NO_ACCIDENT = {  # no run goes wrong
    "F104", "N901", "N906", "P210", "P215", "D608", "D644", "D645", "D647", "T701", "X802",
    "X803", "A316", "A319", "D657", "P225", "P226", "P227", "X831", "D658", "X834", "D664",
    "D665", "D666",
    "L428", "L434", "P224", "R507", "R510",  # found by edits at random, or refused before that
    "X832", "X848", "X851", "X858", "X859",  # of a list that names no thread
    "D667", "D668", "R543", "X869", "L442",
    "D670", "D671", "D672", "X870", "X871", "X872", "X873",
}  # fmt: skip
SPELLINGS = ("renamed", "split over several steps", "moved into an imported module")
RULES = [rule_of(code) for code in CODES]
PEDANTIC = {rule.finding.code for rule in RULES if rule.finding.pedantic}
BLOCK = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```", re.S | re.M)


def sections(code):
    text = (FOLDER / f"{code}.md").read_text("utf-8")
    return [part.partition("\n") for part in text.split("\n## ")[1:]]


def cases(*kinds):
    return [
        pytest.param(rule.finding.code, title, body, id=f"{rule.finding.code} {title}")
        for rule in RULES
        for title, _, body in sections(rule.finding.code)
        if title.partition(":")[0] in kinds
    ]


def blocks(body, kind):
    return {name: text for found, name, text in BLOCK.findall(body) if found == kind}


def apply(text, edits):
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)*)", edits, re.M):
        old, new = (re.sub(r"^[-+] ?", "", side, flags=re.M)[:-1] for side in (old, new))
        assert text.count(old) >= 1, old
        text = text.replace(old, new)
    return text


def check(code, body, folder):
    if "reasoning_gym(" in body and find_spec("reasoning_gym") is None:
        pytest.skip("reasoning-gym is not installed")
    for name, text in blocks(body, "file").items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    source = SourceFile("t.forge", apply(BASE, blocks(body, "edit")[""]))
    extra = frozenset({code} & PEDANTIC)
    config = Config(extra=extra)
    checker = InputChecker()
    deep = Deep(host=Host(), outside=checker, calls=checker.calls) if code in CALLED else None
    on_disk = "```file test.jsonl" in body
    return lint_source(source, folder, config=config, on_disk=on_disk, deep=deep)


def test_a_rule_has_one_subject_at_most():
    codes = [code for _, of_subject in SUBJECTS for code in of_subject]
    assert len(codes) == len(set(codes))
    assert set(codes) <= set(CODES)


@pytest.mark.full  # the test below finds a rule that is left out of its own page
@pytest.mark.parametrize(("code", "title", "body"), cases("fires", "silent", "suppressed"))
def test_rules_that_are_left_out_find_nothing(code, title, body, tmp_path, monkeypatch):
    result = check(code, body, tmp_path)
    monkeypatch.setattr(registry, "SUBJECTS", ())
    assert check(code, body, tmp_path) == result


@pytest.mark.parametrize(("code", "title", "body"), cases("fires"))
def test_a_rule_fires_and_says_so(code, title, body, tmp_path, request):
    result = check(code, body, tmp_path)
    found = [d for d in result.diagnostics if d.code == code]
    shown = full.render(found, result.sources).replace(f"{tmp_path}/", "") + "\n"
    if request.config.getoption("--update-golden"):
        page = FOLDER / f"{code}.md"
        fresh = re.sub(r"```text\n.*?```\n", lambda m: f"```text\n{shown}```\n", body, flags=re.S)
        page.write_text(
            page.read_text("utf-8").replace(f"{title}\n{body}", f"{title}\n{fresh}"), "utf-8"
        )
        return
    assert found
    assert blocks(body, "text")[""] == shown


@pytest.mark.parametrize(("code", "title", "body"), cases("silent", "suppressed"))
def test_nothing_is_found_where_nothing_is_wrong(code, title, body, tmp_path):
    result = check(code, body, tmp_path)
    assert [(d.code, d.message) for d in result.diagnostics] == []


@pytest.mark.parametrize("code", LOSS_RULES)
def test_loss_rules_are_decided_on_the_tree_and_not_on_text(code):
    assert {f"fires: {spelling}" for spelling in SPELLINGS} <= {
        title for title, _, _ in sections(code)
    }


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.finding.code)
def test_every_rule_is_documented_and_has_both_fixtures(rule):
    first = rule.__doc__.splitlines()[0]
    kinds = {title.partition(":")[0] for title, _, _ in sections(rule.finding.code)}
    assert re.fullmatch(r"[A-Z]\d{3} [\w-]+: \S.*", first)
    assert rule.__name__.endswith(rule.finding.code.lower())
    assert "fires" in rule.__doc__ or rule.finding.code == "F104"
    assert {"fires", "silent"} <= kinds
    assert ("suppressed" in kinds) >= (rule.finding.level == "D" and rule.finding.code[0] in "LRX")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.finding.code)
def test_a_page_shows_the_accident_and_a_program_before_and_after(rule):
    page, code = rule.__doc__, rule.finding.code
    assert bool(THREAD.search(page)) != (code in NO_ACCIDENT)
    assert (re.search("# ?fires", page) and re.search("# ?silent", page)) or code == "F104"
