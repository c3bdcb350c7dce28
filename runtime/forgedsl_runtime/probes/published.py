"""First rows of published datasets. Rewards are tried out on them if the data is not on this
machine.

hf("openai/gsm8k")  --rows_of-->  its first rows, as published (MIT; arXiv 2110.14168)
"""

from __future__ import annotations

from typing import Any

_GSM8K = (
    (
        "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in "
        "May. How many clips did Natalia sell altogether in April and May?",
        "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nNatalia sold 48+24 = <<48+24=72>>72 "
        "clips altogether in April and May.\n#### 72",
    ),
    (
        "Weng earns $12 an hour for babysitting. Yesterday, she just did 50 minutes of "
        "babysitting. How much did she earn?",
        "Weng earns 12/60 = $<<12/60=0.2>>0.2 per minute.\nWorking 50 minutes, she earned 0.2 x 50 "
        "= $<<0.2*50=10>>10.\n#### 10",
    ),
    (
        "Betty is saving money for a new wallet which costs $100. Betty has only half of the money "
        "she needs. Her parents decided to give her $15 for that purpose, and her grandparents "
        "twice as much as her parents. How much more money does Betty need to buy the wallet?",
        "In the beginning, Betty has only 100 / 2 = $<<100/2=50>>50.\nBetty's grandparents gave "
        "her 15 * 2 = $<<15*2=30>>30.\nThis means, Betty needs 100 - 50 - 30 - 15 = "
        "$<<100-50-30-15=5>>5 more.\n#### 5",
    ),
)
ROWS = {"openai/gsm8k": [{"question": q, "answer": a} for q, a in _GSM8K]}


def rows_of(source: Any) -> tuple[str, list[dict[str, Any]]]:
    """Return the name and known rows of a source of a job; no rows if they are not known."""
    name = source.id if source.kind == "hf" else ""
    return name, ROWS.get(name, [])
