"""What declarations of a program return: edges, and the nodes that datasets and services make.

dataset.draw, dataset.pairs, dataset.batches        generator.sample, buffer.put, buffer.draw
titan.logprobs, titan.step, titan.sync              edge.target reads an attribute
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forgedsl.lower import job as spec
from forgedsl.schema.flow import place


class Nodes(Protocol):
    """What the handles need of the program that they belong to."""

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
        """Add a node; its edge."""

    def function(self, function: Callable[..., Any]) -> str:
        """The name of a function of the program's module."""


@dataclass(frozen=True, slots=True)
class Edge:
    """What a node produces; `edge.target` reads an attribute of it."""

    name: str
    level: str
    attribute: str | None = None

    def __getattr__(self, attribute: str) -> Edge:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        path = f"{self.attribute}.{attribute}" if self.attribute else attribute
        return Edge(self.name, self.level, path)

    def read_as(self, argument: str) -> spec.Input:
        """This edge as an argument of a node."""
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
        """Prompt groups, `count` for each optimizer step; with `weight`, a function of the
        program's module, and `observe`, the name of the score whose results it is given."""
        if "weight" in node:
            node["weight"] = self.program.function(node["weight"])
        return self.program.node(name, "draw", self.name, level="group", count=count, **node)

    def pairs(self, name: str, count: int, **node: Any) -> Edge:
        """Preference pairs, `count` for each optimizer step."""
        return self.program.node(name, "pairs", self.name, level="group", count=count, **node)

    def batches(self, name: str, **node: Any) -> Edge:
        """Whole supervised batches."""
        return self.program.node(name, "batches", self.name, level="batch", **node)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A declared buffer: what fills it, and what later steps draw of it."""

    program: Nodes
    name: str

    def put(self, name: str, inputs: Mapping[str, Edge], **node: Any) -> None:
        """Keep `rollout` and the named fields of what a step was made of, where `keep` says so."""
        self.program.node(name, "put", self.name, inputs, level="batch", **node)

    def draw(self, name: str, count: int, **node: Any) -> Edge:
        """Groups of earlier steps, `count` for each step; `edge.adv` reads a field."""
        return self.program.node(name, "recall", self.name, level="rollout", count=count, **node)


@dataclass(frozen=True, slots=True)
class Titan:
    """A torchtitan service, and its nodes."""

    program: Nodes
    name: str
    trained: bool

    def logprobs(self, name: str, rollout: Edge, **node: Any) -> Edge:
        """Log-probs of completions; of a trained service under the weights before the step."""
        inputs = {"rollout": rollout}
        return self.program.node(
            name, "logprobs", self.name, inputs, level=rollout.level, at_step=self.trained, **node
        )

    def step(self, name: str, batch: Edge | Sequence[Edge], loss: Loss, **node: Any) -> None:
        """One optimizer step on `batch`, of `epochs` passes in `minibatches` updates each. Of
        several batches, those after the first have their losses in `beside`, by name: "" where one
        adds to the batch before."""
        batches = [batch] if isinstance(batch, Edge) else batch
        inputs = {place("batch", i): each for i, each in enumerate(batches)}
        node.setdefault("beside", ("",) * (len(batches) - 1))
        self.program.node(name, "step", self.name, inputs, level="batch", loss=loss.name, **node)

    def sync(self, name: str, to: Generator, **node: Any) -> None:
        """Send the weights to a generator."""
        self.program.node(name, "sync", self.name, level="batch", to=to.name, **node)


@dataclass(frozen=True, slots=True)
class Generator:
    """A vLLM service, and its node."""

    program: Nodes
    name: str

    def sample(self, name: str, prompt: Edge, n: int, **node: Any) -> Edge:
        """`n` completions for each prompt; with `env`, `max_turns` and `longest` trajectories."""
        inputs = {"prompt": prompt}
        if isinstance(env := node.pop("env", None), Env):
            node["env"] = env.name
        return self.program.node(name, "sample", self.name, inputs, level="rollout", n=n, **node)
