"""The interface between the compiler and an operation of a flow.

Passes call the methods of `Operation`; an operation knows no pass. The methods stand in the order
of the passes. A unit overrides the defaults that do not fit. `Sizes` gives the numbers of a planned
graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Protocol

from forgedsl.diagnostics import counted
from forgedsl.records import dataclass, replace
from forgedsl.settings import Kind
from forgedsl.types.flow import Level, Role, Stream

__all__ = [
    "CALL_TIMEOUT",
    "Level",
    "Lowering",
    "Operation",
    "Reach",
    "Role",
    "Sizes",
    "Stream",
    "Wanted",
]

if TYPE_CHECKING:
    from forgedsl.diagnostics import Diagnostic
    from forgedsl.ir.graph import Edge, Input, Node
    from forgedsl.ir.program import FlowStep, Program
    from forgedsl.operations.statements import Form, Statement, Statements


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The parts that an argument may read. `attribute`: also, or only, a part of a prompt or
    rollout.
    """

    streams: tuple[Stream, ...]
    text: str
    attribute: bool = False
    help: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The items that a function of the program is computed over."""

    whole_step: bool
    """over all groups of the step, not over the siblings of one"""
    per_token: bool
    """it gives a number for each token"""


class Sizes(Protocol):
    """Numbers of a planned graph."""

    program: Program

    @property
    def rows(self) -> int:
        """Rows of a microbatch of the trainer."""

    @property
    def row_tokens(self) -> int:
        """Tokens of such a row."""

    @property
    def batch_tokens(self) -> int:
        """Tokens of a whole supervised batch."""

    def node(self, name: str) -> Node: ...
    def groups(self, node: Node) -> int:
        """Groups of a step that a node works on."""

    def lengths(self, node: Node) -> tuple[int, int]:
        """(prompt, completion) tokens of a sampler, at most."""

    def held(self, store: str) -> int:
        """Bytes that are kept in a store, at most."""

    def stored(self, drawn: Node) -> Node:
        """The node that fills what `drawn` draws from."""


class Lowering(Protocol):
    """The services that a unit may use while its node is lowered to a node of the job."""

    program: Program

    def function(self, name: str, settings: Mapping[str, Any]) -> str: ...
    def scalar(self, name: str) -> str: ...
    def longest(self, service: str) -> int: ...
    def transport(self, node: Node) -> str: ...
    def timeout_of(self, score: str) -> float: ...
    def turn_seconds(self, service: str) -> float: ...
    def play_seconds(self, settings: Mapping[str, Any], turn: float) -> float: ...
    def compares(self, score: str) -> bool: ...


CALL_TIMEOUT = 300.0


def siblings_text(node: Node, sizes: Sizes, *, longest: bool = False) -> str:
    """Return the groups of a node in a step, their size and, if `longest`, their length."""
    samplers = [sizes.node(name) for name in sorted(node.samplers)]
    if not samplers:
        return ""
    each = " + ".join(str(int(s.settings["n"])) for s in samplers)
    tokens = f", T <= {max(sizes.lengths(s)[1] for s in samplers)}" if longest else ""
    return f"{counted(sizes.groups(node), 'group')}, G = {each}{tokens}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """Declaration that an operation needs: `buffer good { ... }`.

    shown    an example, for the reference
    heading  of the declarations in the page of a file; `program` is that in a generated program
    section  of a job that has them
    fewer    the setting that makes one smaller
    """

    kind: Kind
    shown: str
    heading: str
    program: str
    section: str
    fewer: str


class Operation:
    """One operation. `name` is its name in a job."""

    name: str
    roles: frozenset[Role] = frozenset()
    stream: Stream = Stream.NOTHING
    level: Level = Level.ROLLOUT
    produces: str = "nothing"
    """for a drawing, where its edge carries no data of the step"""
    owner: str = ""
    """the handle of a generated program that has a method for it: dataset, service, buffer or
    program; without one it is written as `program.node`"""
    method: str = ""
    """how that method is called, if not as the operation"""

    forms: Sequence[Form] = ()
    declares: Declaration | None = None
    """what its statements are called on, if it has a kind of declaration of its own"""

    extra: frozenset[str] = frozenset()
    """fields of its node in a job which `lower.job.Node` does not have"""

    # ---- runs

    span: bool = False
    """its work is a span of its name in the log of a run"""
    of_groups: bool = False
    """those spans belong to a group, or to an evaluation"""
    work: str = ""
    """what it works on, in the progress of a run: `completion`"""
    state: str = ""
    """what happens to that meanwhile: `being scored`"""
    waiting: str = ""
    """what a trainer without work waits for while this is under way: `rewards`"""
    slow: str = ""
    """how a run is called that waits for it: `reward-bound`"""
    remedy: str = "look at the log of the service; retry or drop only covers single failures"
    """what to do if it fails many times in a row"""

    @property
    def has_result(self) -> bool:
        """True if a statement of this operation names an edge."""
        return any(form.result for form in self.forms)

    # ---- statements

    def resolve(self, flow: Statements, said: Statement) -> bool:
        """Add the step that a statement means; whether it could be read."""
        return flow.simple(self.name, said)

    def check_flow(self, ctx: Any, steps: Sequence[FlowStep], unsure: Set[str]) -> None:
        """Report what is wrong with its statements together. `unsure` are receivers of statements
        that have a mistake, which is reported."""

    def stands_for(self, step: FlowStep, flow: Iterable[FlowStep]) -> FlowStep | None:
        """The statement whose inputs it brings back from earlier steps."""
        return None

    def finish(self, flow: Statements, steps: Sequence[FlowStep]) -> Sequence[FlowStep]:
        """The steps of the whole flow, with what is known when all statements have been read."""
        return steps

    # ---- graph

    def node(self, node: Node) -> Node:
        """The node of a statement, before it is known what it reads."""
        return node

    def bound(self, node: Node, function: Reach) -> Node:
        """The node of a call of a function of the program."""
        return node

    def typed(
        self, node: Node, read: Sequence[Node], nodes: Mapping[str, Node], all_: Sequence[Node]
    ) -> Node:
        """The node with root, samplers and level, from those it reads."""
        if not read:
            return replace(node, root=node.name)
        samplers = frozenset[str]().union(*(source.samplers for source in read))
        return replace(node, root=read[0].root, samplers=samplers)

    def after(self, node: Node, nodes: Sequence[Node]) -> frozenset[str]:
        """Names of nodes that come before it though it does not read them."""
        return frozenset()

    def links(self, node: Node, nodes: Sequence[Node]) -> Iterator[Edge]:
        """Edges that carry no data of the step: order, weights, replay."""
        return iter(())

    @property
    def needed(self) -> bool:
        """True if the node stays in the graph although nothing reads its edge."""
        return bool(self.roles & {Role.UPDATES, Role.TRANSFERS, Role.SCORES})

    def needs(self, node: Node, nodes: Sequence[Node]) -> Iterable[str]:
        """Nodes that have to stay if it does, besides those it reads."""
        return ()

    def slim(self, node: Node, nodes: Sequence[Node]) -> Node:
        """The node without inputs that nobody will read."""
        return node

    # ---- legality

    def wanted(self, program: Program, node: Node, read: Input) -> Wanted | None:
        """Return what an argument may carry; None if it may carry anything."""
        return None

    def parts(
        self, node: Node, nodes: Sequence[Node], by_name: Mapping[str, Node]
    ) -> Mapping[str, Stream | None] | None:
        """Return the parts that items have beside their own; None: all that their stream has."""
        return None

    def reader(self, node: Node, read: Input) -> str:
        """Return the name of the reading node for messages."""
        return f"{node.target}.{self.name}"

    def check(
        self, program: Program, node: Node, nodes: Sequence[Node], by_name: Mapping[str, Node]
    ) -> Iterator[Diagnostic]:
        """Mistakes that only it can see."""
        return iter(())

    def check_joins(self, node: Node, by_name: Mapping[str, Node]) -> Iterator[Diagnostic]:
        """Mistakes in what it puts together, once all its inputs carry what they should."""
        return iter(())

    # ---- plan

    def slots(self, node: Node, credits: int) -> int:
        """Groups (or batches) that it works on at once."""
        return 1

    def queue(self, node: Node, credits: int) -> int:
        """Items that its edge may hold."""
        return 1 if node.level is Level.BATCH else credits

    def check_age(
        self, program: Program, node: Node, age_bound: int, formula: str
    ) -> Iterator[Diagnostic]:
        """Mistakes that show when it is known how old a group may be."""
        return iter(())

    def sequences(self, node: Node, sizes: Sizes) -> int:
        """Sequences that a step trains on because of it, at most."""
        return 0

    def trained_tokens(self, node: Node, sizes: Sizes) -> int:
        """Tokens that a step trains on because of it, at most."""
        return 0

    def held_bytes(self, node: Node, sizes: Sizes) -> int:
        """Return an upper bound of the bytes that the node keeps on the controller's host."""
        return 0

    def edge_details(self, node: Node, program: Program) -> tuple[tuple[str, str], ...]:
        """Return what a drawing says of an edge from `links` that ends here, beside its ends."""
        return ()

    def plan_lines(self, node: Node, sizes: Sizes) -> Iterator[str]:
        """Yield the lines of the plan page about this node, under `replay`."""
        return iter(())

    # ---- drawings

    def call_text(self, node: Node) -> str:
        """The node as a call: `generator.sample(n = 8)`."""
        return node.target or node.op

    def note_text(self, node: Node, sizes: Sizes) -> str:
        """The size of its work in a step, in a few words."""
        return ""

    def size_text(self, node: Node, sizes: Sizes) -> str:
        """Return the amount that the node makes in one optimizer step, as text."""
        return ""

    def age_text(self, node: Node, program: Program) -> str:
        """Return the age of the node's results as text; "" if they are as old as a fresh group."""
        return ""

    # ---- job

    def fields(self, node: Node, to: Lowering) -> dict[str, Any]:
        """The fields of its node in the job that differ from their defaults."""
        return {}

    def timeout(self, node: Node, to: Lowering) -> float:
        """Seconds that one call may take."""
        return CALL_TIMEOUT
