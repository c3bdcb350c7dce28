"""L434 opaque-loss: the loss is a Python class, which is not checked.

For a loss in the language, the gradient is derived and checked, rules look for wrong signs,
normalisers, masks and ratios, and it runs as one fused kernel. Of a `torch.nn.Module` only the
fields are known. It runs in plain torch, and the log-probs it reads are computed twice.

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
