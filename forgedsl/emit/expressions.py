"""Torch expressions: one Python text for each operation of the tree, with its precedence.

`render(op, ...)` gets the texts of the operands and returns the text of the result. Constants are
Python literals, so operations with a constant operand use the forms torch has for them.
"""

from __future__ import annotations

import re

from forgedsl.losses.tree import Value
from forgedsl.records import dataclass
from forgedsl.types.ops import BY_NAME

COMPARE, OR, AND, SUM, PRODUCT, UNARY, POWER, ATOM = range(8)

INFIX = {
    "add": ("+", SUM), "sub": ("-", SUM), "mul": ("*", PRODUCT), "div": ("/", PRODUCT),
    "mod": ("%", PRODUCT), "and": ("&", AND), "or": ("|", OR), "eq": ("==", COMPARE),
    "ne": ("!=", COMPARE), "lt": ("<", COMPARE), "le": ("<=", COMPARE), "gt": (">", COMPARE),
    "ge": (">=", COMPARE),
}  # fmt: skip
HELPERS = {
    "masked_sum": '''
def masked_sum(value, mask, x):
    """Sum over what is valid; masked entries are selected away, whatever they hold."""
    return torch.where(mask, torch.as_tensor(value, dtype=x.dtype), 0.0).sum()
''',
    "seq_sum": '''
def seq_sum(value, mask, x):
    """Sum over the valid tokens of each sequence: [N] to [B]."""
    value = torch.where(mask, torch.as_tensor(value, dtype=x.dtype), 0.0)
    return value.new_zeros(x.seq_valid.numel()).index_add(0, x.seq_id, value)
''',
    "seq_count": '''
def seq_count(mask, x):
    """Number of valid tokens of each sequence: [N] to [B]."""
    empty = torch.zeros(x.seq_valid.numel(), dtype=x.dtype, device=mask.device)
    return empty.index_add(0, x.seq_id, mask.to(x.dtype))
''',
    "seq_max": '''
def seq_max(value, mask, x):
    """Largest valid token of each sequence: [N] to [B]."""
    value = torch.where(mask, torch.as_tensor(value, dtype=x.dtype), float("-inf"))
    empty = value.new_full((x.seq_valid.numel(),), float("-inf"))
    return empty.scatter_reduce(0, x.seq_id, value, "amax")
''',
    "seq_min": '''
def seq_min(value, mask, x):
    """Smallest valid token of each sequence: [N] to [B]."""
    value = torch.where(mask, torch.as_tensor(value, dtype=x.dtype), float("inf"))
    empty = value.new_full((x.seq_valid.numel(),), float("inf"))
    return empty.scatter_reduce(0, x.seq_id, value, "amin")
''',
}


@dataclass(frozen=True, slots=True)
class Text:
    """A Python expression and its precedence."""

    code: str
    level: int = ATOM
    constant: bool = False

    def inside(self, level: int) -> str:
        return self.code if self.level >= level else f"({self.code})"


def literal(value: object) -> Text:
    """Return a Python literal."""
    code = repr(value)
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        code = f'float("{value}")'
    return Text(code, UNARY if code.startswith("-") else ATOM, constant=True)


def render(value: Value, args: list[Text], operands: list[Value], owner: str) -> Text:
    """Return the text of an operation on the texts of its operands. `owner` is a tensor of the
    dtype."""
    op = value.op
    if op in INFIX:
        symbol, level = INFIX[op]
        left, right = args
        left_level = level + 1 if level == COMPARE else level
        return Text(f"{left.inside(left_level)} {symbol} {right.inside(level + 1)}", level)
    if op in BY_NAME:
        form = BY_NAME[op].torch
        negated = form.startswith("-")
        text = form.format(args[0].inside(UNARY) if negated else args[0].code)
        return Text(text, UNARY if negated else ATOM)
    if op in ("side", "unside"):
        return args[0]
    if op in SPECIAL:
        return SPECIAL[op](value, args, owner)
    if op in HELPERS:
        call = f"{op}({', '.join(arg.code for arg in args)}, x)"
        return Text(call + _pairs(value, operands[-1]))
    raise AssertionError(f"no torch form for {op}")


