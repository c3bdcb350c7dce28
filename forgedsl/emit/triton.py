"""Emits the Triton kernels of a loss, from the same tree as the torch module.

    Tree  ->  emit_kernels  ->  text of a Python module (deterministic, formatted)

The part over the vocabulary is fixed (`templates/`). The part of the loss is generated:
`row_gradient` (token-local losses) maps the statistics of a row to their gradients, and programs
over sequences compute everything with a reduction. The kernels of a module:

    statistics      logits -> row statistics
    fused           logits -> row statistics and d loss / d logits in one pass (token-local)
    fused_row       the same for Hopper: one row per program, kept in shared memory
    fused_stream    the same for Hopper and long rows: in shared memory and registers
    fused_pair      the same for longer rows: in the shared memory and registers of two SMs
    decide          row statistics -> their gradients (token-local, without logits)
    prepare         sums over data that `row_gradient` needs, for each sequence
    sequences       row statistics -> loss, reports, and, if tokens are coupled, their gradients
    apply           logits and gradients of the statistics -> d loss / d logits
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from forgedsl.emit.expressions import Text
from forgedsl.emit.jinja import environment
from forgedsl.emit.places import place
from forgedsl.emit.sequences import SequenceKernel, at_once, program, with_mean_entropy
from forgedsl.emit.torch import Writer, mapping, tuple_of
from forgedsl.emit.triton_ops import RESERVED, helpers, local, render
from forgedsl.losses.grad import differentiate, with_gradient
from forgedsl.losses.phases import TOKEN_LOCAL, of_values_alone, phase, prepared
from forgedsl.losses.tree import VOCABULARY, Tree, Value
from forgedsl.losses.zero_gradient import silencing
from forgedsl.records import dataclass
from forgedsl.source import SourceFile
from forgedsl.types.tensors import TensorType


@dataclass(frozen=True, slots=True)
class Input:
    """A value that a row needs, and where it is loaded from."""

    name: str
    index: str
    """index: row, seq, pair, side (of a pair), or "" for a number"""
    is_bool: bool = False

    @property
    def value(self) -> str:
        """Its name in a kernel over the vocabulary."""
        return f"in_{self.name}"

    @property
    def kind(self) -> str:
        """Its entry in the module: `("seq", "bool")`."""
        return f'("{self.index}", "{"bool" if self.is_bool else "f32"}")'

    @property
    def load(self) -> str:
        return self.load_at("row", "")

    def load_at(self, row: str, prefix: str) -> str:
        """Return the load for row `row`; variables of its sequence and pair have `prefix`."""
        if self.index == "side":
            return f"{prefix}seq % 2 == {int(self.name == 'is_rejected')}"
        place = row if self.index == "row" else f"{prefix}{self.index}"
        at = f"{self.name}_ptr + {place}" if self.index else f"{self.name}_ptr"
        if self.is_bool:
            return f"tl.load({at}).to(tl.int1)"
        if self.name.startswith(("step_num_tokens", "step_num_sequences")):
            return f"tl.maximum(tl.load({at}), 1.0)"
        return f"tl.load({at})"


def emit_kernels(tree: Tree, sources: Mapping[str, SourceFile]) -> str:
    """Return the text of the module with the kernels of the loss `tree`; "" if it reads no
    statistics of the vocabulary."""
    if of_values_alone(tree):
        return ""
    derivative = differentiate(tree, VOCABULARY)
    local = phase(derivative) == TOKEN_LOCAL
    paired = any("P" in field.type.axes for field in tree.fields)
    sums = prepared(derivative) if local else ()
    valid = tuple(n for n, v in enumerate(derivative.values) if v.op == "valid") if local else ()
    programs = []
    if sums or valid:
        ends = [(f"sum_{i + 1}", n) for i, n in enumerate((*sums, *valid))]
        programs.append(program("prepare", derivative, ends, paired, sources))
    whole = with_mean_entropy(tree) if local else with_mean_entropy(with_gradient(tree, VOCABULARY))
    programs.append(program("sequences", whole, whole.outputs, paired, sources))
    row = row_function(derivative, (*sums, *valid), sources) if local else None
    return _render(
        tree,
        derivative,
        local=local,
        paired=paired,
        programs=programs,
        row=row,
        where=place(tree.span, sources),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The function `row_gradient`: its inputs, statements and results."""

    inputs: tuple[Input, ...]
    statistics: tuple[str, ...]
    lines: tuple[str, ...]
    names: tuple[str, ...]
    """names of the results in the caller: d_logprob, ..."""
    results: tuple[str, ...]

    @property
    def pointers(self) -> list[str]:
        return [item.name for item in self.inputs if item.index != "side"]

    @property
    def per_pair(self) -> bool:
        return any(item.index == "pair" for item in self.inputs)

    @property
    def per_sequence(self) -> bool:
        return any(item.index in ("seq", "pair", "side") for item in self.inputs)

    def call(self, indent: int) -> str:
        """Return the statement that calls it."""
        loaded = [item.value for item in self.inputs]
        head = f"{', '.join(self.names)} = row_gradient"
        return formatted(head, [*self.statistics, *loaded, "ACC"], indent)


def formatted(head: str, args: list[str], indent: int) -> str:
    """Write `head(args)` with the formatter's line breaks, indented by `indent` columns."""
    margin = " " * indent
    line = f"{margin}{head}({', '.join(args)})"
    colon = head.startswith("def ")  # it follows in the template
    if len(line) + colon <= 100:
        return line
    inner = f"{margin}    {', '.join(args)}"
    if len(inner) > 100:
        inner = "\n".join(f"{margin}    {arg}," for arg in args)
    return f"{margin}{head}(\n{inner}\n{margin})"


