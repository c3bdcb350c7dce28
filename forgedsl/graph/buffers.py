"""What makes replay of samples legal, as diagnostics: codes F113, F130, T703.

Typed nodes enter. Statements that fill a buffer, or draw from it, without the other have been told
by the front end (hir.buffers).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from forgedsl.diagnostics import Diagnostic, Label, error
from forgedsl.graph.ir import Input, Node
from forgedsl.hir.ir import Program
from forgedsl.source import Span


def check_buffers(
    program: Program, nodes: Sequence[Node], by_name: Mapping[str, Node]
) -> list[Diagnostic]:
    """What is drawn against what there is, when it was computed, and where it is read."""
    drawn = {node.name for node in nodes if node.op == "recall"}
    found: list[Diagnostic] = []
    for node in nodes:
        roots = [by_name[read.edge].root for read in node.inputs]
        if node.op == "recall":
            found += _too_many(program, node, nodes, by_name)
        elif node.op == "put":
            found += _of_the_step(node, by_name)
        elif node.op in ("score", "keep") and not drawn.isdisjoint(roots):
            found.append(_too_late(node, by_name[node.inputs[0].edge]))
        elif node.op == "step":
            found += _fresh(node, by_name, drawn)
    return found


def _too_many(
    program: Program, node: Node, nodes: Sequence[Node], by_name: Mapping[str, Node]
) -> Iterator[Diagnostic]:
    """A draw that never gets what it asks for, by the size of its buffer or by what comes in before
    it is too old."""
    decl, count = program.buffers[node.target], int(node.settings["count"])
    groups, age = (decl.settings[key].value for key in ("groups", "max_age"))
    put = next(n for n in nodes if n.op == "put" and n.target == node.target)
    fresh = int(by_name[by_name[put.inputs[0].edge].root].settings.get("count", 0))
    if not (isinstance(groups, int) and isinstance(age, int)):
        return
    if count > groups:
        key, has = "groups", f"`{decl.name}` holds {groups}"
        help = f"`groups = {16 * count}` or more, so that a group is not drawn in every step"
    elif count > fresh * age > 0 and _synced(node, nodes):
        key, has = "max_age", f"`{decl.name}` has at most {fresh * age} that are young enough"
        help = f"`max_age = {8 * -(-count // fresh)}`, or draw fewer: {fresh} are put in a step"
    else:
        return
    yield error(
        "F113",
        "bad-value",
        f"{count} groups are drawn in a step, and {has}",
        node.span,
        related=(
            Label(
                text="the most that it holds" if key == "groups" else "older ones leave",
                span=decl.settings[key].origin.span or decl.name_span,
            ),
        ),
        help=help,
    )


def _synced(recall: Node, nodes: Sequence[Node]) -> bool:
    """Whether what is drawn ages with each step: of a frozen sampler it does from the next one."""
    return any(n.op == "sync" and n.settings["target"] in _targets(recall, nodes) for n in nodes)


def _targets(recall: Node, nodes: Sequence[Node]) -> set[str]:
    return {n.target for n in nodes if n.name in recall.samplers}


def _of_the_step(node: Node, by_name: Mapping[str, Node]) -> Iterator[Diagnostic]:
    """Log-probs of the trainer are those of the weights of a step, and of no later one."""
    for read in node.inputs:
        if by_name[read.edge].at_step:
            source = by_name[read.edge]
            call = "values" if source.values else "logprobs"
            yield error(
                "F130",
                "flow-shape",
                f"`{read.argument}` is computed under the weights of the step that it is put in",
                read.span,
                related=(Label(text="computed here", span=source.span),),
                help=f"compute it for what is drawn: `{source.target}.{call}(old)`",
            )


def _too_late(node: Node, source: Node) -> Diagnostic:
    if node.op == "keep":
        message = f"`{source.name}` was drawn from a buffer, and is filtered"
        help = "choose when it is put: `put(rollout, keep = FILTER(score))`"
    else:
        message = f"`{source.name}` was drawn from a buffer, and is scored again"
        help = "keep its score: `put(rollout, score = score)`, and read `old.score`"
    return error("F130", "flow-shape", message, node.span, help=help)


def _fresh(step: Node, by_name: Mapping[str, Node], drawn: set[str]) -> Iterator[Diagnostic]:
    """A buffer is empty at first, so something else has to be learned from."""
    (_, batches), *_ = step.terms
    if all(by_name[read.edge].root in drawn for read in batches):
        names = ", ".join(f"`{read.edge}`" for read in batches)
        yield error(
            "F130",
            "flow-shape",
            f"the first loss of a step learns from samples of the step; {names} was drawn from a "
            "buffer, which is empty at first",
            _span(batches),
            help=f"`{step.target}.step(merge(fresh, old), loss = x)`, or "
            f"`{step.target}.step(fresh, loss = x, old, loss = y)`",
        )


def _span(batches: Sequence[Input]) -> Span:
    return batches[0].span