def _pairs(value: Value, mask: Value) -> str:
    """Render an operation on pairs: pair p is the sequences 2p (chosen) and 2p + 1 (rejected)."""
    if "P" not in value.type.axes:
        return ""
    return {"T.chosen": "[0::2]", "T.rejected": "[1::2]"}.get(
        mask.type.tokens or "", ".view(-1, 2).sum(1)"
    )


def _expand(value: Value, args: list[Text], owner: str) -> Text:
    index = "x.seq_id // 2" if "P" in value.type.axes else "x.seq_id"
    return Text(f"{args[0].inside(ATOM)}[{index}]")


def _extreme(value: Value, args: list[Text], owner: str) -> Text:
    """Render min and max; with a constant operand they are one-sided clamps."""
    for mine, other in (args, args[::-1]):
        if other.constant:
            bound = "max" if value.op == "min" else "min"
            return Text(f"torch.clamp({mine.code}, {bound}={other.code})")
    return Text(f"torch.{value.op}imum({args[0].code}, {args[1].code})")


def _clamp(value: Value, args: list[Text], owner: str) -> Text:
    x, low, high = args
    if low.constant == high.constant:
        return Text(f"torch.clamp({x.code}, {low.code}, {high.code})")
    return Text(f"torch.clamp(torch.clamp({x.code}, min={low.code}), max={high.code})")


def _where(value: Value, args: list[Text], owner: str) -> Text:
    test, then, otherwise = args
    if then.constant and otherwise.constant and value.type.dtype != "bool":
        then = Text(f"torch.tensor({then.code}, dtype={owner}.dtype)")
    return Text(f"torch.where({test.code}, {then.code}, {otherwise.code})")


def _pow(value: Value, args: list[Text], owner: str) -> Text:
    base, exponent = args[0].inside(ATOM), args[1].inside(UNARY)
    simple = re.fullmatch(r"[\w.]+", base) and re.fullmatch(r"-?[\w.]+", exponent)
    return Text(f"{base}**{exponent}" if simple else f"{base} ** {exponent}", POWER)


def _total_sum(value: Value, args: list[Text], owner: str) -> Text:
    if len(args) == 1:
        return Text(f"{args[0].inside(ATOM)}.sum()")
    return Text(f"masked_sum({args[0].code}, {args[1].code}, x)")


SPECIAL = {
    "neg": lambda value, args, owner: Text(f"-{args[0].inside(UNARY)}", UNARY),
    "not": lambda value, args, owner: Text(f"~{args[0].inside(UNARY)}", UNARY),
    "stop": lambda value, args, owner: Text(f"{args[0].inside(ATOM)}.detach()"),
    "float": lambda value, args, owner: Text(f"{args[0].inside(ATOM)}.to({owner}.dtype)"),
    "group_sum": lambda value, args, owner: Text(f"{args[0].inside(ATOM)}.sum()"),
    "group_max": lambda value, args, owner: Text(f"{args[0].inside(ATOM)}.max()"),
    "group_min": lambda value, args, owner: Text(f"{args[0].inside(ATOM)}.min()"),
    "sibling_sum": lambda value, args, owner: Text(f"sibling_sum({args[0].code}, group)"),
    "sibling_max": lambda value, args, owner: Text(f"sibling_max({args[0].code}, group)"),
    "sibling_min": lambda value, args, owner: Text(f"sibling_min({args[0].code}, group)"),
    "expand": _expand,
    "min": _extreme,
    "max": _extreme,
    "clamp": _clamp,
    "where": _where,
    "pow": _pow,
    "total_sum": _total_sum,
}
