"""L412 length-bias: a mean per sequence, with long sequences.

`seq_mean(x, mask)` divides each sequence by its own length, so a token of a long completion weighs
less than one of a short completion. Wrong completions are then penalized less the longer they are
(Dr.GRPO, 2503.20783).

    sampling { temperature = 1.0, max_tokens = 8192 }
    minimize seq_mean(pg, mask)                               # fires: more than 2048 tokens
    minimize token_mean(pg, mask)                             # silent

Use `token_mean`, which weighs all tokens alike, or `fixed_horizon`, which divides by a constant.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View

finding = rule(__doc__, "I")
LONG = 2048
LINEAR = ("neg", "add", "sub", "mul", "expand", "where")


def check(view: View) -> Findings:
    longest = view.max_tokens
    if longest is None or longest <= LONG:
        return
    for loss in view.losses:
        mean = loss.cached(_sequence_mean) if loss.step is not None else None
        if mean is not None:
            yield finding(
                f"a token of a {longest}-token answer weighs {longest // 64} times less than one "
                "of a 64-token answer",
                loss.spot(mean),
                help="`token_mean(x, mask)`, or `fixed_horizon(x, mask, horizon)`",
            )


def _sequence_mean(loss: LossView) -> int | None:
    """Return a mean over a sequence in which the loss is linear."""
    values = loss.tree.values
    pending = [values[n].args[0] for n in loss.objective if values[n].op == "total_sum"]
    while pending:
        node = pending.pop()
        value = values[node]
        if not value.type.diff:
            continue
        if value.op == "div" and values[value.args[0]].op == "seq_sum":
            return node
        if value.op in LINEAR:
            pending += value.args
    return None
