"""Data and tokenizer of the small model that writes Python functions.

Nothing enters; these files leave, beside this module:

  data/code_demos.parquet   chats: a function in a few words, and a program in a block of code
  data/code.jsonl           functions to write, each with three assertions, in the format of
                            TIGER-Lab/AceCode-87K; code_test.jsonl: others
  tokenizers/code/          one token a character; words, fences, frames one each

A function is what it starts from and two operations, and the programs that write it stand in one
line or two:

  f(s): largest of s, plus 3, times 7    def f(s):                  def f(s):
                                             return (max(s)+3)*7        y = max(s)+3
                                                                        return y*7

Held-out functions combine a start and operations that no demonstration and no training row
combines. Demonstrations are of mixed quality on purpose, as those of `make_data`: a third is
right, the others mistake the start, an operation, a number, the order or the syntax.

Example: `python -m forgedsl.pipelines.make_code --check` exits 1 if a file differs.
"""

from __future__ import annotations

import itertools
import random
import string
import sys
from collections.abc import Callable

from forgedsl.pipelines.make_data import lines_of, messages, tokenizer_of, write_or_check
from forgedsl.pipelines.make_skills import parquet_of

NUM_DEMOS, NUM_TASKS, NUM_TESTS = 9_000, 1_600, 200
NUM_HELD_OUT = 40
"""combinations of a start and two operations that only the held-out rows have"""
NUMBERS = range(2, 20)
WAYS = {"right": 6, "start": 2, "operation": 3, "number": 3, "order": 1, "syntax": 3}
STARTS = {
    "x": "x", "size of x": "abs(x)", "sum of s": "sum(s)", "largest of s": "max(s)",
    "smallest of s": "min(s)", "length of s": "len(s)", "first of s": "s[0]", "last of s": "s[-1]",
    "sum of squares of s": "sum(i*i for i in s)", "number of odd in s": "sum(i%2 for i in s)",
}  # fmt: skip
OPERATIONS = {"plus": "+", "minus": "-", "times": "*", "modulo": "%", "squared": "**2"}
BINDS = {"plus": 1, "minus": 1, "times": 2, "modulo": 2, "squared": 3}
"""how tightly an operation binds; what binds less before it needs parentheses"""
FRAME = (
    "```python\n", "\n```", "def f(", "):\n    ", "return ", "\n    ", "**2",
    " for i in s)", "abs(", "sum(", "max(", "min(", "len(", "f(x): ", "f(s): ", "size of ",
    "sum of ", "largest of ", "smallest of ", "length of ", "first of ", "last of ", "squares of ",
    "number of odd in ", ", plus ", ", minus ", ", times ", ", modulo ", ", squared",
)  # fmt: skip
TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)

Operation = tuple[str, int]
"""its name and its number (0: it has none)"""
Function = tuple[str, Operation, Operation]
"""a start, and what happens to it"""
Row = dict[str, object]


def kinds() -> list[tuple[str, str, str]]:
    """All combinations in random order; the first ones are held out."""
    found = list(itertools.product(STARTS, OPERATIONS, OPERATIONS))
    random.Random("code/kinds").shuffle(found)
    return found


def operation(kind: str, rng: random.Random) -> Operation:
    return kind, 0 if kind == "squared" else rng.choice(NUMBERS)


def function(kinds: list[tuple[str, str, str]], rng: random.Random) -> Function:
    start, first, second = rng.choice(kinds)
    return start, operation(first, rng), operation(second, rng)


def argument(start: str) -> str:
    return start[-1]


def question(function: Function) -> str:
    """`f(s): largest of s, plus 3, squared.`"""
    start, *operations = function
    said = "".join(f", {kind} {number}" if number else f", {kind}" for kind, number in operations)
    return f"f({argument(start)}): {start}{said}."


def applied(text: str, binds: int, operation: Operation) -> tuple[str, int]:
    """An expression after an operation, and how tightly its outermost part binds."""
    kind, number = operation
    inner = f"({text})" if binds < BINDS[kind] or binds == BINDS["squared"] == BINDS[kind] else text
    return f"{inner}{OPERATIONS[kind]}{number or ''}", BINDS[kind]


def expression(function: Function) -> str:
    text, binds = STARTS[function[0]], 4
    for step in function[1:]:
        text, binds = applied(text, binds, step)
    return text


