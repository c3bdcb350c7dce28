"""Finds where a loss compares log-probs of different distributions.

    Tree, Measure of its log-prob fields  ->  the values that mix measures which cannot be compared

A Form is a linear combination of log-probs (types/measures.py). These operations keep it: sums,
constant factors, clamps, means over tokens, `stop`, and `exp` and `log`. The result of any other
operation has no Form.
"""

from __future__ import annotations

from collections.abc import Mapping

from forgedsl.losses.tree import Tree, Value
from forgedsl.records import dataclass
from forgedsl.types.measures import Form, Measure, conflict

KEEPS = (
    "clamp", "stop", "expand", "side", "seq_sum", "seq_max", "seq_min", "float",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Value `node` compares the measure `left` of its first operand with `right` of its second."""

    node: int
    left: Measure
    right: Measure


def mismatches(tree: Tree, fields: Mapping[str, Measure]) -> list[Mismatch]:
    """Return the values in which incomparable measures are first combined."""
    forms: list[Form | None] = []
    found: list[Mismatch] = []
    for node, value in enumerate(tree.values):
        args = [forms[arg] for arg in value.args]
        if value.op == "input" and str(value.attr) in fields:
            forms.append(Form({fields[str(value.attr)]: 1.0}))
            continue
        pair = _compared(value, args)
        clash = conflict(*pair) if pair is not None else None
        if clash is not None:
            found.append(Mismatch(node=node, left=clash[0], right=clash[1]))
            forms.append(None)  # one mistake gives one message
        else:
            forms.append(_form(tree, value, args))
    return found


def forms_of(tree: Tree, fields: Mapping[str, Measure]) -> list[Form | None]:
    """Return the form of every value."""
    forms: list[Form | None] = []
    for value in tree.values:
        if value.op == "input" and str(value.attr) in fields:
            forms.append(Form({fields[str(value.attr)]: 1.0}))
        else:
            forms.append(_form(tree, value, [forms[arg] for arg in value.args]))
    return forms


def _compared(value: Value, args: list[Form | None]) -> tuple[Form, Form] | None:
    """Return the two forms whose difference or quotient a value is."""
    if len(args) != 2 or args[0] is None or args[1] is None:
        return None
    a, b = args[0], args[1]
    if a.is_exp != b.is_exp:
        return None
    if value.op == "sub" or (value.op == "div" and a.is_exp):
        return a, b.scaled(-1.0)
    if value.op == "add" or (value.op == "mul" and a.is_exp):
        return a, b
    return None


def _form(tree: Tree, value: Value, args: list[Form | None]) -> Form | None:
    first = args[0] if args else None
    second = args[1] if len(args) > 1 else None
    if value.op in KEEPS:
        return first
    if value.op == "neg":
        return first.scaled(-1.0) if first is not None and not first.is_exp else None
    if value.op in ("exp", "expm1"):
        return Form(first.terms, True) if first is not None and not first.is_exp else None
    if value.op == "log":
        return Form(first.terms) if first is not None and first.is_exp else None
    if value.op == "where":
        return args[1] or args[2]
    if value.op in ("min", "max"):
        return first or second if first is None or second is None else None
    pair = _compared(value, args)
    if pair is not None:
        return pair[0].plus(pair[1])
    if value.op in ("add", "sub") and not (first and second):
        if first is not None:
            return first if not first.is_exp else None
        return second.scaled(-1.0 if value.op == "sub" else 1.0) if _is_log(second) else None  # type: ignore[union-attr]
    if value.op in ("mul", "div"):
        return _scaled(tree, value, first, second)
    return None


def _is_log(form: Form | None) -> bool:
    return form is not None and not form.is_exp


def _scaled(tree: Tree, value: Value, first: Form | None, second: Form | None) -> Form | None:
    """Return a combination times a constant, or divided by a count of tokens."""
    for form, other in ((first, value.args[1]), (second, value.args[0])):
        if form is None or form.is_exp:
            continue
        factor = tree.values[other]
        if factor.op == "const" and isinstance(factor.attr, float):
            return form.scaled(1 / factor.attr if value.op == "div" else factor.attr)
        if value.op == "div" and form is first:
            return form
    return None
