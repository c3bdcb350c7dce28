"""Triton expressions: one text for each operation of the tree, and the helpers they call.

The interpreter and the dialects have no libdevice, so expm1, log1p, tanh and their kin are written
out here, accurate in float32 and float64. They run once for each row: their cost is nothing.
"""

from __future__ import annotations

import re

from forgedsl.emit.expressions import ATOM, INFIX, UNARY, Text
from forgedsl.losses.tree import Value

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
    "expm1": '''
def expm1(x):
    """exp(x) - 1, by its series near 0."""
    series = 1.0
    for k in tl.static_range(17, 1, -1):
        series = 1.0 + series * x / k
    return tl.where(tl.abs(x) < 0.5, series * x, tl.exp(x) - 1.0)
''',
    "log1p": '''
def log1p(x):
    """log(1 + x), by the series of 2 atanh(x / (2 + x)) near 0."""
    u = x / (2.0 + x)
    square = u * u
    series = 0.0
    for k in tl.static_range(33, 0, -2):
        series = series * square + 1.0 / k
    return tl.where(tl.abs(x) < 0.5, 2.0 * u * series, tl.log(1.0 + x))
''',
    "sigmoid": '''
def sigmoid(x):
    """The logistic function; exp overflows to infinity where it is 0."""
    return 1.0 / (1.0 + tl.exp(-x))
''',
    "softplus": '''
def softplus(x):
    """log(1 + exp(x)) without overflow."""
    return maximum(x, 0.0) + log1p(tl.exp(-tl.abs(x)))
''',
    "log_sigmoid": '''
def log_sigmoid(x):
    """log(sigmoid(x)) without underflow."""
    return minimum(x, 0.0) - log1p(tl.exp(-tl.abs(x)))
''',
    "tanh": '''
def tanh(x):
    """tanh by expm1, accurate near 0."""
    u = expm1(-2.0 * tl.abs(x))
    return tl.where(x < 0.0, 1.0, -1.0) * u / (2.0 + u)
''',
    "sign": '''
def sign(x):
    """-1, 0 or 1."""
    return tl.where(x > 0.0, 1.0, tl.where(x < 0.0, -1.0, 0.0)).to(x.dtype)
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
    "is_finite": '''
def is_finite(x):
    """Neither infinite nor NaN."""
    return tl.abs(x) < float("inf")
''',
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
NEEDS = {
    "softplus": ("maximum", "log1p"),
    "log_sigmoid": ("minimum", "log1p"),
    "tanh": ("expm1",),
}
CALLS = {
    "abs": "tl.abs", "exp": "tl.exp", "log": "tl.log", "sqrt": "tl.sqrt", "expm1": "expm1",
    "log1p": "log1p", "sigmoid": "sigmoid", "softplus": "softplus", "log_sigmoid": "log_sigmoid",
    "tanh": "tanh", "sign": "sign", "is_finite": "is_finite", "min": "minimum", "max": "maximum",
    "mod": "modulo",
}  # fmt: skip
REDUCERS = ("added_2", "added_3", "added_4")
"""Helpers that reductions name and do not call."""
IDENTITY = ("expand", "side", "unside", "stop")
RESERVED = frozenset(
    ("tl", "gl", "triton", "gluon", "ACC", "BLOCK", "PADDED", "OVERLAP", "V", "labels",
     "label", "ignore_index", "starts", "parts", "done", "results", "seq_len", "seq", "pair",
     "start", "middle", "end", "first", "rows", "here", "flag", "counted", "chosen_side",
     "num_programs", "at", "seqs", "present", *HELPERS)
)  # fmt: skip
"""Names that the templates use where statements of a loss stand."""


def local(value: Value) -> str:
    """The name of an input, or of a count of the step, inside a kernel."""
    name = f"step_{value.attr}" if value.op == "total" else str(value.attr)
    return f"{name}_" if name in RESERVED else name


def render(value: Value, args: list[Text], operands: list[Value], owner: str) -> Text:
    """The text of one operation; `owner` names the dtype that the kernel computes in."""
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
    """Two constants need the dtype, or a double is rounded to float32 on its way."""
    test, then, otherwise = args
    if then.constant and otherwise.constant and value.type.dtype != "bool":
        then = Text(f"number({then.code}, {owner})")
    return Text(f"tl.where({test.code}, {then.code}, {otherwise.code})")


def helpers(text: str) -> list[str]:
    """The helpers that `text` calls, and those that they call, in order."""
    used = {name for name in HELPERS if re.search(rf"(?<![\w.]){name}\(", text)}
    used |= {name for name in REDUCERS if re.search(rf"\b{name}\b", text)}
    for name in tuple(used):
        used.update(NEEDS.get(name, ()))
    order = ("minimum", "maximum", "expm1", "log1p")
    names = [*(n for n in order if n in used), *(n for n in HELPERS if n in used - set(order))]
    return [HELPERS[name].strip("\n") for name in names]
