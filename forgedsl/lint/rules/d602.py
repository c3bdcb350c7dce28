"""D602 greedy-training: temperature 0 in a sampler that is trained on.

All siblings of a prompt are then the same completion: advantages are zero and nothing is learned.

    sampling { temperature = 0.0, max_tokens = 512 }            # fires

Train at temperature 1.0; evaluate greedily with `sample { temperature = 0.0 }` of an eval.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.diagnostics import Diagnostic, Severity
from forgedsl.lint.view import View, place

CODE = "D602"
NAME = "greedy-training"
LEVEL = "E"


def check(view: View) -> Iterator[Diagnostic]:
    for service in view.samplers():
        value = service.settings["sampling.temperature"]
        if value.value == 0:
            yield Diagnostic(
                code=CODE,
                name=NAME,
                severity=Severity.ERROR,
                message=f"`{service.name}` samples greedily: all siblings are equal",
                span=place(value, service),
                help="`temperature = 1.0`; an eval may be greedy",
            )
