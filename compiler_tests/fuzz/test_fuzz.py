"""No input raises anything but diagnostics, and none takes over a second.

Three sources of input: bytes of a pipeline changed at random, words of it exchanged (mostly still
well formed, so that resolution and the later checks run), and random sequences of tokens. Seeds are
fixed; FORGE_DEEP=1 raises the counts to over 100,000 inputs.
"""

import functools
import gc
import os
import random
import re
import time
from pathlib import Path

import lark
import pytest

from forgedsl.diagnostics import Reporter
from forgedsl.lint.engine import lint_source
from forgedsl.report import full, json
from forgedsl.syntax import decode

ROOT = Path(__file__).parents[2]
COUNT = 25_050 if os.environ.get("FORGE_DEEP") == "1" else 200
CHUNKS = 4
BASE = (ROOT / "pipelines" / "grpo_math.forge").read_text("utf-8")
WORDS = list(re.finditer(r'[A-Za-z_][\w.]*|\d[\w.]*|"[^"\n]*"', BASE))
VOCABULARY = [word[0] for word in WORDS] + [
    "auto", "none", "true", "[1, 2]", "f(x)", "-1", "0", "1e30", "x if y else z", "rl.k3",
    "gsm8k.draw(1)", "trainer.procs", "policy.context", "1 / 0", '"\\q"',
]  # fmt: skip
TOKENS = [
    "{", "}", "(", ")", "[", "]", "=", "==", "!=", "<=", ",", "\n", '"', '"""', "#", "##", "param",
    "flow", "sync", "->", "**", "-", "+", "*", "/", "%", "not", "and", "or", "if", "else",
    "1", "1.5", "10min", "2GiB", "x", "a.b", ":", "service", "model", "loss", 'r"', "none", "true",
    "return", "minimize", "report", "require", "import", "import_python", '"std/rl"', "as", "diff",
    "\t", "\r\n", "\u00e9", "\x0b", "profile", "when", "schedule",
]  # fmt: skip
TERMINALS = {
    "NAME": ["x", *(word for word in VOCABULARY if word.isidentifier())],
    "INT": ["0", "1", "64", "1_000"],
    "NUMBER": ["0.5", "1e-6"],
    "QUANTITY": ["10min", "2GiB", "64k"],
    "STRING": ['"x"', '""', '"std/rl"'],
    "RAW": ['r"\\d"'],
    "TEXT": ['"""text"""'],
    "CMP": ["<", "=="],
    "SUM": ["+", "-"],
    "PROD": ["*", "/", "%"],
    "_NL": ["\n", "\n\n"],
}
"""what the terminals of the grammar that are patterns may be"""
REPEATED = (
    "a", "a.", "a ", "1_", '"', '"""', "(", "{ a ", "- ", "#", "a = ", "a, ", "}", "\n", " ",
    "\t\n", "1 if 2 else ", "a = 1\n", "param a : int = 1\n", "# forge: allow[L405] x\n", "## x\n",
    "model m { a = 1 }\n", "flow t { x = f(y) }\n", "require 1 < 2\n", 'import "std/rl"\n', "a[",
)  # fmt: skip
"""what costs the square of its length where a pattern or a loop looks back"""


def bytes_changed(rng):
    data = bytearray(BASE.encode())
    for _ in range(rng.randint(1, 10)):
        at = rng.randrange(len(data))
        kind = rng.randrange(4)
        if kind == 0:
            del data[at : at + rng.randint(1, 40)]
        elif kind == 1:
            data[at] = rng.randrange(256)
        elif kind == 2:
            other = rng.randrange(len(data))
            data[at:at] = data[other : other + rng.randint(1, 60)]
        else:
            data[at:at] = rng.choice(TOKENS).encode()
    return bytes(data)


def words_exchanged(rng):
    text = BASE
    for word in sorted(rng.sample(WORDS, rng.randint(1, 4)), key=lambda m: -m.start()):
        text = text[: word.start()] + rng.choice(VOCABULARY) + text[word.end() :]
    return text.encode()


def random_tokens(rng):
    return " ".join(rng.choice(TOKENS) for _ in range(rng.randint(1, 200))).encode()


@functools.cache
def grammar():
    """(expansions by symbol, the least depth of a derivation of each symbol)."""
    made = lark.Lark(
        (ROOT / "grammar/forge.lark").read_text("utf-8"), parser="lalr", keep_all_tokens=True
    )
    rules = {}
    for rule in made.rules:
        rules.setdefault(rule.origin.name, []).append([symbol.name for symbol in rule.expansion])
    depth = dict.fromkeys(rules, 10**6)
    for _ in rules:
        for name, expansions in rules.items():
            depth[name] = min(1 + max([0, *(depth.get(s, 0) for s in e)]) for e in expansions)
    words = {t.name: [t.pattern.value] for t in made.terminals if t.pattern.type == "str"}
    return rules, depth, words | TERMINALS


def grammar_made(rng):
    """A random derivation of the grammar: well formed, and mostly without meaning."""
    rules, depth, words = grammar()
    out, pending, budget = [], ["start"], rng.randint(20, 400)
    while pending:
        symbol = pending.pop()
        if symbol not in rules:
            out.append(rng.choice(words[symbol]))
            continue
        budget -= 1
        fitting = rules[symbol]
        if budget < 0 or len(pending) > 60:
            least = min(max([0, *(depth.get(s, 0) for s in e)]) for e in fitting)
            fitting = [e for e in fitting if max([0, *(depth.get(s, 0) for s in e)]) == least]
        pending += reversed(rng.choice(fitting))
    return " ".join(out).encode()


def check(data):
    started = time.process_time()
    reporter = Reporter()
    source = decode(data, "fuzz.forge", reporter)
    if source is None:
        assert len(reporter.diagnostics) == 1
        return
    result = lint_source(source, ROOT / "pipelines")
    for diagnostic in result.diagnostics:
        assert diagnostic.message
        assert diagnostic.span.file in result.sources
        assert 0 <= diagnostic.span.start <= diagnostic.span.end
    full.render(result.diagnostics, result.sources)
    json.render(result.diagnostics, result.sources)
    assert time.process_time() - started < 1.0


@pytest.fixture(autouse=True)
def only_what_is_made_here_is_collected():
    """A worker holds a million objects of other tests, and to look at them takes up to a second."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.cover
@pytest.mark.parametrize("make", [bytes_changed, words_exchanged, random_tokens, grammar_made])
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_any_input_gives_diagnostics_and_nothing_else(make, chunk):
    decode(BASE.encode(), "warm-up.forge", Reporter())
    lint_source(decode(BASE.encode(), "w.forge", Reporter()), ROOT / "pipelines")
    for number in range(chunk, COUNT, CHUNKS):
        seed = f"{make.__name__} {number}"
        data = make(random.Random(seed))
        try:
            check(data)
        except Exception as error:
            raise AssertionError(f"{seed}: {data!r}") from error


@pytest.mark.parametrize("piece", REPEATED)
@pytest.mark.parametrize("before", ["", "param x : int = ", "model m {\n a = "])
def test_the_cost_of_a_long_text_is_linear(piece, before):
    check((before + piece * (20_000 // len(piece))).encode())
