"""D652 repeated-greedy: an eval takes several greedy answers to each prompt.

    sample { temperature = 0.0, n = 8 }                  # fires: the same answer, eight times
    sample { temperature = 0.0 }                         # silent
    sample { temperature = 1.0, n = 8 }                  # silent

At temperature 0 all answers to a prompt are equal. The eval costs eight times as much, its mean
does not get more exact, and its pass@8 is its pass@1 (verl #553). Take one answer, or sample.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for each in view.program.evals.values():
        answers, temperature = each.settings["sample.n"], each.settings["sample.temperature"]
        if temperature.value == 0 and answers.value > 1 and each.settings["env"].value is None:
            yield finding(
                f"`{each.name}` takes {answers.value} greedy answers to a prompt, which are equal",
                place(answers, each),
                help="`n = 1`, or `temperature = 1.0`",
            )
