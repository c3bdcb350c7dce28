"""D662 rows-left-out: most rows of a dataset may be unusable, and nothing ends the run.

    max_bad_rows = 1.0       # fires: one of two files has other columns, and is never drawn
    max_bad_rows = 0.2       # silent
    prompt = first(row.question, row.problem)        # for sources with other columns

Rows that cannot be read are left out. If a source has other column names, all of its rows are left
out, and the mixture is not the one in the file (verl #7807, TRL #3569). Read both names with
`first`, and set a low `max_bad_rows`: the run ends if it loses more rows.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place

finding = rule(__doc__, "W")
MOST = 0.5


def check(view: View) -> Findings:
    for dataset in view.program.datasets.values():
        allowed = dataset.settings["max_bad_rows"]
        if allowed.value > MOST:
            yield finding(
                f"`{dataset.name}` may lose {100 * allowed.value:g} % of its rows, and the run "
                "goes on with the rest",
                place(allowed, dataset),
                help="`max_bad_rows = 0.05`; for columns with two names, "
                "`first(row.question, row.problem)`",
            )
