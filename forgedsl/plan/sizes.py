"""Sizes of a planned graph: lengths of sequences, groups and tokens of a step, bytes kept.

request + graph -> PlannedSizes -> what the operations (forgedsl/operations) compute from it
"""

from __future__ import annotations

from forgedsl.ir.graph import Graph, Node
from forgedsl.operations.base import Role
from forgedsl.operations.registry import operation
from forgedsl.plan.environments import environment_of, longest_text, max_training_tokens
from forgedsl.sizes.memory import Request
from forgedsl.sizes.meshes import MeshPlan, number, value


def data_ranks(mesh: MeshPlan) -> int:
    """Return the number of ranks that have different rows."""
    return mesh.degrees["dp_shard"] * mesh.degrees["dp_replicate"]


def lengths(request: Request, graph: Graph, node: Node) -> tuple[int, int]:
    """Return the maximum (prompt, completion) tokens of a sample node. Without `max_prompt_tokens`,
    the prompt gets what the completion leaves of a row. A trajectory without a token limit gets
    what the prompt leaves of the row."""
    dataset = request.program.datasets[graph.node(node.root).target]
    row = request.rows[graph.trainer][1]
    new = longest_text(request.program, node)
    if new is None or environment_of(request.program, node.settings) is not None:
        least = number(dataset, "max_prompt_tokens", 1)
        new = min(row if new is None else new, max(1, row - least))
    return number(dataset, "max_prompt_tokens", max(1, row - new)), new


def completions(graph: Graph, node: Node) -> int:
    """Return the number of completions that a sampler makes in a step."""
    return graph.drawn(node) * int(node.settings["n"])


class PlannedSizes:
    """Numbers of a planned graph, for the operations (`operations.base.Sizes`)."""

    def __init__(self, request: Request, graph: Graph) -> None:
        self.request, self.graph, self.program = request, graph, request.program

    @property
    def rows(self) -> int:
        return self.request.rows[self.graph.trainer][0]

    @property
    def row_tokens(self) -> int:
        return self.request.rows[self.graph.trainer][1]

    @property
    def batch_tokens(self) -> int:
        trainer = self.graph.trainer
        accumulate = number(self.program.services[trainer], "batch.accumulate", 1)
        return self.rows * self.row_tokens * accumulate * data_ranks(self.request.mesh(trainer))

    def node(self, name: str) -> Node:
        return self.graph.node(name)

    def groups(self, node: Node) -> int:
        return self.graph.drawn(node)

    def full_length(self, node: Node) -> int:
        """Maximum tokens of a completion and its prompt that the trainer computes."""
        prompt, new = self.lengths(node)
        found = max_training_tokens(self.program, node, prompt)
        return min(self.row_tokens, prompt + new if found is None else found)

    def lengths(self, node: Node) -> tuple[int, int]:
        return lengths(self.request, self.graph, node)

    def held(self, store: str) -> int:
        return self.request.held[store]

    def stored(self, drawn: Node) -> Node:
        return next(n for n in self.graph.having(Role.STORES) if n.target == drawn.target)


def step_tokens(request: Request, graph: Graph) -> int:
    """Return the maximum number of tokens that one optimizer step trains on."""
    batches = [graph.node(read.edge) for read in graph.step.inputs]
    sampled = frozenset[str]().union(*(batch.samplers for batch in batches))
    sizes = PlannedSizes(request, graph)
    return sum(
        operation(node.op).trained_tokens(node, sizes)
        for node in graph.nodes
        if Role.SAMPLES not in node.roles or node.name in sampled
    )


def trained_length(request: Request, graph: Graph) -> int:
    """Return the most tokens of a sample of the training batches: those of a row if they come from
    a dataset."""
    batches = [graph.node(read.edge) for read in graph.step.inputs]
    sampled = frozenset[str]().union(*(batch.samplers for batch in batches))
    sizes = PlannedSizes(request, graph)
    return max((sizes.full_length(graph.node(name)) for name in sampled), default=sizes.row_tokens)


def filled_tokens(request: Request, graph: Graph, service: str) -> int:
    """Return the tokens of a microbatch of a trainer, if all samples have the maximum length. On a
    GPU a microbatch is one long row, in which whole samples lie one after the other."""
    rows, seq_len = request.rows[service]
    length = min(seq_len, trained_length(request, graph))
    if request.mesh(service).device != "gpu":
        return rows * seq_len
    packs = value(request.program.services[service], "batch.pack", True)
    return length * (rows * seq_len // length if packs else rows)


def held_bytes(request: Request, graph: Graph) -> dict[str, int]:
    """Return an upper bound of the bytes kept on the controller's host for later steps, by
    buffer.
    """
    sizes = PlannedSizes(request, graph)
    return {n.target: operation(n.op).held_bytes(n, sizes) for n in graph.having(Role.RECALLS)}
