"""A312 no-gradient-left: gradients are clipped to nothing.

    optimizer { max_norm = 0.0 }                         # fires: every gradient is scaled to 0
    optimizer { max_norm = 1.0 }                         # silent

In other tools 0 means no clipping; here `max_norm` is the norm that gradients are clipped to, so
nothing is learned (robots #2028 lost a run to this). To switch clipping off, write a norm that no
gradient reaches: `max_norm = 1e9`.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View, place

finding = rule(__doc__, "E")


def check(view: View) -> Findings:
    for name in dict.fromkeys(step.receiver for step in view.steps):
        trainer = view.program.services[name]
        norm = trainer.settings.get("optimizer.max_norm")
        if norm is not None and norm.value == 0:
            yield finding(
                f"`{name}` clips every gradient to 0 and learns nothing",
                place(norm, trainer),
                help="`max_norm = 1.0`; without clipping: `max_norm = 1e9`",
            )
