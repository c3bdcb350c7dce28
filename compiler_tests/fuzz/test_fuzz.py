"""No input raises anything but diagnostics, and none takes over a second.

Three sources of input: bytes of a pipeline changed at random, words of it exchanged (mostly still
well formed, so that resolution and the later checks run), and random sequences of tokens. Seeds are
fixed; FORGE_DEEP=1 raises the counts to over 100,000 inputs.
"""

import os
import random
import re
import time
from pathlib import Path

import pytest

from forgedsl.diagnostics import Reporter
from forgedsl.lint.engine import lint_source
from forgedsl.report import full, json
from forgedsl.syntax import decode

ROOT = Path(__file__).parents[2]
COUNT = 33_400 if os.environ.get("FORGE_DEEP") == "1" else 250
CHUNKS = 4
BASE = (ROOT / "pipelines" / "grpo_math.forge").read_text("utf-8")
WORDS = list(re.finditer(r'[A-Za-z_][\w.]*|\d[\w.]*|"[^"\n]*"', BASE))
VOCABULARY = [word[0] for word in WORDS] + [
    "auto", "none", "true", "[1, 2]", "f(x)", "-1", "0", "1e30", "x if y else z", "rl.k3",
    "gsm8k.draw(1)", "trainer.procs", "policy.context", "1 / 0", '"\\q"',
]  # fmt: skip
TOKENS = [
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "=",
    "==",
    "!=",
    "<=",
    ",",
    "\n",
    '"',
    '"""',
    "#",
    "##",
    "param",
    "flow",
    "sync",
    "->",
    "..",
    "**",
    "-",
    "+",
    "*",
    "/",
    "%",
    "not",
    "and",
    "or",
    "if",
    "else",
    "1",
    "1.5",
    "10min",
    "2GiB",
    "x",
    "a.b",
    ":",
    "service",
    "model",
    "loss",
    'r"',
    "none",
    "true",
    "return",
    "minimize",
    "report",
    "require",
    "import",
    "import_python",
    '"std/rl"',
    "as",
    "diff",
    "\t",
    "\r\n",
    "é",
    "\x0b",
    "profile",
    "when",
    "schedule",
]


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


@pytest.mark.parametrize("make", [bytes_changed, words_exchanged, random_tokens])
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
