"""D602 greedy-training: temperature 0 in a sampler that is trained on.

All completions of a prompt are then equal, so advantages are zero and nothing is learned. In a run
that learned nothing, 70 % of the groups had equal scores (CoursIA #10603).

    sampling { temperature = 0.0, max_tokens = 512 }            # fires
    sampling { temperature = 1.0, max_tokens = 512 }            # silent

Train at temperature 1.0; evaluate greedily with `sample { temperature = 0.0 }` of an eval. A frozen
teacher may be greedy.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place

finding = rule(__doc__, "E")


def check(view: View) -> Findings:
    for service in view.trained_samplers():
        value = service.settings["sampling.temperature"]
        if value.value == 0:
            yield finding(
                f"`{service.name}` samples greedily: all completions of a prompt are equal",
                place(value, service),
                help="`temperature = 1.0`; an eval may be greedy",
            )
