"""Declares the inputs of a function: tensors become input values, scalars become constants.

`logprob`, `entropy`, `logsumexp`, `mean_logprob` and `value` come from the trainer and carry
gradient; `behavior`, `mask`, `last`, `num_tokens` and `truncated` come from the rollout,
`num_steps` from the run, and all others from `replay(...)`.
"""

from __future__ import annotations

from typing import Any

from forgedsl.ir import program as ir
from forgedsl.losses.build import Typed
from forgedsl.losses.tree import ROW_STATISTICS, Field
from forgedsl.losses.walk import Walk
from forgedsl.mistakes.suggest import did_you_mean, nearest
from forgedsl.syntax import ast
from forgedsl.types.tensors import DTYPES, TensorType, axes_of, clash

KNOWN = {
    **dict.fromkeys((*ROW_STATISTICS, "behavior"), ("T", "f32")),
    **dict.fromkeys(("mask", "last"), ("T", "bool")),
    "num_tokens": ("", "i64"),
    "truncated": ("", "bool"),
    "num_steps": ("", "i64"),
}
"""Fields with a fixed meaning: token axis and dtype, over B or P."""

GROUP_KINDS = ("advantage", "filter")

RESERVED = ("dtype", "seq_id", "seq_valid", "step")
"""Names that the generated module uses for the batch itself."""

SCALARS = {"int": int, "float": float, "bool": bool, "str": str}


def declare(inference: Walk, function: ir.Function, params: dict[str, Any]) -> tuple[Field, ...]:
    """Bind every field of `function` as a local; return the tensor fields."""
    declared = []
    scalars = [f.name for f in function.fields if not isinstance(f.type, ast.TensorType)]
    for name in sorted(params.keys() - set(scalars)):
        what = f"`{function.name}` has no parameter"
        inference.unknown("F114", what, name, function.span, scalars)
    for field in function.fields:
        if isinstance(field.type, ast.TensorType):
            type_ = tensor_type(inference, field, field.type, function.kind)
            if type_ is None:
                inference.locals[field.name] = inference.broken(field.span)
                continue
            inference.build.span = field.span
            value = inference.build.leaf("input", field.name, type_)
            inference.locals[field.name] = Typed(value, type_, field.span)
            declared.append(Field(name=field.name, type=type_, span=field.span))
        else:
            inference.locals[field.name] = parameter(inference, field, params)
    return tuple(declared)


def tensor_type(
    inference: Walk, field: ast.Field, node: ast.TensorType, kind: str
) -> TensorType | None:
    """Return the type of a tensor field, checked against the meaning of its name; None if wrong."""
    axes = axes_of(node)
    if axes is None or (pair := clash(axes)) is not None:
        message = (
            f"`{field.name}` has an unknown axis"
            if axes is None
            else (
                f"`{field.name}` cannot have both axes {pair[0]} and {pair[1]}"  # type: ignore[index]
            )
        )
        help_ = (
            "the axes are B (sequences), T (their tokens), G (completions of a prompt) and P "
            "(pairs)"
        )
        inference.error("T701", "axis", message, node.span, help=help_)
        return None
    if node.dtype not in DTYPES:
        help_ = did_you_mean(nearest(node.dtype, DTYPES)) or f"dtypes are {', '.join(DTYPES)}"
        message = f"`{node.dtype}` is not a dtype"
        inference.error("T702", "dtype", message, node.span, help=help_)
        return None
    if kind == "loss" and not _loss_field(inference, field, node, axes):
        return None
    if kind in GROUP_KINDS and not _group_field(inference, field, node, kind, axes):
        return None
    return TensorType(axes, "f32" if node.dtype == "bf16" else node.dtype, node.diff)


