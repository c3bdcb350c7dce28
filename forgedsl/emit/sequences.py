"""Emits kernels over sequences, the part of a loss with reductions: one program per sequence.

    Tree, values to compute  ->  stages  ->  SequenceKernel: loops over tokens,
                                             with generated statements

A program handles a sequence (or a pair of two sequences). Token results are stored by row, others
by sequence. Sums over the batch have one part per program; the program that ends last adds them in
a fixed order, so results are deterministic and need no second launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forgedsl.emit.expressions import AND, COMPARE, SUM, Text
from forgedsl.emit.torch import Writer
from forgedsl.emit.triton_ops import RESERVED, local, render
from forgedsl.losses.build import Builder
from forgedsl.losses.infer import compact
from forgedsl.losses.stages import Stage, has_tokens, stages
from forgedsl.losses.tree import VOCABULARY, Tree, Value, reachable
from forgedsl.records import dataclass, replace
from forgedsl.source import SourceFile
from forgedsl.types.tensors import SCALAR, TensorType

WIDTH = 78
"""Maximum width of a statement in a loop: 100 columns minus the indentation."""

LONG = 40
"""Length of an expression, in characters, from which on it is assigned to a name."""

AT_ONCE = 4
"""Number of sums that are reduced together: each separate reduction waits for all warps."""

Reduction = tuple[str, str, str]
"""(accumulator, the function that reduces it, the name of the result)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One loop over the tokens of a sequence."""

    loads: tuple[str, ...]
    """statements that load the inputs of the next block of tokens, masked tokens included"""
    lines: tuple[str, ...]
    accumulators: tuple[tuple[str, str, str, str], ...]
    """(accumulator, its start, the reduction's function, the name of the result)"""

    @property
    def sums(self) -> list[Reduction]:
        return [(name, reduce, result) for name, _, reduce, result in self.accumulators]


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceKernel:
    """A kernel over sequences, ready for its template. Elsewhere in this module, "a program" is one
    instance of a kernel, which handles one sequence."""

    name: str
    pointers: tuple[str, ...]
    loads: tuple[str, ...]
    blocks: tuple[tuple[tuple[str, ...], Loop | None], ...]
    """per stage: statements of the sequence, then a loop"""
    stores: tuple[str, ...]
    parts: tuple[str | list[str], ...]
    """parts of batch sums: an expression, or the arguments of a `where`"""
    final: tuple[str, ...]
    results: tuple[tuple[str, str], ...]

    @property
    def totals(self) -> list[Reduction]:
        """The names of the sums over all programs."""
        numbers = range(1, len(self.parts) + 1)
        return [(f"total_{number}_S", "tl.sum", f"total_{number}") for number in numbers]


def at_once(reductions: Sequence[Reduction]) -> list[list[Reduction]]:
    """Group reductions: up to AT_ONCE sums together, others alone."""
    sums = [each for each in reductions if each[1] == "tl.sum"]
    groups = [sums[start : start + AT_ONCE] for start in range(0, len(sums), AT_ONCE)]
    return [*groups, *([each] for each in reductions if each[1] != "tl.sum")]


def with_mean_entropy(tree: Tree) -> Tree:
    """Add an output to `tree`: the mean entropy of the current policy."""
    build = Builder(tree.values)
    axes = next(v.type.axes for v in tree.values if v.op == "input" and v.attr in VOCABULARY)
    build.span = tree.span
    entropy = build.leaf("input", "entropy", TensorType(axes, "f32", True))
    mask = build.leaf("input", "mask", TensorType(axes, "bool"))
    mean = build("total_sum", entropy, mask)
    mean = build("div", mean, build.leaf("total", "num_tokens", SCALAR))
    ends = [*tree.outputs, ("entropy", mean)]
    values, number = compact(build.values, [value for _, value in ends], {})
    return replace(
        tree, values=tuple(values), outputs=tuple((name, number[value]) for name, value in ends)
    )


def program(
    name: str,
    tree: Tree,
    ends: Sequence[tuple[str, int]],
    paired: bool,
    sources: Mapping[str, SourceFile],
) -> SequenceKernel:
    """Make the kernel `name` that computes `ends` of `tree`; each is stored under its name."""
    return _Writer(name, tree, ends, paired, sources).program()


class _Writer:
    """Writes a program. `texts` are the values of the sequence known so far."""

    def __init__(
        self,
        name: str,
        tree: Tree,
        ends: Sequence[tuple[str, int]],
        paired: bool,
        sources: Mapping[str, SourceFile],
    ) -> None:
        self.name, self.tree, self.ends = name, tree, ends
        nodes = list(dict.fromkeys(node for _, node in ends))
        self.paired, self.sources = paired, sources
        self.plan = stages(tree, nodes)
        self.needed = reachable(tree.values, nodes)
        self.texts: dict[int, Text] = {}
        self.taken: set[str] = {*RESERVED, "mask", *(f"{name}_ptr" for name in self._fields())}
        self.taken |= set(self._fields())
        self.parts: dict[int, str | list[str]] = {}

    def _fields(self) -> list[str]:
        values = [self.tree.values[n] for n in self.needed]
        return list(dict.fromkeys(local(v) for v in values if v.op in ("input", "total")))

    def program(self) -> SequenceKernel:
        loads = self._outer_loads()
        blocks = []
        for stage in self.plan.stages:
            lines = self._outer(stage)
            blocks.append((lines, self._loop(stage)))
        stores = [
            f"tl.store({name}_ptr + {self._index_variable(n)}, {self.texts[n].code})"
            for name, n in self.ends
            if not has_tokens(self.tree, n) and self.tree.values[n].type.axes
        ]
        for node in self.plan.sums:
            if node not in self.parts:
                self.parts[node] = self._sequence_part(node)
        final, results = self._final()
        return SequenceKernel(
            name=self.name,
            pointers=self._pointers(),
            loads=tuple(loads),
            blocks=tuple(blocks),
            stores=tuple(stores),
            parts=tuple(self.parts[node] for node in self.plan.sums),
            final=tuple(final),
            results=tuple(results),
        )

    def _pointers(self) -> tuple[str, ...]:
        names = [name for name in self._fields() if name != "mask"]
        names += [name for name, n in self.ends if self.tree.values[n].type.axes]
        return tuple(f"{name}_ptr" for name in names)

    def _index_variable(self, node: int) -> str:
        return "pair" if "P" in self.tree.values[node].type.axes else "seq"

    def _outer_loads(self) -> list[str]:
        """Load the inputs without a token axis (one per sequence) and the counts of the step."""
        lines = []
        for node in self.needed:
            value = self.tree.values[node]
            name = local(value) if value.op in ("input", "total") else ""
            if value.op == "total" and name.startswith("step_batch_sum"):
                lines.append(f"{name} = tl.load({name}_ptr)")
            elif value.op == "total":
                lines.append(f"{name} = tl.maximum(tl.load({name}_ptr), 1.0)")
            elif value.op == "input" and value.type.tokens is None:
                cast = ".to(tl.int1)" if value.type.dtype == "bool" else ""
                lines.append(f"{name} = tl.load({name}_ptr + {self._index_variable(node)}){cast}")
        return lines

    def _writer(self) -> Writer:
        return Writer(
            self.tree, self.sources, self.texts, leaf=self._leaf, owner="ACC", render=render,
            reserved=self.taken, width=WIDTH,
        )  # fmt: skip

    def _leaf(self, value: Value) -> Text:
        if value.op == "in_side":
            return Text("chosen_side" if value.attr == "chosen" else "~chosen_side")
        return Text("counted" if value.attr == "mask" else local(value))

    def _outer(self, stage: Stage) -> tuple[str, ...]:
        writer = self._writer()
        writer.write([n for n in stage.outer if n not in self.texts])
        self.texts.update({n: writer.text(n) for n in stage.outer})
        self.taken |= writer.taken
        return tuple(writer.lines)

    def _loop(self, stage: Stage) -> Loop | None:
        """Write the reductions and token results of a loop."""
        if not stage.reductions and not stage.tokens:
            return None
        values = self.tree.values
        sums = [n for n in self.plan.sums if values[n].args[0] in stage.tokens]
        stored = [(name, n) for name, n in self.ends if n in stage.tokens]
        nodes = [n for _, n in stored]
        inner = [arg for n in (*stage.reductions, *sums) for arg in values[n].args]
        writer = self._writer()
        writer.write(
            [n for n in dict.fromkeys((*inner, *nodes)) if n not in writer.texts],
            {n: name for name, n in stored},
        )
        lines, accumulators = list(writer.lines), []
        for node in (*stage.reductions, *sums):
            written, added = self._reduce(node, writer)
            lines += written
            accumulators += added
        for name, node in stored:
            text = f"tl.where(counted, {writer.text(node).code}, 0.0)"
            lines.append(f"tl.store({name}_ptr + rows, {text}, mask=here)")
        used = reachable(values, [*inner, *nodes])
        inputs = [n for n in used if self._is_token_input(n)]
        names = [local(values[n]) for n in inputs if values[n].type.dtype != "bool"]
        lines = [*(f"{name} = tl.where(counted, {name}, 0.0)" for name in names), *lines]
        loads = [self._load(n) for n in inputs]
        self.taken |= writer.taken
        return Loop(loads=tuple(loads), lines=tuple(lines), accumulators=tuple(accumulators))

    def _is_token_input(self, node: int) -> bool:
        value = self.tree.values[node]
        return value.op == "input" and value.type.tokens is not None and value.attr != "mask"

    def _load(self, node: int) -> str:
        name = local(self.tree.values[node])
        if self.tree.values[node].type.dtype == "bool":
            return f"{name} = tl.load({name}_ptr + rows, mask=here, other=0).to(tl.int1)"
        return f"{name} = tl.load({name}_ptr + rows, mask=here, other=0.0)"

    def _reduce(
        self, node: int, writer: Writer
    ) -> tuple[list[str], list[tuple[str, str, str, str]]]:
        """Return the statements that accumulate a reduction, and its accumulators."""
        value = self.tree.values[node]
        if value.op == "valid":
            return self._count_valid(node, value)
        result = self._fresh(value.op)
        sum_name = f"{result}_T"
        self.texts[node] = Text(result)
        if value.op == "total_sum":
            self.parts[node] = result
        mask = self._mask(value, writer)
        if value.op == "seq_count":
            line = f"{sum_name} += ({mask}).to(ACC)"
            return [line], [(sum_name, "0.0", "tl.sum", result)]
        code, lines = writer.text(value.args[0]).code, []
        if len(code) > LONG:
            lines = [f"{result}_value = {code}"]
            code = f"{result}_value"
        if value.op in ("seq_max", "seq_min"):
            extreme = value.op[4:]
            edge = f'float("{"-" if extreme == "max" else ""}inf")'
            line = f"{sum_name} = {extreme}imum({sum_name}, tl.where({mask}, {code}, {edge}))"
            return [*lines, line], [(sum_name, edge, f"tl.{extreme}", result)]
        return (
            [*lines, f"{sum_name} += tl.where({mask}, {code}, 0.0)"],
            [(sum_name, "0.0", "tl.sum", result)],
        )

    def _count_valid(
        self, node: int, value: Value
    ) -> tuple[list[str], list[tuple[str, str, str, str]]]:
        """Count valid sequences: those with a valid token; a pair is valid if both sides are."""
        sides = {"counted": self._fresh("num_counted")}
        if value.attr == "P":
            sides = {
                "counted & chosen_side": self._fresh("num_chosen"),
                "counted & ~chosen_side": self._fresh("num_rejected"),
            }
        test = " & ".join(f"({name} > 0.0)" for name in sides.values())
        self.texts[node] = Text(test, AND) if value.attr == "P" else Text(test[1:-1], COMPARE)
        lines = [f"{name}_T += ({mask}).to(ACC)" for mask, name in sides.items()]
        return lines, [(f"{name}_T", "0.0", "tl.sum", name) for name in sides.values()]

    def _mask(self, value: Value, writer: Writer) -> str:
        """Return the condition of tokens in a reduction: its mask and its side."""
        node = value.args[-1]
        text = writer.text(node)
        parts = ["counted"] if text.code == "counted" else ["counted", text.inside(SUM)]
        side = (self.tree.values[node].type.tokens or "").removeprefix("T").removeprefix(".")
        if side:
            parts.append("chosen_side" if side == "chosen" else "~chosen_side")
        return " & ".join(parts)

    def _sequence_part(self, node: int) -> str | list[str]:
        """Return the contribution of a sequence's value to a batch sum."""
        args = self.tree.values[node].args
        value = self.texts[args[0]] if args[0] in self.texts else self._constant(args[0])
        if len(args) == 1:
            return value.code
        return [self.texts[args[1]].code, value.code, "0.0"]

    def _constant(self, node: int) -> Text:
        writer = self._writer()
        writer.write([node])
        return writer.text(node)

    def _fresh(self, base: str) -> str:
        number = 1
        while (name := f"{base}_{number}") in self.taken:
            number += 1
        self.taken.add(name)
        return name

    def _final(self) -> tuple[list[str], list[tuple[str, str]]]:
        """Write the part that follows the sums over the batch."""
        scalars = [(name, n) for name, n in self.ends if not self.tree.values[n].type.axes]
        if not scalars:
            return [], []
        kept = {n: t for n, t in self.texts.items() if not self.tree.values[n].type.axes}
        self.texts = {**kept, **{n: Text(f"total_{i + 1}") for i, n in enumerate(self.plan.sums)}}
        writer = self._writer()
        names = {n: "objective" if name == "loss" else name for name, n in scalars}
        writer.write([*names], names)
        return writer.lines, [(name, writer.text(n).code) for name, n in scalars]
