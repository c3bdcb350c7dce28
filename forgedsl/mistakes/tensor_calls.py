"""Maps calls of PyTorch in a body to what this language writes.

adv.unsqueeze(-1)    axes have names, so values of different axes are broadcast: write `adv`
ratio.detach()       here it is `stop(ratio)`
torch.exp(x)         here it is `exp(x)`
"""

from __future__ import annotations

LIBRARIES = frozenset({"torch", "F", "nn", "np", "numpy", "jnp", "math"})
"""names before the dot that are no values"""
_AXES = "axes have names, so values of different axes are broadcast by themselves: write `{x}`"
_SAME = "there are no devices, copies and dtypes in a body: write `{x}`"
_FLOAT = "numbers are f32: write `{x}`; if it is a condition, `1.0 if {x} else 0.0`"
_PLAIN = {
    **dict.fromkeys(
        ("unsqueeze", "squeeze", "expand", "expand_as", "view", "reshape", "repeat", "flatten",
         "broadcast_to", "transpose", "permute", "t"), _AXES,
    ),
    **dict.fromkeys(("to", "cpu", "cuda", "clone", "contiguous"), _SAME),
    **dict.fromkeys(("float", "double", "half", "bfloat16", "type", "long", "int"), _FLOAT),
    "as_tensor": "numbers need no conversion",
    "backward": "the compiler differentiates what `minimize` names",
    "detach": "here it is `stop({x})`",
    "gather": "`logprob` holds the log-prob of each token already",
    "item": "to log a value, write `report NAME = token_mean({x}, mask)`",
    "masked_fill": "here it is `0.0 if condition else {x}`",
    "masked_select": "here it is `{x} if mask else 0.0`; aggregators take the mask themselves",
    "no_grad": "to stop a gradient, write `stop(x)` around the value",
    "inference_mode": "to stop a gradient, write `stop(x)` around the value",
    "ones_like": "write `1.0`: a number is broadcast",
    "pow": "here it is `{x} ** 2`",
    "size": "an axis has no size in a body: reduce over it, `sum(1.0, T, mask)`",
    "tensor": "numbers need no conversion",
    "zeros_like": "write `0.0`: a number is broadcast",
}  # fmt: skip
_MEAN = {
    "loss": "over each sequence it is `{f}({x}, T, mask)`, over the whole step `{step}({x}, mask)`",
    "advantage": "over the completions of a group it is `{f}({x}, G)`",
    "filter": "over the completions of a group it is `{f}({x}, G)`",
}
_STEP = {"mean": "token_mean", "sum": "seq_sum"}
_NUMERIC = frozenset({"loss", "advantage", "filter"})


def tensor_call(parts: tuple[str, ...], kind: str) -> str:
    """Return the help for the call of a method of a tensor, or of a function of PyTorch or NumPy,
    in the body of a `kind` of declaration; "" if the name or the kind is another."""
    *before, method = parts
    if not before or kind not in _NUMERIC:
        return ""
    receiver = ".".join(before)
    return method_help(method, "x" if before[0] in LIBRARIES else receiver, kind)


def method_help(method: str, x: str, kind: str = "loss") -> str:
    """Return the help for a method of a value that is written `x`, or ""."""
    if method in _STEP:
        over = _MEAN[kind].format(f=method, step=_STEP[method], x=x)
        return f"a reduction names its axis; {over}"
    if method in ("clamp", "clip"):
        return f"here it is `{method}({x}, lo, hi)`"
    if method in ("exp", "log", "abs", "sqrt"):
        return f"here it is `{method}({x})`"
    if method in ("std", "var"):
        return f"here it is `{method}({x}, {'T, mask' if kind == 'loss' else 'G'})`"
    return _PLAIN[method].format(x=x) if method in _PLAIN else ""


def attribute_help(name: str, x: str) -> str:
    """Return the help for an attribute of a value that is written `x`."""
    if name in ("T", "mT", "H"):
        return _AXES.format(x=x)
    if name in ("shape", "ndim"):
        return "the axes of a value are in its type, as in `[B, T] f32`; sizes are not known here"
    if name in ("device", "dtype", "data", "grad", "requires_grad"):
        return _SAME.format(x=x)
    return method_help(name, x) or "only the values of a pair have attributes: chosen, rejected"


def index_help(key: str) -> str:
    """Return the help for an index of a value that has axes; `key` is the name that it is."""
    if "mask" in key:
        return (
            f"aggregators take the mask, `token_mean(x, {key})`; a value per token is "
            f"`x if {key} else 0.0`"
        )
    return "to reduce an axis, name it: `mean(x, G)`, `token_mean(x, mask)`"
