"""L441 divided-twice: a loss divides by the length of an answer twice.

    minimize seq_mean(-gain / num_tokens, mask)                              # fires
    minimize seq_mean(-gain, mask)                                           # silent
    minimize seq_mean(mean(-gain, T, mask))                                  # silent

`seq_mean(x, mask)` is the mean over the tokens of each answer, then over the answers. A second
division by the length gives an answer of 1000 tokens a thousandth of the gradient: long answers are
hardly trained, right or wrong. 2503.20783 shows how far one division already favours length. Divide
once. A length inside of a ratio, as in GSPO, is no such division.
"""

from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.losses import LossView
from forgedsl.lint.view import View
from forgedsl.losses.tree import Tree

finding = rule(__doc__, "D")
THROUGH = ("neg", "add", "sub", "mul", "expand", "float", "where", "min", "max", "seq_sum", "stop")
"""operations whose result is proportional to a factor of their operand"""


def check(view: View) -> Findings:
    for loss in view.losses:
        node = loss.cached(_twice)
        if node is not None:
            yield finding(
                "this divides by the length of an answer, and the mean divides by it again",
                loss.spot(node),
                help="remove this division; `token_mean(x, mask)` is the mean in which all tokens "
                "count alike",
            )


def _twice(loss: LossView) -> int | None:
    """Return a division by a length inside of the numerator of another one."""
    values = loss.tree.values
    for node in sorted(loss.objective & loss.live):
        value = values[node]
        if value.op == "div" and value.type.diff and _is_length(loss.tree, value.args[1]):
            pending = [value.args[0]]
            while pending:
                inner = values[at := pending.pop()]
                if inner.op == "div":
                    if _is_length(loss.tree, inner.args[1]):
                        return at
                    pending.append(inner.args[0])
                pending += inner.args if inner.op in THROUGH else ()
    return None


def _is_length(tree: Tree, node: int) -> bool:
    """True for the number of tokens of a sequence, also of at least 1."""
    value = tree.values[node]
    while value.op in ("expand", "float", "max", "clamp", "stop"):
        value = tree.values[value.args[0]]
    return value.op == "seq_count" or (value.op == "input" and value.attr == "num_tokens")
