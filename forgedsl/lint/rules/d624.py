"""D624 pairs-exchanged: chosen and rejected answers are swapped, or read from the same column.

    chosen = row.rejected, rejected = row.chosen         # fires: named the other way round
    chosen = row.answer, rejected = row.answer           # fires: there is nothing to prefer
    chosen = row.chosen, rejected = row.rejected         # silent

The loss falls in either case, so the mistake shows only in what the policy answers (TRL #2578).
Read `chosen` from the column of preferred answers.
"""

from forgedsl.diagnostics import Label
from forgedsl.ir.program import Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.syntax.walk import reads

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    for dataset in view.program.datasets.values():
        sides = [dataset.settings[key].value for key in ("chosen", "rejected")]
        if not all(isinstance(side, Deferred) for side in sides):
            continue
        chosen, rejected = ([k for k, _ in reads(side.expr, "row") if k] for side in sides)
        texts = [" ".join(map(str, sum(keys, ()))) for keys in (chosen, rejected)]
        exchanged = "rejected" in texts[0] and "chosen" in texts[1]
        if exchanged or (chosen and chosen == rejected):
            yield finding(
                "chosen and rejected are exchanged"
                if exchanged
                else f"chosen and rejected of `{dataset.name}` are the same column",
                sides[0].expr.span,
                related=(Label(text="rejected", span=sides[1].expr.span),),
                help="`chosen` is the answer to prefer",
            )
