"""L434 opaque-loss: a loss is a class in Python, of which nothing is checked.

What a loss in the language computes is known: its gradient is derived and checked, rules look for
wrong signs, normalisers, masks and ratios, and it runs as one fused kernel. Of a `torch.nn.Module`
nothing is known but the fields it is given; it runs in plain torch, behind log-probs that are
computed twice.

    loss hand(logprob: diff [B, T] f32, adv: [B] f32) = mine.Clip(eps = 0.2)     # fires
    loss grpo = rl.grpo(clip_low = 0.2)                                          # silent

Write it in the language where that is possible, or accept it with a reason:
`# forge: allow[L434] checked against the paper's code`.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

finding = rule(__doc__, "W")


def check(view: View) -> Findings:
    for function in view.program.functions.values():
        if (made := function.python) is not None:
            yield finding(
                f"nothing checks what `{made.name}` of {made.module} computes",
                function.span,
                help="the same in the language is checked, and runs as one fused kernel",
            )
