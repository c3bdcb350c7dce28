"""The shipped arithmetic data and its character tokenizer, written by one deterministic program.

Nothing enters; these files leave, beside this module:

  data/arithmetic.jsonl        training problems, GSM8K's format (question, answer with `#### `)
  data/arithmetic_test.jsonl   held-out problems; no pair of numbers occurs in both files
  data/arithmetic_demos.jsonl  demonstrations of training problems as chat messages, good and bad
  data/arithmetic_pairs.jsonl  preferences: the right answer over a near miss, written alike, in the
                               format of argilla/distilabel-math-preference-dpo
  data/curriculum.jsonl        questions in English, from sums of one digit over word problems to
                               sums of two digits; curriculum_*.jsonl: held-out ones of each kind,
                               and 500 worked examples (demos) and preferences (pairs) of all kinds
  tokenizers/arithmetic/       tokenizer files, for AutoTokenizer, and generation_config.json

The demonstrations are of mixed quality on purpose: three in ten give the right answer, the rest one
of six near misses, and two in five skip the thinking step. A model trained on them knows the right
answer, prefers it to each of the others, and gives it less than half of the time: knowledge that
reinforcement learning can bring out, which it could not with a model that is merely half-trained.

Example: `python -m forgedsl.pipelines.make_data --check` exits 1 if a file differs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

NUM_TRAIN = 9_000
NUM_DEMOS = 12_000
NUM_PAIRS = 1_400
WRONG_FRACTION = 0.7
DIRECT_FRACTION = 0.4
"""demonstrations that answer without a thinking step"""
ERRORS = (-10, -2, -1, 1, 2, 10)

STAGES = ((("one_digit",), 960), (("one_digit", "words"), 1_440),
          (("one_digit", "words", "two_digits"), 2_400))  # fmt: skip
"""kinds of questions and how many rows of them, in the order of learning"""
NUM_HELD_OUT = {"one_digit": 24, "words": 24, "two_digits": 96}
NUM_WORKED = 500
NAMES = ("Tom", "Anna", "Sam", "Maria", "Ben", "Lily")
THINGS = ("apples", "books", "coins", "pencils", "shells", "cards")
STORIES = (
    "{0} has {1} {3} and gets {2} more. How many {3} does {0} have now?",
    "There are {1} {3} in a box and {2} {3} in a bag. How many {3} are there in all?",
    "{0} buys {1} {3} today and {2} {3} tomorrow. How many {3} does {0} buy?",
    "After {0} gave away {1} {3}, {2} {3} were left. How many {3} did {0} have before?",
)

CHARACTERS = "0123456789+-*/=<>()[]{}.,:;?!#$%&^_|~\\x \n"
ADDED_TOKENS = ("<think>", "</think>", "<answer>", "</answer>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
)

Pair = tuple[int, int]


def split_pairs() -> tuple[list[Pair], list[Pair]]:
    """All sums of two numbers below 100 in random order: (training, held-out)."""
    pairs = [(a, b) for a in range(100) for b in range(100)]
    random.Random("arithmetic/split").shuffle(pairs)
    return pairs[:NUM_TRAIN], pairs[NUM_TRAIN:]


def question(pair: Pair) -> str:
    return f"{pair[0]}+{pair[1]}="


def units_step(pair: Pair) -> str:
    """The sum of the units, which carries the one decision of the addition: `7+5=12`."""
    a, b = pair[0] % 10, pair[1] % 10
    return f"{a}+{b}={a + b}"


def problem_row(pair: Pair) -> dict[str, object]:
    return {
        "question": question(pair),
        "answer": f"{units_step(pair)}\n#### {pair[0] + pair[1]}",
    }


def near_miss(answer: int, rng: random.Random) -> int:
    return answer + rng.choice([error for error in ERRORS if answer + error >= 0])


def thinking(pair: Pair, rng: random.Random) -> str:
    """The step before the answer, which some leave out."""
    return "" if rng.random() < DIRECT_FRACTION else f"<think>{units_step(pair)}</think>"


def demo_row(pair: Pair, rng: random.Random) -> dict[str, object]:
    answer = sum(pair)
    if rng.random() < WRONG_FRACTION:
        answer = near_miss(answer, rng)
    return {
        "messages": [
            {"role": "user", "content": question(pair)},
            {"role": "assistant", "content": f"{thinking(pair, rng)}<answer>{answer}</answer>"},
        ]
    }


def demo_rows(train: list[Pair]) -> list[dict[str, object]]:
    """Every training problem once, then a second demonstration of some."""
    rng = random.Random("arithmetic/demos")
    pairs = train + rng.sample(train, NUM_DEMOS - len(train))
    return [demo_row(pair, rng) for pair in pairs]


def preference_row(pair: Pair, rng: random.Random) -> dict[str, object]:
    think, answer = thinking(pair, rng), sum(pair)
    return {
        "instruction": question(pair),
        "chosen_response": f"{think}<answer>{answer}</answer>",
        "rejected_response": f"{think}<answer>{near_miss(answer, rng)}</answer>",
    }


def preference_rows(train: list[Pair]) -> list[dict[str, object]]:
    """Preferences over answers to some of the training problems."""
    rng = random.Random("arithmetic/pairs")
    return [preference_row(pair, rng) for pair in rng.sample(train, NUM_PAIRS)]


def asked(kind: str, pair: Pair, rng: random.Random) -> dict[str, object]:
    """A question in English. What is asked for stands last: small models follow it best there."""
    a, b = pair
    if kind == "words":
        text = rng.choice(STORIES).format(rng.choice(NAMES), a, b, rng.choice(THINGS))
    else:
        text = f"What is {a} + {b}?"
    return {"question": f"{text} Answer with the number only.", "answer": f"#### {a + b}"}


def curriculum() -> dict[str, list[dict[str, object]]]:
    """Training rows in the order of learning, and held-out rows of each kind."""
    rng = random.Random("arithmetic/curriculum")
    pairs = {"one_digit": range(10), "words": range(2, 12), "two_digits": range(10, 100)}
    train: dict[str, list[Pair]] = {}
    found: dict[str, list[dict[str, object]]] = {"curriculum": []}
    for kind, numbers in pairs.items():
        shuffled = [(a, b) for a in numbers for b in numbers]
        rng.shuffle(shuffled)
        train[kind] = shuffled[NUM_HELD_OUT[kind] :]
        held_out = shuffled[: NUM_HELD_OUT[kind]]
        found[f"curriculum_{kind}"] = [asked(kind, pair, rng) for pair in held_out]
    for kinds, count in STAGES:
        picked = [(kind, rng.choice(train[kind])) for kind in rng.choices(kinds, k=count)]
        found["curriculum"] += [asked(kind, pair, rng) for kind, pair in picked]
    of_all = [(kind, rng.choice(train[kind])) for kind in rng.choices(list(train), k=NUM_WORKED)]
    found["curriculum_demos"] = [worked(kind, pair, rng) for kind, pair in of_all]
    found["curriculum_pairs"] = [preferred(kind, pair, rng) for kind, pair in of_all]
    return found


def messages(question: object, answer: str) -> list[dict[str, object]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def worked(kind: str, pair: Pair, rng: random.Random) -> dict[str, object]:
    """A question of the curriculum with the sum written out: `7 + 5 = 12`."""
    text = f"{pair[0]} + {pair[1]} = {sum(pair)}"
    return {"messages": messages(asked(kind, pair, rng)["question"], text)}


def preferred(kind: str, pair: Pair, rng: random.Random) -> dict[str, object]:
    """A question, a worked answer, and one that is wrong."""
    sides = (sum(pair), near_miss(sum(pair), rng))
    chosen, rejected = (f"{pair[0]} + {pair[1]} = {value}" for value in sides)
    return {
        "question": asked(kind, pair, rng)["question"],
        "chosen": chosen,
        "rejected": rejected,
    }


def tokenizer_of(added: Sequence[str], characters: str, template: str) -> dict[str, str]:
    """One token per character, and what is `added` as single tokens that stay visible."""
    from tokenizers import AddedToken, Tokenizer, decoders, models

    special = ("<pad>", "<unk>", "<eos>")
    vocab = {token: i for i, token in enumerate((*special, *added, *characters))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in added])
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 256,
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "eos_token": "<eos>",
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    generation = {"eos_token_id": vocab["<eos>"], "pad_token_id": vocab["<pad>"]}
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True) + "\n",
        "tokenizer_config.json": json.dumps(config, indent=2) + "\n",
        "generation_config.json": json.dumps(generation, indent=2) + "\n",
    }


def lines_of(rows: Sequence[Mapping[str, object]]) -> str:
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def contents() -> dict[str, bytes]:
    """Every file by its path relative to this module."""
    train, test = split_pairs()
    rows_by_file = {
        "data/arithmetic.jsonl": [problem_row(pair) for pair in train],
        "data/arithmetic_test.jsonl": [problem_row(pair) for pair in test],
        "data/arithmetic_demos.jsonl": demo_rows(train),
        "data/arithmetic_pairs.jsonl": preference_rows(train),
    } | {f"data/{name}.jsonl": rows for name, rows in curriculum().items()}
    texts = {name: lines_of(rows) for name, rows in rows_by_file.items()}
    files = tokenizer_of(ADDED_TOKENS, CHARACTERS, CHAT_TEMPLATE)
    folder = "tokenizers/arithmetic"
    texts |= {f"{folder}/{name}": text for name, text in files.items()}
    return {name: text.encode() for name, text in texts.items()}


def write_or_check(contents: Mapping[str, bytes], description: str) -> int:
    """Write the files, or compare those that are there with `--check`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    root = Path(__file__).parent
    differing = []
    for name, data in contents.items():
        path = root / name
        if check:
            if not path.is_file() or path.read_bytes() != data:
                differing.append(name)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            print(f"wrote {name}, {len(data):,} bytes")
    for name in differing:
        print(f"differs from what is written: {name}", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(write_or_check(contents(), "Write the shipped data and tokenizer."))
