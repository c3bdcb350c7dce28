"""The interface between the compiler and an operation of a flow.

Passes call the methods of `Operation`; operations do not know the passes. The methods are in the
order of the passes. An operation overrides the defaults that do not fit. `Sizes` has the numbers of
a planned graph.
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
    """Streams that an argument accepts; `text` names them in messages. `attribute`: the argument
    also accepts a part of a prompt or rollout, such as `prompt.target` (only such a part if
    `streams` is empty).
    """

    streams: tuple[Stream, ...]
    text: str
    attribute: bool = False
    help: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Scope of a function of the program: what it sees and returns."""

    whole_step: bool
    """it sees all groups of the step, not the completions of one prompt"""
    per_token: bool
    """it returns a number for each token"""


class Sizes(Protocol):
    """Numbers of a planned graph."""

    program: Program

    @property
    def rows(self) -> int:
        """Rows of a microbatch of the trainer."""

    @property
    def row_tokens(self) -> int:
        """Tokens of a row of a microbatch."""

    @property
    def batch_tokens(self) -> int:
        """Tokens of a whole supervised batch, over all ranks."""

    def node(self, name: str) -> Node: ...
    def groups(self, node: Node) -> int:
        """Return the groups of a step that a node works on."""

    def full_length(self, node: Node) -> int:
        """Return the maximum number of tokens of a prompt and its completion in the trainer."""

    def lengths(self, node: Node) -> tuple[int, int]:
        """Return the maximum tokens of a sample node: (prompt, completion)."""

    def held(self, store: str) -> int:
        """Return the maximum bytes kept in a buffer."""

    def stored(self, drawn: Node) -> Node:
        """Return the node that fills the buffer that `drawn` draws from."""


class Lowering(Protocol):
    """Functions that an operation can call while its node is lowered to a node of the job."""

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


