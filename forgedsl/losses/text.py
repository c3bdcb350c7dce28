"""Text form of a tree, one value per line. `read` is the inverse of `write`.

loss grpo @"grpo_math.forge" 1204:1890
  field logprob : diff [B, T] f32 @"grpo_math.forge" 1215:1237
  %0 = input logprob : diff [B, T] f32 @"grpo_math.forge" 1215:1237
  %4 ratio = exp %3 : diff [B, T] f32 @"grpo_math.forge" 1400:1450
  return loss %17
  total num_tokens_1 %9
"""

from __future__ import annotations

import ast as python
import re

from forgedsl.losses.tree import Field, Tree, Value
from forgedsl.source import Span
from forgedsl.types.tensors import TensorType

AT = r' @"(?P<file>[^"]*)" (?P<start>\d+):(?P<end>\d+)$'
TYPE = r" : (?P<diff>diff )?(?:\[(?P<axes>[^\]]*)\] )?(?P<dtype>\w+)"
HEADER = re.compile(r"(?P<kind>\w+) (?P<name>\w+)" + AT)
FIELD = re.compile(r"  field (?P<name>\w+)" + TYPE + AT)
VALUE = re.compile(
    r"  %\d+(?: (?P<name>\w+))? = (?P<op>\w+)(?: (?P<args>%\d+(?: %\d+)*))?(?: <(?P<attr>.*)>)?"
    + TYPE
    + AT
)
OUTPUT = re.compile(r"  (?P<what>return|total) (?P<name>\w+) %(?P<value>\d+)$")


def write(tree: Tree) -> str:
    """Write a tree as text. The text is deterministic."""
    lines = [f"{tree.kind} {tree.name}{_at(tree.span)}"]
    lines += [f"  field {field.name} : {field.type}{_at(field.span)}" for field in tree.fields]
    lines += [f"  unused {name}" for name in tree.unused]
    for number, value in enumerate(tree.values):
        name = f" {value.name}" if value.name else ""
        args = "".join(f" %{arg}" for arg in value.args)
        attr = "" if value.attr is None else f" <{value.attr!r}>"
        lines.append(f"  %{number}{name} = {value.op}{args}{attr} : {value.type}{_at(value.span)}")
    lines += [f"  total {name} %{value}" for name, value in tree.totals]
    lines += [f"  return {name} %{value}" for name, value in tree.outputs]
    return "\n".join(lines) + "\n"


def read(text: str) -> Tree:
    """Read a tree that `write` wrote. Raises ValueError on anything else."""
    lines = text.splitlines()
    header = _match(HEADER, lines[0])
    fields, unused, values = [], [], []
    ends: dict[str, list[tuple[str, int]]] = {"return": [], "total": []}
    for line in lines[1:]:
        if line.startswith("  field "):
            found = _match(FIELD, line)
            fields.append(Field(name=found["name"], type=_type(found), span=_span(found)))
        elif line.startswith("  unused "):
            unused.append(line.removeprefix("  unused "))
        elif line.startswith("  %"):
            values.append(_value(_match(VALUE, line)))
        else:
            found = _match(OUTPUT, line)
            ends[found["what"]].append((found["name"], int(found["value"])))
    return Tree(
        name=header["name"],
        kind=header["kind"],
        fields=tuple(fields),
        unused=tuple(unused),
        values=tuple(values),
        outputs=tuple(ends["return"]),
        totals=tuple(ends["total"]),
        span=_span(header),
    )


def _at(span: Span) -> str:
    return f' @"{span.file}" {span.start}:{span.end}'


def _match(pattern: re.Pattern[str], line: str) -> re.Match[str]:
    found = pattern.match(line)
    if found is None:
        raise ValueError(f"not a line of a loss tree: {line!r}")
    return found


def _span(found: re.Match[str]) -> Span:
    return Span(found["file"], int(found["start"]), int(found["end"]))


def _type(found: re.Match[str]) -> TensorType:
    axes = found["axes"].split(", ") if found["axes"] else []
    return TensorType(frozenset(axes), found["dtype"], bool(found["diff"]))


def _value(found: re.Match[str]) -> Value:
    args = found["args"].replace("%", "").split() if found["args"] else []
    return Value(
        op=found["op"],
        args=tuple(int(arg) for arg in args),
        attr=python.literal_eval(found["attr"]) if found["attr"] is not None else None,
        type=_type(found),
        name=found["name"] or "",
        span=_span(found),
    )