def body(function: Function, rng: random.Random) -> str:
    """The lines of a program, in one step or in two."""
    if rng.random() < 0.5:
        return f"return {expression(function)}"
    start, first, second = function
    y = applied(STARTS[start], 4, first)[0]
    return f"y = {y}\n    return {applied('y', 4, second)[0]}"


def mistaken(function: Function, way: str, rng: random.Random) -> Function:
    """The function that a program computes which mistakes one part of it."""
    start, first, second = function
    which = rng.randrange(2)
    kind, number = (first, second)[which]
    if way == "start":
        same = [other for other in STARTS if argument(other) == argument(start) and other != start]
        return rng.choice(same), first, second
    if way == "order":
        return start, second, first
    if way == "number" and number:
        wrong = kind, number + rng.choice((-1, 1))
    else:
        wrong = operation(rng.choice([other for other in OPERATIONS if other != kind]), rng)
    return (start, first, wrong) if which else (start, wrong, second)


SLIPS: tuple[Callable[[str], str], ...] = (
    lambda code: code.replace("):\n", ")\n", 1),
    lambda code: code.replace("return ", "", 1),
    lambda code: code.replace("\n```", ""),
)


def answer(function: Function, rng: random.Random) -> str:
    """A demonstration, one of WAYS."""
    way = rng.choices(list(WAYS), weights=list(WAYS.values()))[0]
    if way not in ("right", "syntax"):
        function = mistaken(function, way, rng)
    code = f"```python\ndef f({argument(function[0])}):\n    {body(function, rng)}\n```"
    return rng.choice(SLIPS)(code) if way == "syntax" else code


def cases(function: Function, rng: random.Random) -> list[str]:
    """Three assertions: of twenty triples of inputs the one that most mistakes differ on."""
    name = argument(function[0])
    ways = ("start", "operation", "number") * 4
    wrong = [compiled(mistaken(function, way, rng)) for way in ways]
    right = compiled(function)

    def told_apart(inputs: list[int | list[int]]) -> int:
        return sum(any(f(given) != right(given) for given in inputs) for f in wrong)

    inputs = max(([drawn(name, rng) for _ in range(3)] for _ in range(20)), key=told_apart)
    return [f"assert f({given}) == {right(given)}" for given in inputs]


def compiled(function: Function) -> Callable[[int | list[int]], int]:
    name, text = argument(function[0]), expression(function)
    made: Callable[[int | list[int]], int] = eval(f"lambda {name}: {text}")
    return made


def drawn(name: str, rng: random.Random) -> int | list[int]:
    if name == "x":
        return rng.randrange(-30, 31)
    return [rng.randrange(-9, 21) for _ in range(rng.randrange(2, 7))]


def rows(name: str, kinds: list[tuple[str, str, str]], count: int) -> list[Row]:
    """Different functions with their cases."""
    rng = random.Random(f"code/{name}")
    found: dict[str, Row] = {}
    while len(found) < count:
        made = function(kinds, rng)
        asked = question(made)
        if asked not in found:
            found[asked] = {"question": asked, "test_cases": cases(made, rng)}
    return list(found.values())


def demos() -> list[Row]:
    """Demonstrations of what is not held out."""
    rng, known = random.Random("code/demos"), kinds()[NUM_HELD_OUT:]
    made = [function(known, rng) for _ in range(NUM_DEMOS)]
    return [{"messages": messages(question(f), answer(f, rng))} for f in made]


def contents() -> dict[str, bytes]:
    """Every file by its path relative to this module."""
    known = kinds()
    files = {
        "data/code.jsonl": lines_of(rows("tasks", known[NUM_HELD_OUT:], NUM_TASKS)).encode(),
        "data/code_test.jsonl": lines_of(rows("tests", known[:NUM_HELD_OUT], NUM_TESTS)).encode(),
        "data/code_demos.parquet": parquet_of(demos()),
    }
    characters = "".join(c for c in string.printable if c.isprintable()) + "\n"
    written = tokenizer_of(FRAME, characters, TEMPLATE)
    return files | {f"tokenizers/code/{name}": text.encode() for name, text in written.items()}


if __name__ == "__main__":
    sys.exit(write_or_check(contents(), "Write the data and the tokenizer of code_sft."))