def groups_text(node: Node, sizes: Sizes, *, longest: bool = False) -> str:
    """Describe the groups of a node in a step: their number, size and, if `longest`, length in
    tokens."""
    samplers = [sizes.node(name) for name in sorted(node.samplers)]
    if not samplers:
        return ""
    each = " + ".join(str(int(s.settings["n"])) for s in samplers)
    tokens = f", T <= {max(sizes.lengths(s)[1] for s in samplers)}" if longest else ""
    return f"{counted(sizes.groups(node), 'group')}, G = {each}{tokens}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """Kind of declaration that an operation adds, such as `buffer good { ... }`.

    shown    an example, for the reference
    heading  of its section in the documentation of a file
    program  heading of its section in a generated program
    section  of the job that contains the declarations
    fewer    the setting to lower if a declaration takes too much memory
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
    """label of its output in a drawing, if it outputs no data of the step: `weights`"""
    owner: str = ""
    """object of a generated Python program that has a method for it: dataset, service, buffer or
    program; "" if it is written as `program.node(...)`"""
    method: str = ""
    """name of that method, if it is not the operation's name"""

    forms: Sequence[Form] = ()
    declares: Declaration | None = None
    """the kind of declaration that its statements are called on, if the operation adds one"""

    extra: frozenset[str] = frozenset()
    """fields of its node in a job, besides those of `lower.job.Node`"""

    # ---- log and progress of a run

    span: bool = False
    """its work is logged as a span, named after the operation"""
    of_groups: bool = False
    """the spans belong to a group or an evaluation, not to a step"""
    work: str = ""
    """noun for its items in the progress of a run: `completion`"""
    item_state: str = ""
    """state of an item while the operation runs: `being scored`"""
    waiting: str = ""
    """what an idle trainer waits for while the operation runs: `rewards`"""
    bound_by: str = ""
    """verdict on a run that the operation limits: `reward-bound`"""
    remedy: str = (
        "read the log of the service; retries and dropped rollouts help only if few calls fail"
    )
    """advice if it fails many times in a row"""

    @property
    def has_result(self) -> bool:
        """True if a statement of this operation gives a name to its result."""
        return any(form.result for form in self.forms)

    # ---- statements

    def resolve(self, flow: Statements, statement: Statement) -> bool:
        """Resolve a statement and add its step; False after reporting a mistake."""
        return flow.resolve_call(self.name, statement)

    def check_flow(self, ctx: Any, steps: Sequence[FlowStep], with_errors: Set[str]) -> None:
        """Report mistakes that its statements make together. `with_errors` are receivers of
        statements that already have a diagnostic."""

    def stands_for(self, step: FlowStep, flow: Iterable[FlowStep]) -> FlowStep | None:
        """Return the `put` that fills the buffer which this statement draws from; None for other
        statements."""
        return None

    def finish(self, flow: Statements, steps: Sequence[FlowStep]) -> Sequence[FlowStep]:
        """Complete the steps of the flow with facts that are known once all statements are
        resolved."""
        return steps

    # ---- graph

    def node(self, node: Node) -> Node:
        """Complete the node of a statement. Its inputs are not typed yet."""
        return node

    def complete_call(self, node: Node, function: Reach) -> Node:
        """Complete the node of a call of a function of the program."""
        return node

    def typed(
        self, node: Node, read: Sequence[Node], nodes: Mapping[str, Node], all_: Sequence[Node]
    ) -> Node:
        """Set root, samplers and level of the node from the nodes it reads."""
        if not read:
            return replace(node, root=node.name)
        samplers = frozenset[str]().union(*(source.samplers for source in read))
        return replace(node, root=read[0].root, samplers=samplers)

    def after(self, node: Node, nodes: Sequence[Node]) -> frozenset[str]:
        """Return the names of nodes that must come first although it does not read them."""
        return frozenset()

    def links(self, node: Node, nodes: Sequence[Node]) -> Iterator[Edge]:
        """Yield its edges that carry no data of the step: order, weights, replay."""
        return iter(())

    @property
    def needed(self) -> bool:
        """True if the node stays in the graph even if nothing reads its edge."""
        return bool(self.roles & {Role.UPDATES, Role.TRANSFERS, Role.SCORES})

    def needs(self, node: Node, nodes: Sequence[Node]) -> Iterable[str]:
        """Return nodes, besides those it reads, that must stay in the graph if it stays."""
        return ()

    def slim(self, node: Node, nodes: Sequence[Node]) -> Node:
        """Drop inputs of the node that nothing will read."""
        return node

    # ---- legality

    def wanted(self, program: Program, node: Node, read: Input) -> Wanted | None:
        """Return the streams that an argument accepts; None if it accepts all."""
        return None

    def parts(
        self, node: Node, nodes: Sequence[Node], by_name: Mapping[str, Node]
    ) -> Mapping[str, Stream | None] | None:
        """Return the extra parts that its items have (`old.adv`); None if the items have all parts
        of their stream and no others."""
        return None

    def reader(self, node: Node, read: Input) -> str:
        """Return the name of the reading node for messages."""
        return f"{node.target}.{self.name}"

    def check(
        self, program: Program, node: Node, nodes: Sequence[Node], by_name: Mapping[str, Node]
    ) -> Iterator[Diagnostic]:
        """Yield mistakes that are specific to this operation."""
        return iter(())

    def check_joins(self, node: Node, by_name: Mapping[str, Node]) -> Iterator[Diagnostic]:
        """Yield mistakes in the inputs that it joins. The types of the inputs have been checked."""
        return iter(())

    # ---- plan

    def slots(self, node: Node, credits: int) -> int:
        """Return the number of groups (or batches) that it works on at once."""
        return 1

    def queue(self, node: Node, credits: int) -> int:
        """Return the number of items that its edge may hold."""
        return 1 if node.level is Level.BATCH else credits

    def check_age(
        self, program: Program, node: Node, age_bound: int, formula: str
    ) -> Iterator[Diagnostic]:
        """Yield mistakes that depend on the bound of the policy age."""
        return iter(())

    def age_settings(self, program: Program, node: Node, age_bound: int) -> Mapping[str, int]:
        """Return the settings to change, with their new values, for such a bound of the policy
        age."""
        return {}

    def sequences(self, node: Node, sizes: Sizes) -> int:
        """Return the maximum number of sequences that it contributes to a step."""
        return 0

    def trained_tokens(self, node: Node, sizes: Sizes) -> int:
        """Return the maximum number of tokens that it contributes to a step."""
        return 0

    def held_bytes(self, node: Node, sizes: Sizes) -> int:
        """Return an upper bound of the bytes that the node keeps on the controller's host."""
        return 0

    def edge_details(self, node: Node, program: Program) -> tuple[tuple[str, str], ...]:
        """Return (name, value) details for a drawing of an edge from `links` that ends at this
        node."""
        return ()

    def plan_lines(self, node: Node, sizes: Sizes) -> Iterator[str]:
        """Yield the lines of the plan page about this node, under `replay`."""
        return iter(())

    # ---- drawings

    def call_text(self, node: Node) -> str:
        """Return the node as a call: `generator.sample(n = 8)`."""
        return node.target or node.op

    def note_text(self, node: Node, sizes: Sizes) -> str:
        """Return the size of its work in a step, in a few words."""
        return ""

    def size_text(self, node: Node, sizes: Sizes) -> str:
        """Return the amount that the node makes in one optimizer step, as text."""
        return ""

    def age_text(self, node: Node, program: Program) -> str:
        """Return the age of the node's results as text; "" if they are as old as new groups."""
        return ""

    # ---- job

    def fields(self, node: Node, to: Lowering) -> dict[str, Any]:
        """Return the fields of its node in the job that differ from their defaults."""
        return {}

    def timeout(self, node: Node, to: Lowering) -> float:
        """Return the seconds that one call may take."""
        return CALL_TIMEOUT
