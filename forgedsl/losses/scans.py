"""Infers recurrences over the tokens of a sequence, for returns and GAE in advantages.

    next(x, T, mask)                 x of the next valid token, 0 after the last
    scan_back(x, decay, T, mask)     y = x + decay * next(y, T, mask), from the last token backwards

They run over data, once per batch of a step. The loss gets their results as fields.
"""

from __future__ import annotations

from forgedsl.losses import reductions
from forgedsl.losses.build import Typed
from forgedsl.losses.walk import Walk, arguments
from forgedsl.schema.builtins import SCANS
from forgedsl.syntax import ast
from forgedsl.types.tensors import TensorType

NUMBERS = ("f32", "i64", "bf16")


def scan(inference: Walk, node: ast.Call) -> Typed:
    """Infer `next(value, T, mask)` and `scan_back(delta, gamma * lam, T, mask)`."""
    name = node.function.text
    bound = arguments(inference, node, SCANS[name])
    if bound is None:
        return inference.broken(node.span)
    if inference.calls[0].kind != "advantage":
        message = (
            f"`{name}` needs whole sequences of data, so it can be used only in an "
            "advantage over [B, T]"
        )
        help_ = "compute it in an advantage, and pass the result to the loss as a field of `replay`"
        return inference.error("T701", "axis", message, node.span, help=help_)
    if reductions.axis_name(inference, bound["axis"]) != "T":
        message = f"`{name}` works only along T, the tokens of a sequence"
        help_ = f"write {name}({', '.join(SCANS[name])}) with T as the axis"
        return inference.error("T701", "axis", message, bound["axis"].span, help=help_)
    operands = inference.operands([bound[key] for key in SCANS[name] if key in ("x", "decay")])
    if False in [inference.expect(operand, NUMBERS) for operand in operands]:
        return inference.broken(node.span)
    mask = reductions.mask_argument(inference, bound["mask"], operands[0])
    if mask is None or (operands[1:] and not _decays(inference, operands[1])):
        return inference.broken(node.span)
    build, axes = inference.build, mask.type.axes
    build.span = node.span
    expanded = [build.expand(operand.value, axes) for operand in operands]
    return Typed(build(name, *expanded, mask.value), TensorType(axes, "f32"), node.span)


def _decays(inference: Walk, decay: Typed) -> bool:
    """Report a decay with a value per token, or a constant one above 1; True if there is no
    mistake."""
    if decay.type.tokens:
        message = (
            f"the decay must be one number, or one for each sequence, but this is {decay.type}"
        )
        inference.error("T701", "axis", message, decay.span)
        return False
    value = inference.build.values[decay.value]
    if value.op == "const" and isinstance(value.attr, int | float) and abs(value.attr) > 1:
        message = f"a decay of {value.attr:g} makes values grow with the length of the sequence"
        inference.error("F113", "bad-value", message, decay.span, help="set it to at most 1")
        return False
    return True
