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
    """Role of a node: passes look for roles, and know no operation."""

    SOURCE = "source"  # begins the groups (or batches) of a step
    PROMPTS = "prompts"  # such a source: prompts, which are answered by sampling
    PAIRS = "pairs"  # such a source: preference pairs, which were written beforehand
    SUPERVISED = "supervised"  # such a source: whole batches of conversations
    SAMPLES = "samples"  # makes completions
    MEASURES = "measures"  # runs a model over tokens that are there
    SCORES = "scores"  # gives a score for each completion
    COMPUTES = "computes"  # calls a function of the program
    DECIDES = "decides"  # such a call: a filter, which says yes or no
    DROPS = "drops"  # decides which groups a batch is made of
    PACKS = "packs"  # makes a batch of completions and fields
    UPDATES = "updates"  # trains a service
    TRANSFERS = "transfers"  # brings weights to another service
    STORES = "stores"  # keeps what a step was made of
    RECALLS = "recalls"  # brings back what earlier steps kept


WORKS = frozenset({Role.SAMPLES, Role.MEASURES, Role.UPDATES, Role.TRANSFERS})
"""roles of the nodes whose work is a model's: what a step costs is the sum over them"""


def place(what: str, index: int) -> str:
    """`batch`, `batch_2`, ...: the arguments of a step, and `loss`, `loss_2`, ... its losses."""
    return what if index == 0 else f"{what}_{index + 1}"
