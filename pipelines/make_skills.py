"""Data and tokenizer of the small model that calls tools, writes lines and grades them.

Nothing enters; these files leave, beside this module:

  data/skills_demos.parquet  chats of three kinds: an order at the desk with its tool calls, a line
                            of four words, a line with its grade
  data/desk.jsonl           orders (`#37*13+85=`: 13 of item 37, and 85), desk_test.jsonl others
  data/lines.jsonl          requests for a line (`line s:`), lines_test.jsonl of other letters
  tokenizers/skills/        one token a character; tags and frames of tool calls are one token each

Demonstrations are of mixed quality on purpose, as those of `make_data`: three orders in ten are
done right, the others guess the price, guess the answer or slip; two words in five begin with the
letter that was asked for. Grades are right.

Example: `python -m forgedsl.pipelines.make_skills --check` exits 1 if a file differs.
"""

from __future__ import annotations

import random
import string
import sys

from forgedsl.pipelines.make_data import lines_of, messages, tokenizer_of, write_or_check

NUM_ORDERS, NUM_LINES, NUM_GRADES = 3_000, 1_500, 6_000
NUM_TASKS, NUM_TESTS = 1_600, 200
ITEMS, COUNTS, EXTRAS, PRICES = range(100), range(2, 20), range(1, 100), range(11, 100)
WAYS = {"right": 6, "no_lookup": 6, "guess": 4, "slip": 4}
TESTED = "glst"
"""letters that no line is asked for in training with reinforcement"""
LEXICON = """
any apple arm art ash away   bay bird blue bold bread busy   calm car clay cold cook crow
dark day deep dog dry dust   ear east echo edge egg ever   fall far few fire fish fog
gate girl glad gold good grow   hand hat high hill home hot   lake land late leaf long low
man map milk mine moon much   new next night nine noon note   pale path pen pink pond pure
rain red rich river road room   salt sand sea sing slow sun   tall tea ten tide time tree
wall warm wet wide wind word
"""
WORDS = {
    letter: [word for word in LEXICON.split() if word[0] == letter]
    for letter in sorted({word[0] for word in LEXICON.split()})
}
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'tool' %}<tool_response>{{ message['content'] }}</tool_response>"
    "{% else %}{{ message['content'] }}{% endif %}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)
LOOKUP = '{"name": "lookup", "arguments": {"item": "'
CALCULATE = '{"name": "calculate", "arguments": {"expression": "'
END = '"}}'
FRAME = (
    "<answer>", "</answer>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
    LOOKUP, CALCULATE, END,
)  # fmt: skip

Order = tuple[int, int, int]
Row = dict[str, object]


def orders() -> list[Order]:
    """Distinct orders in random order: item, how many of it, what else is to be paid."""
    rng = random.Random("skills/orders")
    numbers = rng.sample(range(len(ITEMS) * len(COUNTS) * len(EXTRAS)), NUM_TASKS + NUM_TESTS)
    return [
        (ITEMS[n % 100], COUNTS[n // 100 % len(COUNTS)], EXTRAS[n // 100 // len(COUNTS)])
        for n in numbers
    ]


def question(order: Order) -> str:
    return f"#{order[0]}*{order[1]}+{order[2]}="


def call(frame: str, argument: object) -> Row:
    return {"role": "assistant", "content": f"<tool_call>{frame}{argument}{END}</tool_call>"}


def order_row(order: Order, rng: random.Random) -> Row:
    """A conversation at the desk, one of WAYS."""
    way = rng.choices(list(WAYS), weights=list(WAYS.values()))[0]
    item, count, extra = order
    price = rng.choice(PRICES)
    chat: list[Row] = [{"role": "user", "content": question(order)}]
    if way in ("right", "slip"):
        chat += [call(LOOKUP, item), {"role": "tool", "content": str(price)}]
    if way == "slip":
        slips = [(price + rng.choice((-10, -1, 1, 10)), count, extra),
                 (price, count + rng.choice((-1, 1)), extra),
                 (price, count, extra + rng.choice((-1, 1)))]  # fmt: skip
        price, count, extra = rng.choice(slips)
    result = price * count + extra
    if way != "guess":
        chat.append(call(CALCULATE, f"{price}*{count}+{extra}"))
        chat.append({"role": "tool", "content": str(result)})
    chat.append({"role": "assistant", "content": f"<answer>{result}</answer>"})
    return {"messages": chat}


def line(letter: str, wanted: int, length: int, rng: random.Random) -> str:
    """Some different words, `wanted` of which begin with the letter."""
    others = [word for word in LEXICON.split() if word[0] != letter]
    words = rng.sample(WORDS[letter], wanted) + rng.sample(others, length - wanted)
    rng.shuffle(words)
    return " ".join(words) + "."


def line_row(rng: random.Random) -> Row:
    letter = rng.choice(list(WORDS))
    wanted = sum(rng.random() < 0.4 for _ in range(4))
    return {"messages": messages(f"line {letter}:", line(letter, wanted, 4, rng))}


def grade_row(rng: random.Random) -> Row:
    """A line of one to four words and its grade, how many of them begin with the letter; written
    as the judge of `writing.forge` is asked."""
    letter, length = rng.choice(list(WORDS)), rng.randrange(1, 5)
    wanted = rng.randrange(length + 1)
    asked = f"0 to 4, line {letter}: {line(letter, wanted, length, rng)}="
    return {"messages": messages(asked, str(wanted))}


def demos() -> list[Row]:
    """Demonstrations in random order; no order of them is a held-out one."""
    rng, train = random.Random("skills/demos"), orders()[NUM_TESTS:]
    rows = [order_row(rng.choice(train), rng) for _ in range(NUM_ORDERS)]
    rows += [line_row(rng) for _ in range(NUM_LINES)]
    rows += [grade_row(rng) for _ in range(NUM_GRADES)]
    rng.shuffle(rows)
    return rows


def parquet_of(rows: list[Row]) -> bytes:
    from pyarrow import BufferOutputStream, Table, parquet

    sink = BufferOutputStream()
    parquet.write_table(Table.from_pylist(rows), sink, compression="zstd")
    return bytes(sink.getvalue())


def contents() -> dict[str, bytes]:
    """Every file by its path relative to this module."""
    known = orders()
    rows: dict[str, list[Row]] = {
        "desk": [{"question": question(order)} for order in known[NUM_TESTS:]],
        "desk_test": [{"question": question(order)} for order in known[:NUM_TESTS]],
        "lines": [{"letter": letter} for letter in WORDS if letter not in TESTED],
        "lines_test": [{"letter": letter} for letter in TESTED],
    }
    files = {f"data/{name}.jsonl": lines_of(found).encode() for name, found in rows.items()}
    files["data/skills_demos.parquet"] = parquet_of(demos())
    characters = "".join(c for c in string.printable if c.isprintable()) + "\n"
    written = tokenizer_of(FRAME, characters, TEMPLATE)
    return files | {f"tokenizers/skills/{name}": text.encode() for name, text in written.items()}


if __name__ == "__main__":
    sys.exit(write_or_check(contents(), "Write the data and the tokenizer of skills_sft."))
