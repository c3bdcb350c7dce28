"""D603 shared-seed: one fixed seed for all completions of a training sampler.

Replicas and siblings with one seed draw the same randomness: groups lose their diversity
(verl #5179, TRL #7040). Without the setting every completion gets a seed of its own, derived from
run.seed, group and sibling, so that runs repeat all the same.

    sampling { temperature = 1.0, max_tokens = 512, seed = 7 }         # fires

Remove `seed`; set `run.seed`.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.diagnostics import Diagnostic, Edit, Fix, Severity
from forgedsl.lint.view import View, place

CODE = "D603"
NAME = "shared-seed"
LEVEL = "D"


def check(view: View) -> Iterator[Diagnostic]:
    for service in view.samplers():
        value = service.settings["sampling.seed"]
        if value.value is None:
            continue
        span = place(value, service)
        yield Diagnostic(
            code=CODE,
            name=NAME,
            severity=Severity.ERROR,
            message=f"all completions of `{service.name}` share the seed {value.value}",
            span=span,
            help="remove it and set `run.seed`: every completion then gets a seed of its own",
            fix=Fix(
                message="derive it per completion",
                edits=(Edit(text="none", span=span),),
                safe=False,
            ),
        )