def _group_field(
    inference: Walk, field: ast.Field, node: ast.TensorType, kind: str, axes: frozenset[str]
) -> bool:
    """Check a field of an advantage (over a group or the whole step) or of a filter (over a
    group)."""
    allowed = ("G", "B", "BT") if kind == "advantage" else ("G",)
    if axes not in [frozenset(axis) for axis in allowed]:
        message = f"`{field.name}` of {kind} `{inference.calls[0].name}` must be over "
        message += "G or B" if len(allowed) > 1 else "G"
        help_ = "[G] has one entry for each completion of a prompt"
        if kind == "advantage":
            help_ += (
                ", [B] one for each sequence of the optimizer step, [B, T] one for each of "
                "its tokens"
            )
        inference.error("T704", "group-batch", message, node.span, help=help_)
        return False
    if field.name == "group" and "B" in axes:
        message = "`group` is reserved: it is the index of each sequence's prompt in the step"
        inference.error("F102", "duplicate", message, field.name_span, help="use another name")
        return False
    is_first = field is inference.calls[0].fields[0]
    if is_first and node.dtype == "i64" and KNOWN.get(field.name, ("", ""))[1] != "i64":
        wanted = TensorType(axes, "f32")
        message = f"`{field.name}` of {kind} `{inference.calls[0].name}` must be f32, not i64"
        help_ = f"scores are numbers with fractions: declare it as {wanted}"
        inference.error("T702", "dtype", message, node.span, help=help_)
        return False
    return True


def _loss_field(
    inference: Walk, field: ast.Field, node: ast.TensorType, axes: frozenset[str]
) -> bool:
    if "G" in axes or not axes & {"B", "P"}:
        message = f"`{field.name}` of a loss must be over B or P"
        help_ = "the loss reads an advantage over G as [B], one entry for each rollout"
        inference.error("T704", "group-batch", message, node.span, help=help_)
        return False
    if field.name in RESERVED:
        message = f"`{field.name}` is the name of a part of the batch"
        inference.error("F102", "duplicate", message, field.name_span, help="use another name")
        return False
    if node.diff and field.name not in ROW_STATISTICS:
        message = f"`{field.name}` cannot carry gradient"
        meant = did_you_mean(nearest(field.name, ROW_STATISTICS))
        known = f"only {', '.join(ROW_STATISTICS)} come from the trained model"
        help_ = meant or f"remove `diff`; {known}"
        inference.error("L406", "unexpected-gradient", message, node.span, help=help_)
        return False
    tokens, dtype = KNOWN.get(field.name, (None, ""))
    if tokens is None:
        return True
    if ("T" in axes) != bool(tokens):
        wanted = "[B, T]" if tokens else "[B]"
        message = f"`{field.name}` must be {wanted} {dtype}"
        inference.error("T701", "axis", message, node.span, help=f"declare it as {wanted} {dtype}")
        return False
    close = (dtype, node.dtype) in (("i64", "f32"), ("f32", "bf16"))  # rule L413 reports bf16
    if node.dtype != dtype and not close:
        message = f"`{field.name}` must be {dtype}, not {node.dtype}"
        inference.error("T702", "dtype", message, node.span, help=f"declare it as {dtype}")
        return False
    return True


def parameter(inference: Walk, field: ast.Field, params: dict[str, Any]) -> Typed:
    """Return the constant of a scalar field: its value in `params`, or its default."""
    name = getattr(field.type, "name", "")
    if name not in SCALARS:
        message = f"`{field.name}` must be a tensor such as [B, T] f32, or a scalar parameter"
        help_ = f"scalar types are {', '.join(SCALARS)}"
        return inference.error("T702", "dtype", message, field.type.span, help=help_)
    if field.name in params:
        value = params[field.name]
        if value is not None and not isinstance(value, (SCALARS[name], int)):
            message = f"parameter `{field.name}` must be {name}, not {value!r}"
            return inference.error("T702", "dtype", message, field.span)
        return inference.constant(value, field.span)
    if field.default is None:
        message = f"parameter `{field.name}` has no value"
        help_ = f"give it by name: `loss = NAME({field.name} = ...)`"
        return inference.error("F114", "arity", message, field.span, help=help_)
    return inference.expr(field.default)
