"""Syntax of operations, and the services that a unit may use while its statements are read."""

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

    owner       what the call begins with: the kind of a declaration (`dataset`, `rubric`),
                `service`, `stream` for the name of a stream, or "" for a word of the language
    method      "" where the declaration itself is called: `grade(rollout, prompt.target)`
    capability  of a service: what its kind must be able to do
    params      parameters in order; streams come first
    streams     those of them that only take a stream
    counts      those that take a whole number
    required    those that must be given, besides the first
    doc         its row in the reference; "" if it has none
    shown       the call in the reference, if not `OWNER.method(params)`
    example     the call in a message that something is missing, if not `OWNER.method(params)`
    result      False if the statement has no name
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
    """One call of a flow that is being read: `name = receiver.method(...)`."""

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
    """A flow while its statements are read (`hir.flow.FlowResolver`)."""

    functions: dict[str, Function]
    edges: dict[str, Span]
    """by stream, where it is defined"""
    failed: set[str]
    """streams whose statement has a mistake"""
    steps: list[FlowStep]
    merged: dict[str, tuple[FlowInput, ...]]
    """by the name of a merged batch, the batches in it"""
    read: set[str]
    """streams that a step trains on"""
    observed: dict[str, Value]
    """by draw, the score whose results it is weighed by"""

    @property
    def ctx(self) -> Reports: ...
    @property
    def scope(self) -> Scope: ...
    def use(self, name: str) -> None:
        """Note that a name of the file is used."""

    def loss(self, value: ast.Expr) -> str | None:
        """The loss that an argument names; None after reporting that it names none."""

    def reference(self, value: ast.Expr, type_: Type, what: str) -> Ref | None:
        """The declaration that an argument names; None after reporting that it names none."""

    def without_head(self, service: str) -> str | None:
        """Return a declaration that adds a value head to a service; None if it has one."""

    def arguments(
        self, said: Statement, params: tuple[str, ...] | None = None
    ) -> tuple[tuple[FlowInput, ...], dict[str, Value]] | None:
        """Streams and constants by parameter (of the form, if no others are named); None after
        reporting that one is wrong."""

    def count(self, value: Value, call: ast.Call, what: str) -> Value:
        """A constant that is a whole number of 1 or more."""

    def emit(
        self,
        op: str,
        said: Statement,
        inputs: tuple[FlowInput, ...],
        settings: dict[str, Value],
    ) -> None:
        """Add a statement to the flow."""

    def simple(self, op: str, said: Statement) -> bool:
        """Read and add a statement whose streams come first and whose counts are constants."""


DEFAULT = Origin(layer="default", detail="default", span=None)


def in_file(value: Any, span: Span) -> Value:
    """A value that stands in the file."""
    return Value(value=value, origin=Origin(layer="file", detail="", span=span))
