"""A304 stale-prefix-cache: new weights, old KV.

Without a reset the generator goes on decoding from KV computed by older weights: in NeMo-RL #4018
it was up to 17 updates old. Log-probs and tokens then belong to no policy at all.

    sync trainer -> generator { reset_prefix_cache = false }          # fires
    sync trainer -> generator { every = 1 }                           # silent

Leave `reset_prefix_cache` at true, or switch `engine.prefix_caching` off.
"""

from forgedsl.diagnostics import Edit, Fix
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "D")


def check(view: View) -> Findings:
    program = view.program
    for step in program.flow:
        if step.op != "sync" or step.settings["reset_prefix_cache"].value:
            continue
        target = program.services[step.settings["target"].value.name]
        caching = target.settings.get("engine.prefix_caching")
        if caching is None or not caching.value:
            continue
        span = step.settings["reset_prefix_cache"].origin.span or step.span
        yield finding(
            f"`{target.name}` would mix KV of old weights with new weights",
            span,
            help="reset the prefix cache on sync, or set `engine.prefix_caching = false`",
            fix=Fix(message="reset it", edits=(Edit(text="true", span=span),), safe=False),
        )