def row_function(derivative: Tree, sums: tuple[int, ...], sources: Mapping[str, SourceFile]) -> Row:
    """Make `row_gradient`: the gradient of the row statistics of a token-local loss."""
    inputs: dict[str, Input] = {}
    given = {}
    for number, node in enumerate(sums):
        type_ = derivative.values[node].type
        index = "pair" if "P" in type_.axes else "seq" if type_.axes else ""
        given[node] = Text(f"sum_{number + 1}")
        inputs[given[node].code] = Input(given[node].code, index, type_.dtype == "bool")
    for value in derivative.values:
        if value.op == "total":
            inputs[local(value)] = Input(local(value), "")
        elif value.op == "input" and value.attr not in (*VOCABULARY, "mask"):
            is_bool = value.type.dtype == "bool"
            inputs[local(value)] = Input(local(value), index_of(value.type), is_bool)
        elif value.op == "in_side":
            inputs[f"is_{value.attr}"] = Input(f"is_{value.attr}", "side")
    writer = Writer(
        derivative, sources, given, leaf=row_leaf, owner="ACC", render=row_render,
        reserved={*RESERVED, *VOCABULARY, *inputs},
    )  # fmt: skip
    results = {value: f"d_{name}" for name, value in derivative.outputs}
    writer.write([*results], results)
    read = {str(v.attr) for v in derivative.values if v.op == "input"}
    return Row(
        inputs=tuple(inputs.values()),
        statistics=tuple(name for name in VOCABULARY if name in read),
        lines=tuple(writer.lines),
        names=tuple(f"d_{name}" for name, _ in derivative.outputs),
        results=tuple(writer.text(value).code for _, value in derivative.outputs),
    )


def index_of(type_: TensorType) -> str:
    """Return the index of the entries of an input."""
    return "row" if type_.tokens else "pair" if "P" in type_.axes else "seq"


TRUE = Text("True")


def row_leaf(value: Value) -> Text:
    """Render an input of `row_gradient`, which runs only for valid rows."""
    if value.op == "input" and value.attr == "mask":
        return TRUE
    if value.op == "in_side":
        return Text(f"is_{value.attr}")
    return Text(local(value))


def row_render(value: Value, args: list[Text], operands: list[Value], owner: str) -> Text:
    """`render` without masks, which are always true in valid rows."""
    if value.op in ("where", "and") and args[0] == TRUE:
        return args[1]
    if value.op == "and" and args[1] == TRUE:
        return args[0]
    if value.op == "or" and TRUE in args:
        return TRUE
    if value.op == "not" and args[0] == TRUE:
        return Text("False")
    if value.op == "float" and args[0] == TRUE:
        return Text("1.0", constant=True)
    return render(value, args, operands, owner)


def _render(
    tree: Tree, derivative: Tree, *, local: bool, paired: bool, programs: list[SequenceKernel],
    row: Row | None, where: str,
) -> str:  # fmt: skip
    templates = environment()
    templates.filters["names"] = tuple_of
    templates.filters["suffixed"] = lambda name: f"{name}_ptr"
    templates.filters["at_once"] = at_once
    templates.filters["mapping"] = lambda pairs: "\n".join(mapping(pairs))
    cotangents = [name for name, _ in derivative.outputs]
    mean = any(v.attr == "mean_logprob" and v.op == "input" for v in tree.values)
    names = {
        "name": tree.name,
        "varying": '["ignore_index", "num_rows", "seq_len"]',
        "where": where,
        "paired": paired,
        "local": local,
        "phase": phase(derivative),
        "row": row,
        "cotangents": cotangents,
        "gradient_names": [f"d_{name}" for name in cotangents],
        "formatted": formatted,
        "slope": slope(cotangents),
        "statistics": [n for n in VOCABULARY if mean or n != "mean_logprob"],
        "mean": mean,
        "tilted": "entropy" in cotangents,
        "level": "mean_logprob" in cotangents,
        "programs": programs,
        "results": [name for name, _ in programs[-1].results],
        "sums": [(i.name, i.kind) for i in row.inputs if i.name.startswith("sum_")] if row else [],
        "num_parts": len(programs[-1].parts),
        "silent": [
            (field.name, f'"{index_of(field.type)}"')
            for field in (silencing(derivative) if local else ())
        ],
    }
    bodies = templates.get_template("kernels.py.j2").render(names)
    names["helpers"] = helpers(bodies)
    names["bodies"] = bodies
    return tidy(templates.get_template("module.py.j2").render(names))


def slope(cotangents: list[str]) -> str:
    """Return the factor of p in d loss / d logits, from the gradients of the row statistics."""
    plus = ["d_logsumexp"] if "logsumexp" in cotangents else []
    minus = [f"d_{name}" for name in ("logprob", "mean_logprob") if name in cotangents]
    minus += ["d_entropy * entropy"] if "entropy" in cotangents else []
    terms = " - ".join((*(plus or [""]), *minus)).strip()
    terms = f"-{terms[2:]}" if terms.startswith("- ") else terms
    return f"{terms} * inverse" if len(plus + minus) == 1 else f"({terms}) * inverse"


def tidy(text: str) -> str:
    """Normalize blank lines as the formatter does; templates cannot know the text before them."""
    text = re.sub(r"\n +(?=\n)", "\n", text)
    text = re.sub(r"\n\n+(?=    )", "\n", text)
    text = re.sub(r"\n{3,}(?=@|[A-Z]|def )", "\n\n\n", text)
    return text.rstrip("\n") + "\n"
