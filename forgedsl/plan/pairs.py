"""The two answers of a pair are trained together, so a microbatch needs room for both.

With `pack` they may share a row. A pair of which each answer is as long as a row needs two, so
`auto` chooses at least two. P216: `batch.rows = 1` without `pack`, which no pair fits.
"""

from __future__ import annotations

from forgedsl.diagnostics import Diagnostic, Reporter, error
from forgedsl.ir.graph import Graph
from forgedsl.ir.program import Program
from forgedsl.losses.infer import infer
from forgedsl.losses.tree import Tree
from forgedsl.sizes.memory import Request
from forgedsl.sizes.meshes import setting_label, value, written_at


def is_paired(tree: Tree) -> bool:
    """True if a loss compares the two answers of a pair."""
    return any("P" in field.type.axes for field in tree.fields)


def paired_loss(program: Program, graph: Graph) -> str | None:
    """Return the name of a loss of the steps or evals that compares the answers of a pair. A loss
    with a mistake is skipped: it is reported when it is lowered."""
    measured = (decl.settings["loss"].value for decl in program.evals.values())
    names = [loss for loss, _ in graph.step.terms]
    names += [ref.name for ref in measured if ref is not None]
    for name in dict.fromkeys(names):
        tree = infer(program.functions[name], Reporter())
        if tree is not None and is_paired(tree):
            return name
    return None


def least_rows(program: Program, graph: Graph) -> int:
    """Return the smallest `batch.rows` that every batch of the trainer fits."""
    return 1 if paired_loss(program, graph) is None else 2


def check_pairs(request: Request, graph: Graph) -> list[Diagnostic]:
    """P216: without `pack` each answer has a row of its own, so a microbatch has two rows."""
    rows, seq_len = request.rows[graph.trainer]
    decl = request.program.services[graph.trainer]
    if rows > 1 or value(decl, "batch.pack"):
        return []
    if (loss := paired_loss(request.program, graph)) is None:
        return []
    key = "batch.rows" if value(decl, "batch.tokens") is None else "batch.tokens"
    return [
        error(
            "P216",
            "not-carried-out",
            f"loss `{loss}` needs both answers of a pair in a microbatch, and microbatches of "
            f"`{graph.trainer}` have only 1 row of {seq_len} tokens",
            written_at(decl, key),
            related=setting_label(decl, "batch.pack"),
            help=f"`{key} = {2 if key == 'batch.rows' else 2 * seq_len}`, or `batch.pack = true`",
        )
    ]
