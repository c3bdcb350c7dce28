"""Syntax of operations, and the methods of the flow's resolver that an operation may call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from forgedsl.diagnostics import Fix, Label
from forgedsl.ir.program import FlowInput, FlowStep, Function, Origin, Ref, Scope, Value
from forgedsl.records import dataclass
from forgedsl.services.base import Capability
from forgedsl.settings import Type
from forgedsl.source import Span
from forgedsl.syntax import ast


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One way to write an operation: `OWNER.method(params)`.

    owner       receiver of the call: a kind of declaration (`dataset`, `rubric`), `service`,
                `stream`, or "" for a word of the language without receiver
    method      "" if the declaration itself is called: `grade(rollout, prompt.target)`
    capability  that the kind of the service must have
    params      parameters in order; streams come first
    streams     parameters that only accept a stream
    counts      parameters that accept an integer
    required    parameters that must be given, besides the first
    doc         text of its row in the reference; "" if it has none
    shown       the call in the reference, if not `OWNER.method(params)`
    example     the call in a message about a missing argument, if not `OWNER.method(params)`
    result      False if the statement has no result that gets a name
    columns     columns of the dataset that it reads
    """

    owner: str
    method: str = ""
    capability: Capability | None = None
    params: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    doc: str = ""
    shown: str = ""
    example: str = ""
    result: bool = True
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A call of a flow that is being resolved: `name = receiver.method(...)`."""

    name: str | None
    call: ast.Call
    form: Form
    receiver: str
    span: Span


class Reports(Protocol):
    """Receiver of diagnostics (`hir.context.Context`)."""

    def error(
        self,
        code: str,
        message: str,
        span: Span,
        *,
        label: str = "",
        help: str = "",
        notes: tuple[str, ...] = (),
        related: tuple[Label, ...] = (),
        fix: Fix | None = None,
        table: tuple[str | Label, ...] = (),
    ) -> object: ...
    def unknown(
        self, code: str, what: str, name: str, span: Span, candidates: Iterable[str], help: str = ""
    ) -> object: ...


class Statements(Protocol):
    """A flow while its statements are resolved (`hir.flow.FlowResolver`)."""

    functions: dict[str, Function]
    edges: dict[str, Span]
    """span of the definition of each stream"""
    failed: set[str]
    """streams whose statement has a diagnostic"""
    steps: list[FlowStep]
    merged: dict[str, tuple[FlowInput, ...]]
    """merged batches: name -> the batches in it"""
    read: set[str]
    """streams that a step trains on"""
    observed: dict[str, Value]
    """per weighted draw, the score whose results its weight is computed from"""

    @property
    def ctx(self) -> Reports: ...
    @property
    def scope(self) -> Scope: ...
    def use(self, name: str) -> None:
        """Record that a name of the file is used."""

    def loss(self, value: ast.Expr) -> str | None:
        """Return the loss that an argument names; None after reporting a mistake."""

    def reference(self, value: ast.Expr, type_: Type, what: str) -> Ref | None:
        """Return the declaration that an argument names; None after reporting a mistake."""

    def value_head_declaration(self, service: str) -> str | None:
        """Return the text that declares a service with a value head; None if it has one."""

    def arguments(
        self, statement: Statement, params: tuple[str, ...] | None = None
    ) -> tuple[tuple[FlowInput, ...], dict[str, Value]] | None:
        """Resolve arguments to streams and constants, by parameter (those of the form unless others
        are given); None after reporting a mistake."""

    def count(self, value: Value, call: ast.Call, what: str) -> Value:
        """Check a constant that must be an integer of at least 1."""

    def emit(
        self,
        op: str,
        statement: Statement,
        inputs: tuple[FlowInput, ...],
        settings: dict[str, Value],
    ) -> None:
        """Add a statement to the flow."""

    def resolve_call(self, op: str, statement: Statement) -> bool:
        """Resolve and add a statement whose streams come first and whose counts are constants."""


DEFAULT = Origin(layer="default", detail="default", span=None)


def in_file(value: Any, span: Span) -> Value:
    """Return a value with an origin in the file."""
    return Value(value=value, origin=Origin(layer="file", detail="", span=span))
