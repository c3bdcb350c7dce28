"""Maps the values of a tree to their source spans, through inlined functions.

    hir.Function  ->  locate  ->  Located: its Tree, and the expressions that contain each value,
                                  innermost first, one for each inlined function

A value of `rl.k3(logprob, ref)` belongs to `expm1(d)` in the library and to the call in the user's
loss. Rules report the call; a suppression in the library applies too.
"""

from __future__ import annotations

from typing import Any

from forgedsl.diagnostics import Reporter
from forgedsl.ir import program as ir
from forgedsl.losses.build import Typed
from forgedsl.losses.infer import Inference
from forgedsl.losses.tree import Field, Tree, reachable
from forgedsl.records import dataclass
from forgedsl.source import Span
from forgedsl.syntax import ast


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Located:
    """A tree with its source. `names` maps the span of a written name to its value. Compared by
    identity, so that it can be the key of a cache."""

    tree: Tree
    chains: tuple[tuple[ast.Expr, ...], ...]
    names: dict[Span, int]
    functions: tuple[ir.Function, ...]


def locate(
    function: ir.Function, reporter: Reporter, params: dict[str, Any] | None = None
) -> Located | None:
    """Infer the tree of a function with its spans; None after reporting errors."""
    inference = _Inference(reporter)
    tree = inference.function(function, dict(params or {}))
    if tree is None:
        return None
    numbers = inference.numbers
    chains: list[tuple[ast.Expr, ...]] = [()] * len(tree.values)
    for old, new in numbers.items():
        chains[new] = tuple(node for _, node in inference.chains.get(old, ()))
    names = {span: numbers[old] for span, old in inference.paths.items() if old in numbers}
    functions = tuple(inference.inlined.values())
    return Located(tree=tree, chains=tuple(chains), names=names, functions=functions)


class _Inference(Inference):
    """Type inference that records which expression made each value."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(reporter)
        self.chains: dict[int, list[tuple[int, ast.Expr]]] = {}
        self.paths: dict[Span, int] = {}
        self.inlined: dict[int, ir.Function] = {}
        self.numbers: dict[int, int] = {}

    def expr(self, node: ast.Expr) -> Typed:
        before = len(self.build.values)
        typed = super().expr(node)
        level = len(self.calls)
        self.inlined[id(self.calls[-1])] = self.calls[-1]
        for value in range(before, len(self.build.values)):
            chain = self.chains.setdefault(value, [])
            if not chain or chain[-1][0] > level:
                chain.append((level, node))
        if isinstance(node, ast.Path) and not typed.type.is_error:
            self.paths[node.span] = typed.value
        return typed

    def _tree(
        self, function: ir.Function, declared: tuple[Field, ...], outputs: dict[str, int]
    ) -> Tree:
        tree = super()._tree(function, declared, outputs)
        totals = dict(self.totals)
        ends = [*outputs.values(), *(totals[name] for name, _ in tree.totals)]
        kept = reachable(self.build.values, ends)
        self.numbers = {old: new for new, old in enumerate(kept)}
        return tree
