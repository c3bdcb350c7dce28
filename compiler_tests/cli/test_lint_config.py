"""Selecting rules, severities, and fixes, from pyproject.toml and the command line."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from forgedsl.cli import lint as command
from forgedsl.lint.config import ConfigError, load

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location(
    "rules_base", ROOT / "compiler_tests/rules/conftest.py"
)
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)
BASE = _MODULE.BASE
UNBOUNDED = BASE.replace("clamp(logprob - behavior, -10.0, 10.0)", "logprob - behavior")
SPARE = BASE.replace("forge 1", "forge 1\nparam spare : int = 1", 1)


@pytest.fixture
def lint(tmp_path, capsys, monkeypatch):
    """Run lint on a text; (exit code, codes with severities, what was printed)."""
    monkeypatch.chdir(tmp_path)
    for name in ("sums.jsonl", "test.jsonl", "t"):
        (tmp_path / name).touch()

    def run(text, *options, config=""):
        if config:
            (tmp_path / "pyproject.toml").write_text(f"[tool.forgec.lint]\n{config}\n", "utf-8")
        (tmp_path / "t.forge").write_text(text, "utf-8")
        code = command.main(["t.forge", "--format", "json", *options])
        captured = capsys.readouterr()
        try:
            found = json.loads(captured.out)["diagnostics"]
        except json.JSONDecodeError:
            found = []
        return code, [f"{d['severity']} {d['code']}" for d in found], captured

    return run


def test_warnings_can_be_ignored_by_code_and_by_prefix(lint):
    assert lint(SPARE)[:2] == (0, ["warning F104"])
    assert lint(SPARE, "--ignore", "F104")[1] == []
    assert lint(SPARE, "--ignore", "F")[1] == []
    assert lint(SPARE, config='ignore = ["F1"]')[1] == []


def test_the_more_specific_selector_wins(lint):
    assert lint(SPARE, "--select", "F104", "--ignore", "F")[1] == ["warning F104"]
    assert lint(SPARE, "--select", "R")[1] == []


def test_errors_are_always_reported(lint):
    assert lint(UNBOUNDED, "--select", "R")[:2] == (1, ["error L405"])
    assert lint(UNBOUNDED, "--ignore", "L")[:2] == (1, ["error L405"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--ignore", "L405"], "allow[L405]"),
        (["--ignore", "D602"], "D602 is an error"),
        (["--select", "Q1"], "no code"),
    ],
)
def test_a_selector_without_meaning_is_bad_usage(lint, options, words):
    code, _, captured = lint(BASE, *options)
    error = json.loads(captured.out)["error"]
    assert (code, error["kind"]) == (2, "usage")
    assert words in captured.err
    assert words in error["message"]


@pytest.mark.parametrize(
    "config", ["selct = []", 'ignore = "L412"', 'warn = ["D602"]', "ignore = [", 'error = ["zz"]']
)
def test_a_configuration_without_meaning_is_bad_usage(lint, config):
    assert lint(BASE, config=config)[0] == 2


def test_severities_are_configured_where_a_rule_allows_it(lint):
    assert lint(UNBOUNDED, config='warn = ["L405"]')[:2] == (0, ["warning L405"])
    assert lint(SPARE, config='error = ["F104"]')[:2] == (1, ["error F104"])


def test_ignores_for_some_files(lint):
    assert lint(SPARE, config='per-file-ignores = { "t*" = ["F104"] }')[1] == []
    assert lint(SPARE, config='per-file-ignores = { "u*" = ["F104"] }')[1] == ["warning F104"]


def test_pedantic_rules_are_on_when_selected(lint):
    assert lint(BASE, "--select", "N901")[1] == ["info N901"]
    assert lint(BASE)[1] == []


def test_safe_fixes_are_applied_and_unsafe_ones_are_not(lint, tmp_path):
    text = UNBOUNDED.replace("forge 1", "forge 1\nrun = { seed = 3 }", 1)
    code, found, captured = lint(text, "--fix")
    fixed = (tmp_path / "t.forge").read_text("utf-8")
    assert (code, found) == (1, ["error L405"])
    assert "run { seed = 3 }" in fixed
    assert "exp(logprob - behavior)" in fixed
    assert "1 fix applied" in captured.err


def test_unsafe_fixes_lead_to_a_clean_file(lint, tmp_path):
    worse = UNBOUNDED.replace("temperature = 1.0", "temperature = 0.8, top_p = 0.9")
    assert lint(worse, "--fix", "--unsafe-fixes")[:2] == (0, [])
    fixed = (tmp_path / "t.forge").read_text("utf-8")
    assert "exp(clamp(logprob - behavior, -20.0, 20.0))" in fixed
    assert "temperature = 1.0, top_p = 1.0" in fixed


def test_diff_shows_the_fixes_and_changes_nothing(lint, tmp_path):
    code, _, captured = lint(UNBOUNDED, "--diff", "--unsafe-fixes")
    assert code == 1
    assert "+  ratio = exp(clamp(logprob - behavior, -20.0, 20.0))" in captured.out
    assert (tmp_path / "t.forge").read_text("utf-8") == UNBOUNDED
    assert lint(UNBOUNDED, "--diff")[0] == 0


def test_a_fix_keeps_byte_order_mark_and_line_ends(lint, tmp_path):
    lint(BASE)
    path = tmp_path / "t.forge"
    text = UNBOUNDED.replace("\n", "\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert command.main(["t.forge", "--fix", "--unsafe-fixes"]) == 0
    data = path.read_bytes()
    assert data.startswith(b"\xef\xbb\xbf")
    assert data.count(b"\r\n") == text.count("\r\n")
    assert b"clamp" in data


def test_every_format_is_offered_by_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "forgedsl.cli.main", "lint", "--help"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert all(word in done.stdout for word in ("sarif", "github", "--unsafe-fixes", "--deep"))


@pytest.mark.parametrize(
    "text",
    [
        '[tool.forgec.lint]\nselect = ["N9"]\n',
        '[ tool . forgec . lint ]\nselect = ["N9"]\n',
        '["tool"."forgec".lint]\nselect = ["N9"]\n',
        '[tool]\nforgec.lint.select = ["N9"]\n',
        'tool.forgec.lint.select = ["N9"]\n',
        'tool = { forgec = { lint = { select = ["N9"] } } }\n',
    ],
)
def test_any_spelling_of_the_section_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text, "utf-8")
    assert load(tmp_path / "x.forge").select == ("N9",)


def test_a_project_without_the_section_is_not_parsed(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project.scripts]\nforgec = "a:b"\n[broken', "utf-8")
    assert load(tmp_path / "x.forge").select is None


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text('[tool.forgec.lint]\nselect = ["N9"]\n', "utf-8")
    load(tmp_path / "x.forge")
    path.write_text('[tool.forgec.lint]\nselect = ["N9", "R"]\n', "utf-8")
    assert load(tmp_path / "x.forge").select == ("N9", "R")


@pytest.mark.parametrize("text", ['[tool]\nforgec = "x"\n', '[tool.forgec]\nlint = "x"\n'])
def test_a_section_that_is_no_table_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text, "utf-8")
    with pytest.raises(ConfigError, match="must be a table"):
        load(tmp_path / "x.forge")
