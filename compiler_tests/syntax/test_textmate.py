"""Highlighting agrees with the lexer: on every shipped file, token by token.

A TextMate grammar is applied line by line; `scopes` is the part of that machine which ours needs.
"""

import json
import re
from pathlib import Path

import pytest

from forgedsl.docs import textmate
from forgedsl.source import SourceFile
from forgedsl.syntax import trivia
from forgedsl.syntax.recovering_parser import tokens

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "pipelines").rglob("*.forge"))
GRAMMAR = json.loads((ROOT / "grammar/forge.tmLanguage.json").read_text(encoding="utf-8"))
CLASSES = {
    "STRING": "string.quoted.double.forge", "TEXT": "string.quoted.triple.forge",
    "RAW": "string.quoted.other.raw.forge", "QUANTITY": "constant.numeric.quantity.forge",
    "NUMBER": "constant.numeric.float.forge", "INT": "constant.numeric.integer.forge",
    "TRUE": "constant.language.forge", "FALSE": "constant.language.forge",
    "NONE": "constant.language.forge", "AND": "keyword.operator.word.forge",
    "OR": "keyword.operator.word.forge", "NOT": "keyword.operator.word.forge",
    "DIFF": "storage.modifier.forge", "PARAM": "storage.type.parameter.forge",
    "ARROW": "keyword.operator.arrow.forge", "EQUAL": "keyword.operator.assignment.forge",
}  # fmt: skip
NO_NAME = ("keyword", "string", "comment", "constant.numeric", "constant.language")


def scopes(text: str) -> list[str]:
    """The scope of every character."""
    found = [""] * len(text)
    start, open_rule = 0, None
    for line in text.splitlines(keepends=True):
        at = 0
        while at < len(line):
            if open_rule is not None:
                at, open_rule = inside(line, at, start, open_rule, found)
            else:
                at, open_rule = outside(line, at, start, found)
        start += len(line)
    return found


def inside(line: str, at: int, start: int, rule: dict, found: list[str]) -> tuple[int, dict | None]:
    """Up to the end of a region that is open."""
    rules = [(re.compile(rule["end"]), None)]
    rules += [(re.compile(inner["match"]), inner) for inner in rule["patterns"]]
    hits = [(m, r) for pattern, r in rules if (m := pattern.search(line, at))]
    if not hits:
        found[start + at : start + len(line)] = [rule["name"]] * (len(line) - at)
        return len(line), rule
    match, inner = min(hits, key=lambda hit: hit[0].start())
    end = match.end()
    found[start + at : start + end] = [rule["name"]] * (end - at)
    return (end, rule) if inner is not None else (end, None)


def outside(line: str, at: int, start: int, found: list[str]) -> tuple[int, dict | None]:
    """The next match of the grammar's patterns."""
    rules = [(re.compile(r.get("match") or r["begin"]), r) for r in GRAMMAR["patterns"]]
    hits = [(m.start(), i, m, r) for i, (p, r) in enumerate(rules) if (m := p.search(line, at))]
    if not hits:
        return len(line), None
    _, _, match, rule = min(hits, key=lambda hit: hit[:2])
    if "name" in rule:
        size = match.end() - match.start()
        found[start + match.start() : start + match.end()] = [rule["name"]] * size
    for number, capture in rule.get("captures", {}).items():
        if match[int(number)] is not None:
            first, last = match.span(int(number))
            found[start + first : start + last] = [capture["name"]] * (last - first)
    return max(match.end(), at + 1), rule if "begin" in rule else None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_tokens_have_the_scope_of_their_class(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    at = scopes(text)
    wrong = [
        (str(token), token.type, at[token.start_pos])
        for token in tokens(SourceFile(path.name, text))
        if (expected := CLASSES.get(token.type)) and expected != at[token.start_pos]
    ]
    assert wrong == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_names_are_no_keywords_and_keywords_no_names(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    at = scopes(text)
    found = tokens(SourceFile(path.name, text))
    names = [str(t) for t in found if t.type == "NAME" and at[t.start_pos].startswith(NO_NAME)]
    assert names == []
    words = [t for t in found if t.type.isalpha() and str(t) == t.type.lower()]
    assert [str(t) for t in words if at[t.start_pos].startswith("variable")] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_comments_are_the_comments_of_the_compiler(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    coloured = {i for i, scope in enumerate(scopes(text)) if scope.startswith("comment")}
    spans = [comment.span for comment in trivia.comments(SourceFile(path.name, text))]
    assert coloured == {i for span in spans for i in range(span.start, span.end)}


def test_strings_end_where_the_lexer_ends_them() -> None:
    text = 'a = "x \\" # y" # c\nb = r"\\d"\nc = """one\n"two" # three\n"""\nd = 1\n'
    at = scopes(text)
    assert at[text.index("# y")] == "string.quoted.double.forge"
    assert at[text.index("# three")] == "string.quoted.triple.forge"
    assert at[text.index("d = 1")] == "variable.other.forge"


def test_the_committed_grammar_is_the_generated_one() -> None:
    committed = (ROOT / "grammar/forge.tmLanguage.json").read_text(encoding="utf-8")
    assert committed == textmate.page(), "run `python -m forgedsl.docs`"
