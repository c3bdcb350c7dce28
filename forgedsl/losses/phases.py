"""Decides the phases of a loss: how the gradient couples the tokens of a batch.

    token-local       the gradient of a row needs that row only: forward can form it at once
    sequence-coupled  it needs sums of current log-probs over the sequence: two passes
    batch-coupled     it needs sums of current log-probs over the batch: two passes

Counts, lengths and old log-probs are data and couple nothing: sums over data are computed once,
before the gradient (`prepared`).
"""

from __future__ import annotations

from forgedsl.losses.tree import REDUCTIONS, ROW_STATISTICS, VALUE, VOCABULARY, Tree

TOKEN_LOCAL = "token-local"
SEQUENCE_COUPLED = "sequence-coupled"
BATCH_COUPLED = "batch-coupled"


def policy_dependent(tree: Tree) -> frozenset[int]:
    """Return the values that depend on the trained model."""
    found: set[int] = set()
    for number, value in enumerate(tree.values):
        statistic = value.op == "input" and value.attr in ROW_STATISTICS
        if statistic or not found.isdisjoint(value.args):
            found.add(number)
    return frozenset(found)


def phase(gradient: Tree) -> str:
    """Return how the gradient of a loss couples tokens."""
    policy = policy_dependent(gradient)
    coupling = {
        value.op
        for number, value in enumerate(gradient.values)
        if number in policy and value.op in REDUCTIONS
    }
    if "total_sum" in coupling:
        return BATCH_COUPLED
    return SEQUENCE_COUPLED if coupling else TOKEN_LOCAL


def prepared(gradient: Tree) -> tuple[int, ...]:
    """Return the reductions over data: they are computed once per batch, before the chunks of
    rows."""
    policy = policy_dependent(gradient)
    return tuple(
        number
        for number, value in enumerate(gradient.values)
        if value.op in REDUCTIONS and number not in policy
    )


def of_values_alone(tree: Tree) -> bool:
    """True if the value head is all that a loss reads of the model."""
    read = {value.attr for value in tree.values if value.op == "input"}
    return VALUE in read and read.isdisjoint(VOCABULARY)
