"""Vocabulary of the flow: levels and streams of edges, roles of nodes."""

from __future__ import annotations

from enum import StrEnum


class Level(StrEnum):
    ROLLOUT = "rollout"
    GROUP = "group"
    BATCH = "batch"


class Stream(StrEnum):
    """Kind of data on the edge that a node produces."""

    PROMPT = "Prompt"
    PAIR = "Pair"
    ROLLOUT = "Rollout"
    LOGPROB = "LogProb"
    SCORE = "Score"
    VALUE = "Value"
    MASK = "Mask"
    BATCH = "Batch"
    NOTHING = ""


class Role(StrEnum):
    """Role of a node. Passes ask for roles, not for operations."""

    SOURCE = "source"  # a source: starts the groups (or batches) of a step
    PROMPTS = "prompts"  # a source of prompts for sampling
    PAIRS = "pairs"  # a source of preference pairs
    SUPERVISED = "supervised"  # a source of whole batches of conversations
    SAMPLES = "samples"  # samples completions
    MEASURES = "measures"  # runs a model over existing tokens
    SCORES = "scores"  # scores each completion
    COMPUTES = "computes"  # calls a function of the program
    DECIDES = "decides"  # a call of a filter, which returns true or false
    DROPS = "drops"  # drops groups
    PACKS = "packs"  # makes a batch from completions and fields
    UPDATES = "updates"  # trains a service
    TRANSFERS = "transfers"  # sends weights to another service
    STORES = "stores"  # stores groups in a buffer
    RECALLS = "recalls"  # draws stored groups from a buffer


WORKS = frozenset({Role.SAMPLES, Role.MEASURES, Role.UPDATES, Role.TRANSFERS})
"""roles of nodes that run a model: the cost of a step is the sum over them"""


def place(what: str, index: int) -> str:
    """Return the name of the i-th argument of a step: `batch`, `batch_2`, ... or `loss`, `loss_2`,
    ..."""
    return what if index == 0 else f"{what}_{index + 1}"
