"""Return values of a program's declarations: edges, and handles with methods that add nodes.

dataset.draw, dataset.pairs, dataset.batches        generator.sample, buffer.put, buffer.draw
titan.logprobs, titan.step, titan.sync              edge.target reads an attribute
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forgedsl.lower import job as spec
from forgedsl.types.flow import place


class Nodes(Protocol):
    """The methods of a program that the handles call."""

    def node(
        self,
        name: str,
        op: str,
        target: str = "",
        inputs: Mapping[str, Edge] | None = None,
        *,
        level: str,
        at: str = "",
        **given: Any,
    ) -> Edge:
        """Add a node and return its edge."""

    def function(self, function: Callable[..., Any]) -> str:
        """Return the name of a function of the program's module."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Output of a node; `edge.target` reads an attribute of it."""

    name: str
    level: str
    attribute: str | None = None

    def __getattr__(self, attribute: str) -> Edge:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        path = f"{self.attribute}.{attribute}" if self.attribute else attribute
        return Edge(self.name, self.level, path)

    def read_as(self, argument: str) -> spec.Input:
        """Return this edge as an argument of a node."""
        return spec.Input(argument=argument, edge=self.name, attribute=self.attribute)


@dataclass(frozen=True, slots=True)
class Model:
    """A declared model."""

    name: str


@dataclass(frozen=True, slots=True)
class Loss:
    """A declared loss."""

    name: str


@dataclass(frozen=True, slots=True)
class Scorer:
    """A declared reward or rubric."""

    name: str


@dataclass(frozen=True, slots=True)
class Env:
    """A declared environment."""

    name: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """A declared dataset, and the nodes that draw from it."""

    program: Nodes
    name: str

    def draw(self, name: str, count: int, **node: Any) -> Edge:
        """Draw prompt groups, `count` for each optimizer step. `weight` is a function of the
        program's module; `observe` is the name of the score whose results `weight` gets."""
        if "weight" in node:
            node["weight"] = self.program.function(node["weight"])
        return self.program.node(name, "draw", self.name, level="group", count=count, **node)

    def pairs(self, name: str, count: int, **node: Any) -> Edge:
        """Draw preference pairs, `count` for each optimizer step."""
        return self.program.node(name, "pairs", self.name, level="group", count=count, **node)

    def batches(self, name: str, **node: Any) -> Edge:
        """Draw whole supervised batches."""
        return self.program.node(name, "batches", self.name, level="batch", **node)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A declared replay buffer, and the nodes that fill it and draw from it."""

    program: Nodes
    name: str

    def put(self, name: str, inputs: Mapping[str, Edge], **node: Any) -> None:
        """Store the groups of each step. The input `rollout` is the completions; other inputs are
        stored with them as named fields. With an input `keep`, a group is stored only if `keep` is
        true for all of its completions."""
        self.program.node(name, "put", self.name, inputs, level="batch", **node)

    def draw(self, name: str, count: int, **node: Any) -> Edge:
        """Draw groups of earlier steps, `count` for each step; `edge.adv` reads a field."""
        return self.program.node(name, "recall", self.name, level="rollout", count=count, **node)


@dataclass(frozen=True, slots=True)
class Titan:
    """A torchtitan service, and the nodes that call it."""

    program: Nodes
    name: str
    trained: bool

    def logprobs(self, name: str, rollout: Edge, **node: Any) -> Edge:
        """Compute log-probs of completions; for a trained service under the weights before the
        step."""
        inputs = {"rollout": rollout}
        return self.program.node(
            name, "logprobs", self.name, inputs, level=rollout.level, at_step=self.trained, **node
        )

    def step(self, name: str, batch: Edge | Sequence[Edge], loss: Loss, **node: Any) -> None:
        """Do one optimizer step on `batch`: `epochs` passes in `minibatches` updates each. With
        several batches, `beside` has an entry for each batch after the first: the name of its
        loss, or "" if its samples are added to the batch before it."""
        batches = [batch] if isinstance(batch, Edge) else batch
        inputs = {place("batch", i): each for i, each in enumerate(batches)}
        node.setdefault("beside", ("",) * (len(batches) - 1))
        self.program.node(name, "step", self.name, inputs, level="batch", loss=loss.name, **node)

    def sync(self, name: str, to: Generator, **node: Any) -> None:
        """Send the weights to a generator."""
        self.program.node(name, "sync", self.name, level="batch", to=to.name, **node)


@dataclass(frozen=True, slots=True)
class Generator:
    """A vLLM service, and the node that calls it."""

    program: Nodes
    name: str

    def sample(self, name: str, prompt: Edge, n: int, **node: Any) -> Edge:
        """Sample `n` completions for each prompt; with `env`, `max_turns` and `longest`,
        trajectories."""
        inputs = {"prompt": prompt}
        if isinstance(env := node.pop("env", None), Env):
            node["env"] = env.name
        return self.program.node(name, "sample", self.name, inputs, level="rollout", n=n, **node)
