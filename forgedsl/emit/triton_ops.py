"""Writes the operations of a tree as Triton expressions, with the helpers they call.

Functions of the language and their helpers are rows of `forgedsl.types.ops`.
"""

from __future__ import annotations

import re

from forgedsl.emit.expressions import ATOM, INFIX, UNARY, Text
from forgedsl.losses.tree import Value
from forgedsl.types.ops import OPS

HELPERS = {
    "exp2": '''
def exp2(x):
    """2 ** x in one instruction, flushing subnormal results; keeping them takes four."""
    if FAST and x.dtype == tl.float32:
        code: tl.constexpr = "ex2.approx.ftz.f32 $0, $1;"
        return tl.inline_asm_elementwise(code, "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return tl.exp2(x)
''',
    "log2": '''
def log2(x):
    """The logarithm in one instruction; 0 for what is subnormal gives minus infinity."""
    if FAST and x.dtype == tl.float32:
        code: tl.constexpr = "lg2.approx.ftz.f32 $0, $1;"
        return tl.inline_asm_elementwise(code, "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return tl.log2(x)
''',
    "number": '''
def number(x: tl.constexpr, ACC: tl.constexpr):
    """A constant in the dtype of the kernel; by itself it would be float32."""
    return tl.cast(0, ACC) + x
''',
    "added_2": '''
def added_2(a, b, other_a, other_b):
    """Two sums."""
    return a + other_a, b + other_b
''',
    "added_3": '''
def added_3(a, b, c, other_a, other_b, other_c):
    """Three sums."""
    return a + other_a, b + other_b, c + other_c
''',
    "added_4": '''
def added_4(a, b, c, d, other_a, other_b, other_c, other_d):
    """Four sums."""
    return a + other_a, b + other_b, c + other_c, d + other_d
''',
    "minimum": '''
def minimum(a, b):
    """The smaller; a NaN on either side stays."""
    return tl.where((a < b) | (a != a), a, b)
''',
    "maximum": '''
def maximum(a, b):
    """The larger; a NaN on either side stays."""
    return tl.where((a > b) | (a != a), a, b)
''',
    **{op.triton: op.helper for op in OPS if op.helper},
    "modulo": '''
def modulo(a, b):
    """The remainder with the sign of b."""
    return a - tl.floor(a / b) * b
''',
    "square": '''
def square(x):
    """x ** 2."""
    return x * x
''',
    "power": '''
def power(base, exponent):
    """base ** exponent; a negative base needs an integer exponent."""
    size = tl.exp2(exponent * tl.log2(tl.abs(base)))
    half = exponent * 0.5
    flip = tl.where(half == tl.floor(half), size, -size)
    below = tl.where(exponent == tl.floor(exponent), flip, float("nan"))
    return tl.where(base < 0.0, below, tl.where(exponent == 0.0, 1.0, size))
''',
}  # fmt: skip
NEEDS = {op.triton: op.needs for op in OPS if op.needs}
FIRST = tuple(name for name in HELPERS if any(name in needs for needs in NEEDS.values()))
CALLS = {op.name: op.triton for op in OPS} | {"min": "minimum", "max": "maximum", "mod": "modulo"}
REDUCERS = ("added_2", "added_3", "added_4")
"""Helpers that reductions pass as functions."""
IDENTITY = ("expand", "side", "unside", "stop")
RESERVED = frozenset(
    ("tl", "gl", "triton", "gluon", "ACC", "BLOCK", "PADDED", "OVERLAP", "V", "labels",
     "label", "ignore_index", "starts", "parts", "done", "results", "seq_len", "seq", "pair",
     "start", "middle", "end", "first", "rows", "here", "flag", "counted", "chosen_side",
     "num_programs", "at", "seqs", "present", *HELPERS)
)  # fmt: skip
"""Names used by the templates, which statements of a loss must not use."""


def local(value: Value) -> str:
    """Return the name of an input, or of a count of the step, inside of a kernel."""
    name = f"step_{value.attr}" if value.op == "total" else str(value.attr)
    return f"{name}_" if name in RESERVED else name


def render(value: Value, args: list[Text], operands: list[Value], owner: str) -> Text:
    """Return the text of an operation; `owner` names the dtype of the kernel."""
    op = value.op
    if op in IDENTITY:
        return args[0]
    if op in CALLS:
        return Text(f"{CALLS[op]}({', '.join(arg.code for arg in args)})")
    if op in INFIX:
        symbol, level = INFIX[op]
        left_level = level + 1 if level == 0 else level
        return Text(f"{args[0].inside(left_level)} {symbol} {args[1].inside(level + 1)}", level)
    match op:
        case "neg":
            return Text(f"-{args[0].inside(UNARY)}", UNARY)
        case "not":
            return Text(f"~{args[0].inside(UNARY)}", UNARY)
        case "float":
            return Text(f"{args[0].inside(ATOM)}.to({owner})")
        case "clamp":
            return Text(f"minimum(maximum({args[0].code}, {args[1].code}), {args[2].code})")
        case "where":
            return _where(value, args, owner)
        case "pow":
            if args[1].constant and args[1].code == "2.0":
                return Text(f"square({args[0].code})")
            exponent = args[1].code
            if args[1].constant:
                exponent = f"number({exponent}, {owner})"
            return Text(f"power({args[0].code}, {exponent})")
    raise AssertionError(f"no Triton form for {op}")


def _where(value: Value, args: list[Text], owner: str) -> Text:
    """Render `where`. With two constants the dtype is needed; otherwise a double is rounded to
    float32."""
    test, then, otherwise = args
    if then.constant and otherwise.constant and value.type.dtype != "bool":
        then = Text(f"number({then.code}, {owner})")
    return Text(f"tl.where({test.code}, {then.code}, {otherwise.code})")


def helpers(text: str) -> list[str]:
    """Return the helpers that `text` calls, directly or not, in order."""
    used = {name for name in HELPERS if re.search(rf"(?<![\w.]){name}\(", text)}
    used |= {name for name in REDUCERS if re.search(rf"\b{name}\b", text)}
    for name in tuple(used):
        used.update(NEEDS.get(name, ()))
    names = [*(n for n in FIRST if n in used), *(n for n in HELPERS if n in used - set(FIRST))]
    return [HELPERS[name].strip("\n") for name in names]
