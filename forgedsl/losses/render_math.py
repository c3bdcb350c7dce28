"""Prints a loss tree as mathematics, in plain text.

    Tree  ->  its steps by name with type and interval, the objective, the reports,
              and the gradient for each row statistic

    ratio = exp(clamp(logprob - behavior, -20, 20))    [B, T] in [2.06e-09, 4.85e+08]
    sum[B] (sum[T | mask] x / max(count[T | mask], 1)) / num_sequences

`[c] * x` is x where c is true and 0 elsewhere. Values that have a name in the source, or are used
more than once, get a line of their own; others are written where they are used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from forgedsl.losses.grad import differentiate
from forgedsl.losses.intervals import Analysis
from forgedsl.losses.tree import Tree, Value, reachable

_INFIX = {
    "or": ("or", 1), "and": ("and", 2), "eq": ("==", 4), "ne": ("!=", 4), "lt": ("<", 4),
    "le": ("<=", 4), "gt": (">", 4), "ge": (">=", 4), "add": ("+", 6), "sub": ("-", 6),
    "mul": ("*", 7), "div": ("/", 7), "mod": ("%", 7), "pow": ("**", 9),
}  # fmt: skip
_ATOM = 10
_TRANSPARENT = ("expand", "unside", "float")
_SHORT = 12  # expressions up to this length are repeated instead of named
Text = tuple[str, int]  # a text, and the precedence of its outermost operator


def render(tree: Tree) -> str:
    """Return the page of a loss: steps, objective, reports, gradient."""
    if tree.is_python:
        return _python(tree)
    analysis = Analysis(tree.values, [value for _, value in tree.outputs])
    names = {i: value.name for i, value in enumerate(tree.values) if value.name}
    writer = _Writer(tree.values, names)
    steps = writer.definitions([value for _, value in tree.outputs])
    lines = ["inputs", *_fields(tree), *(["", "steps"] if steps else [])]
    width = max((len(text) for _, text in steps), default=0)
    for node, text in steps:
        lines.append(f"  {text:{min(width, 60)}}  {_facts(tree.values[node], analysis, node)}")
    what, end = tree.outputs[0]
    lines += ["", {"loss": "minimize"}.get(what, what), f"  {writer.text(end)}"]
    if tree.kind != "loss":
        return "\n".join(lines) + "\n"
    if tree.reports:
        lines += ["", "report"]
        lines += [f"  {name} = {writer.text(tree.output(name))}" for name in tree.reports]
    return "\n".join([*lines, "", *_gradient(tree, writer)]) + "\n"


def _python(tree: Tree) -> str:
    """Return the page of a Python loss: its inputs."""
    says = tree.values[tree.output("loss")].attr
    reports = ["", "report", *(f"  {name}" for name in tree.reports)] if tree.reports else []
    lines = ["inputs", *_fields(tree), "", "minimize", f"  {says}", *reports]
    return "\n".join([*lines, "", "gradient", "  by torch.autograd"]) + "\n"


def _fields(tree: Tree) -> list[str]:
    width = max(len(field.name) for field in tree.fields)
    lines = [f"  {field.name:{width}} : {field.type}" for field in tree.fields]
    if tree.unused:
        lines.append(f"  fields not needed with these parameters: {', '.join(tree.unused)}")
    return lines


def facts_text(tree: Tree, node: int) -> str:
    """Return axes, dtype and interval of a value as text: `[B, T] f32 in [0, 1]`."""
    analysis = Analysis(tree.values, [value for _, value in tree.outputs])
    return _facts(tree.values[node], analysis, node)


def _facts(value: Value, analysis: Analysis, node: int) -> str:
    axes = str(value.type)
    if value.type.dtype == "bool":
        return axes
    found = analysis[node]
    bounds = "may be infinite or NaN" if not found.finite else f"in {found}"
    nonzero = ", never 0" if found.nonzero and found.lo <= 0 <= found.hi else ""
    return f"{axes} {bounds}{nonzero}"


def _gradient(tree: Tree, primal: _Writer) -> list[str]:
    """Return the lines of the gradient, with its intermediate steps first."""
    gradient = differentiate(tree)
    known = set(primal.names.values())
    names = {i: v.name for i, v in enumerate(gradient.values) if v.name}
    writer = _Writer(gradient.values, names)
    ends = [value for _, value in gradient.outputs]
    lines = ["gradient"]
    lines += [
        f"  {text}" for node, text in writer.definitions(ends) if names.get(node) not in known
    ]
    lines += [f"  d loss / d {name} = {writer.text(end)}" for name, end in gradient.outputs]
    if writer.has_ties:
        lines.append("  (where both sides of a minimum or maximum are equal, each gets half)")
    return lines


class _Writer:
    """Writes the values of a tree. `names` are the values that are written by name."""

    def __init__(self, values: Sequence[Value], names: dict[int, str]) -> None:
        self.values = values
        self.names = {i: n for i, n in names.items() if values[i].op not in ("const", "input")}
        self.memo: dict[int, Text] = {}
        self.has_ties = False

    def definitions(self, ends: list[int]) -> list[tuple[int, str]]:
        """Return lines `name = text` of the values that the ends depend on. Repeated values get
        names."""
        needed = reachable(list(self.values), ends)
        uses = Counter(a for node in needed for a in set(self.values[node].args))
        found = []
        for node in needed:
            if node not in self.names and uses[node] > 1 and len(self._body(node)[0]) > _SHORT:
                self.names[node] = self._fresh()
            if node in self.names:
                found.append((node, f"{self.names[node]} = {self._body(node)[0]}"))
        read = {n for line in [self.text(e) for e in ends] for n in _words(line)}
        for node, line in reversed(found):
            if self.names[node] in read:
                read |= set(_words(line.partition(" = ")[2]))
        return [(node, line) for node, line in found if self.names[node] in read]

    def _fresh(self) -> str:
        taken = sum(name[:1] == "u" and name[1:].isdigit() for name in self.names.values())
        return f"u{taken + 1}"

    def text(self, node: int, level: int = 0) -> str:
        """Return the name of a value, or its text, with parentheses if the context binds
        tighter."""
        if node in self.names:
            return self.names[node]
        if node not in self.memo:
            self.memo[node] = self._body(node)
        text, own = self.memo[node]
        return f"({text})" if own < level else text

    def _body(self, node: int) -> Text:
        value = self.values[node]
        op, args = value.op, value.args
        if op in _INFIX:
            sign, level = _INFIX[op]
            right = level if op in ("add", "mul", "and", "or") else level + 1
            return f"{self.text(args[0], level)} {sign} {self.text(args[1], right)}", level
        if op in _TRANSPARENT:
            text = self.text(args[0])
            loosest = self.memo[args[0]][1] if args[0] in self.memo else _ATOM
            return (f"[{text}]", _ATOM) if op == "float" else (text, loosest)
        match op:
            case "const":
                return _number(value.attr)
            case "input" | "total":
                return str(value.attr), _ATOM
            case "group_size":
                return "B" if any("B" in v.type.axes for v in self.values) else "G", _ATOM
            case "siblings":
                return "G", _ATOM
            case "valid":
                return "valid", _ATOM
            case "in_side":
                return f"in {value.attr}", _ATOM
            case "side":
                return f"{self.text(args[0], _ATOM)}.{value.attr}", _ATOM
            case "neg":
                return f"-{self.text(args[0], 8)}", 8
            case "not":
                return f"not {self.text(args[0], 3)}", 3
            case "where":
                return self._where(args)
        return self._call(value)

    def _call(self, value: Value) -> Text:
        """Functions and sums."""
        op, args = value.op, value.args
        if op == "seq_count":
            return f"count[T | {self.text(args[0])}]", _ATOM
        if op.endswith(("_sum", "_max", "_min")):
            family, _, what = op.partition("_")
            axes = {"seq": "T", "sibling": "G"}.get(family) or _axes(self.values[args[0]])
            mask = f" | {self.text(args[1])}" if len(args) > 1 else ""
            return f"{what}[{axes}{mask}] {self.text(args[0], 9)}", 6
        return f"{op}({', '.join(self.text(a) for a in args)})", _ATOM

    def _where(self, args: tuple[int, ...]) -> Text:
        condition, then, otherwise = args
        if self._is_zero(otherwise):
            return f"[{self.text(condition)}] * {self.text(then, 8)}", 7
        if self._is_tie(condition, then, otherwise):
            self.has_ties = True
            return f"[{self.text(condition)}] * {self.text(then, 8)}", 7
        test, first = self.text(condition, 1), self.text(then, 1)
        return f"{first} if {test} else {self.text(otherwise)}", 0

    def _is_zero(self, node: int) -> bool:
        return self.values[node].op == "const" and self.values[node].attr == 0.0

    def _is_tie(self, condition: int, then: int, otherwise: int) -> bool:
        """True for where(a < b, g, where(a == b, g / 2, 0)), the gradient of a minimum."""
        inner = self.values[otherwise]
        if inner.op != "where" or not self._is_zero(inner.args[2]):
            return False
        tie, half = self.values[inner.args[0]], self.values[inner.args[1]]
        return (
            tie.op == "eq" and set(tie.args) == set(self.values[condition].args)
            and half.op == "mul" and then in half.args
        )  # fmt: skip


def _axes(value: Value) -> str:
    axes = {axis.partition(".")[0] for axis in value.type.axes}
    return "".join(axis for axis in "PBTG" if axis in axes)


def _number(value: float | bool | str | None) -> Text:
    if isinstance(value, float):
        return f"{value:g}", _ATOM if value >= 0 else 8
    return str(value).lower(), _ATOM


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() or c == "_" else " " for c in text).split()
