"""N907 numbers-apart: two numbers that do not fit each other, though each alone is usual.

    optimizer { lr = 1e-6 }, lora { rank = 16 }          # fires: adapters need ten times that
    optimizer { lr = 2e-5 }, lora { rank = 16 }          # silent
    rl.gae(score, values, rollout.mask, gamma = 0.99)    # fires: answers of 1024 tokens

Such a run starts, logs plausible numbers and learns nothing, or collapses: with LoRA at a learning
rate of full weights (TRL #2872, X-R1 #66), with full weights at that of LoRA (hello-agents #770),
with weights in bf16 and a rate so small that updates are rounded to 0 (AReaL #1634), with a value
clip for scores from 0 to 1 but scores up to 10 (stable-baselines #216). The note says which run or
paper has the range. The tables are `forgedsl/lint/numbers.py` and `numbers_of_losses.py`;
N906 reports numbers that are unusual alone.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.numbers import RANGES
from forgedsl.lint.view import View

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for row in RANGES:
        for number in row.numbers(view):
            if not row.low <= number.value <= row.high:
                yield finding(
                    number.message,
                    number.span,
                    notes=(row.source,),
                    help=row.help,
                )
                break
