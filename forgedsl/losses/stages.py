"""Stages: the loops over tokens in which a kernel program computes a tree for its sequence.

    outer    values without a token axis (numbers of the sequence, counts of the step)
    loop 1   token values, reduced over the sequence
    outer    what follows from these sums
    loop 2   token values that need them, ...

`level[v]` is the nesting depth of token reductions below a value; loop l computes the reductions of
level l. Sums over the batch (`total_sum`) end a program: values computed from them are in `final`,
which runs once all programs have stored their part.
"""

from __future__ import annotations

from collections.abc import Iterable

from forgedsl.losses.tree import SEQUENCE_REDUCTIONS, Tree, reachable
from forgedsl.records import dataclass

VALID = "valid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Outer values to compute, then a loop: its reductions and the token values that it stores."""

    outer: tuple[int, ...]
    reductions: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """All stages. `sums` are the batch sums that `final` outputs depend on."""

    stages: tuple[Stage, ...]
    sums: tuple[int, ...]


def has_tokens(tree: Tree, node: int) -> bool:
    return tree.values[node].type.tokens is not None


def levels(tree: Tree) -> list[int]:
    """Return the nesting depth of token reductions below each value."""
    found: list[int] = []
    for value in tree.values:
        level = max((found[arg] for arg in value.args), default=0)
        inner = value.op in SEQUENCE_REDUCTIONS or value.op == VALID
        found.append(level + 1 if inner else level)
    return found


def stages(tree: Tree, ends: Iterable[int]) -> Stages:
    """Plan the stages for `ends`: token values, values of a sequence, or results of batch sums."""
    ends = tuple(ends)
    needed = reachable(tree.values, list(ends))
    level = levels(tree)
    sums = tuple(n for n in needed if tree.values[n].op == "total_sum")
    behind = _behind_sums(tree, needed)
    inside = [n for n in needed if n not in behind]
    targets = {arg for n in sums for arg in tree.values[n].args} | set(ends)
    users = _users(tree, inside)
    depth = max((level[n] + (has_tokens(tree, n)) for n in inside), default=0)
    plan = []
    for number in range(depth + 1):
        reductions = tuple(n for n in inside if _reduces(tree, n) and level[n] == number + 1)
        tokens = tuple(
            n for n in inside if n in targets and has_tokens(tree, n) and level[n] == number
        )
        outer = tuple(
            n
            for n in inside
            if level[n] == number
            and not has_tokens(tree, n)
            and not _reduces(tree, n)
            and tree.values[n].args
            and (n in targets or any(level[u] > number or has_tokens(tree, u) for u in users[n]))
        )
        plan.append(Stage(outer=outer, reductions=reductions, tokens=tokens))
    return Stages(stages=tuple(plan), sums=sums)


def _reduces(tree: Tree, node: int) -> bool:
    op = tree.values[node].op
    return op in SEQUENCE_REDUCTIONS or op == VALID


def _behind_sums(tree: Tree, needed: list[int]) -> set[int]:
    """Return the batch sums and everything computed from them."""
    found: set[int] = set()
    for node in needed:
        value = tree.values[node]
        if value.op == "total_sum" or not found.isdisjoint(value.args):
            found.add(node)
    return found


def _users(tree: Tree, nodes: list[int]) -> dict[int, list[int]]:
    users: dict[int, list[int]] = {node: [] for node in nodes}
    for node in nodes:
        for arg in tree.values[node].args:
            users[arg].append(node)
    return users
