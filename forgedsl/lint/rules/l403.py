"""L403 local-denominator: a mean written by hand, with a denominator of its own.

Partial losses of microbatches and ranks are added up, so a denominator must count the whole
optimizer step. A sum over a sum is right for one microbatch and wrong for two: gradients came out
0.5 to 4 times too large in verl #906, open-instruct #1161 and TRL #3021. Inside a sequence, a
division by a count of other tokens than those summed, or by one that can be 0, is the same slip.

    minimize seq_sum(pg, mask) / seq_sum(valid, mask)                    # fires
    minimize seq_mean(sum(pg, T, mask) / num_tokens)                     # fires
    minimize seq_mean(mean(pg, T, mask))                                 # silent

Use an aggregator, `token_mean(pg, mask)`, or `mean(pg, T, mask)` within a sequence.
"""

from forgedsl.diagnostics import Edit, Fix
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.losses import LossView, Spot
from forgedsl.lint.view import View
from forgedsl.losses.tree import Tree
from forgedsl.syntax import ast

finding = rule(__doc__, "D")
SCALES = ("neg", "expand", "stop", "float")


def check(view: View) -> Findings:
    for loss in view.losses:
        for node in loss.once(hand_written):
            spot = loss.spot(node)
            yield finding(
                "this mean has a denominator of its own",
                spot,
                help="use an aggregator such as token_mean, or `mean(x, T, mask)` within a "
                "sequence",
                fix=_mean(loss, spot),
            )


def hand_written(loss: LossView) -> tuple[int, ...]:
    """The divisions that are means written by hand."""
    values = loss.tree.values
    divisions = (node for node, value in enumerate(values) if value.op == "div")
    return tuple(node for node in divisions if is_hand_written(loss.tree, node))


def is_hand_written(tree: Tree, node: int) -> bool:
    """Whether a division is a sum over tokens by a count that is not exactly theirs."""
    numerator, divisor = tree.values[node].args
    masks = _summed_under(tree, numerator)
    if not masks:
        return False
    divisor = _bare(tree, divisor)
    value = tree.values[divisor]
    if value.op == "max" and _is_one(tree, value.args[1]):
        counted = tree.values[_bare(tree, value.args[0])]
        return counted.op == "seq_count" and counted.args[0] not in masks
    if value.op == "input" and value.attr == "num_tokens":
        return True
    return value.op == "seq_count" or (value.op == "seq_sum" and _counts(tree, value.args[0]))


def _summed_under(tree: Tree, node: int) -> set[int]:
    """The masks of the sum that a value is, up to factors."""
    value = tree.values[node]
    if value.op == "seq_sum":
        return {value.args[1]}
    if value.op in SCALES:
        return _summed_under(tree, value.args[0])
    if value.op == "mul":
        return _summed_under(tree, value.args[0]) | _summed_under(tree, value.args[1])
    return set()


def _bare(tree: Tree, node: int) -> int:
    while tree.values[node].op in ("expand", "float", "stop"):
        node = tree.values[node].args[0]
    return node


def _is_one(tree: Tree, node: int) -> bool:
    value = tree.values[node]
    return value.op == "const" and value.attr == 1.0


def _counts(tree: Tree, node: int) -> bool:
    """Whether a sum of this is a count: of ones, or of true."""
    value = tree.values[_bare(tree, node)]
    return (value.op == "const" and value.attr == 1.0) or value.type.dtype == "bool"


def _mean(loss: LossView, spot: Spot) -> Fix | None:
    """`sum(x, T, m) / anything` -> `mean(x, T, m)` where it is written so."""
    node = spot.node
    if not isinstance(node, ast.Binary) or not isinstance(node.left, ast.Call):
        return None
    function = node.left.function
    if function.text != "sum":
        return None
    start = Edit(text="mean", span=function.span)
    end = type(node.span)(node.span.file, node.left.span.end, node.span.end)
    return Fix(message="write `mean`", edits=(start, Edit(text="", span=end)), safe=False)
