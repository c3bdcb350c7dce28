"""Names of the expression language: functions with their parameters, axes, attributes, fields.

A parameter name that ends in `?` may be omitted. Name resolution needs these: which names exist,
and how many arguments they take. Their meanings are stated in forgedsl/reference/expressions.py and
implemented by the loss compiler and the program emitter.
"""

from __future__ import annotations

from forgedsl.types.ops import BY_NAME

_OVER_AXIS = ("sum", "mean", "std", "var", "min", "max", "count")

ELEMENTWISE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((*BY_NAME, "stop"), ("x",)),
    "clamp": ("x", "lo", "hi"),
    "clip": ("x", "lo", "hi"),
}

# min and max are elementwise with two arguments and reductions over an axis.
REDUCTIONS = {
    **dict.fromkeys(_OVER_AXIS, ("x", "axis", "mask?")),
    "batch_mean": ("x", "mask?"),
    "batch_std": ("x", "mask?"),
}
SCANS = {"next": ("x", "axis", "mask"), "scan_back": ("x", "decay", "axis", "mask")}

AGGREGATORS = {
    "token_mean": ("x", "mask"),
    "seq_mean": ("x", "mask?"),
    "seq_sum": ("x", "mask"),
    "fixed_horizon": ("x", "mask", "horizon"),
    "pair_mean": ("x",),
}

TEXT = {
    "chat": ("system?", "user", "assistant?"),
    "sharegpt": ("turns",),
    "paragraphs": ("s", "t", "..."),
    "after": ("s", "sep"),
    "before": ("s", "sep"),
    "strip": ("s",),
    "lower": ("s",),
    "len": ("s",),
    "matches": ("s", "pattern"),
    "text": ("x",),
    "first": ("x", "y", "..."),
    "file": ("path",),
    "env": ("name",),
    "record": ("name = value", "..."),
}

FUNCTIONS: dict[str, tuple[str, ...]] = ELEMENTWISE | REDUCTIONS | SCANS | AGGREGATORS | TEXT
TEXT_FUNCTIONS = frozenset({*TEXT, "min", "max", "abs", "clamp", "clip", "exp", "log", "sqrt"})

AXES = frozenset("BTGVP")
DTYPES = ("f32", "bf16", "f16", "i64", "bool")
PARAM_TYPES = ("str", "int", "float", "bool", "duration", "bytes", "list")
ROLLOUT_ATTRIBUTES = (
    "prompt", "response", "target", "num_tokens", "truncated", "turns", "ended", "rewards",
)  # fmt: skip

TRAINER_FIELDS = ("logprob", "entropy", "logsumexp", "mean_logprob", "value")
ROLLOUT_FIELDS = ("behavior", "mask", "last", "num_tokens", "truncated")
RUN_FIELDS = ("num_steps",)
FIELD_TYPES = {
    **dict.fromkeys(TRAINER_FIELDS, "diff [B, T] f32"),
    "behavior": "[B, T] f32",
    **dict.fromkeys(("mask", "last"), "[B, T] bool"),
    "num_tokens": "[B] i64",
    "truncated": "[B] bool",
    "num_steps": "[B] i64",
}
"""Types with which a loss declares these fields."""

_WORDS = (
    "forge", "import", "python", "as", "param", "require", "else", "return", "minimize", "report",
    "sync", "diff", "if", "and", "or", "not", "true", "false", "none",
)  # fmt: skip
RESERVED = frozenset(_WORDS)
