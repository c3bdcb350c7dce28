"""The abstract syntax tree: what was written, with spans.

File
`-- declarations: ImportForge ImportPython Param Require FnDecl BindDecl BlockDecl
    `-- Block of items: Assign TypedAssign Nested Require Return Minimize Report Sync Effect
        `-- expressions (Expr) and types (Type)

Nodes are frozen; sequences are tuples; `span` covers the node's own text.
"""

from __future__ import annotations

from typing import Any

from forgedsl.records import dataclass
from forgedsl.source import Span


def _rebuild(cls: type[Node], values: tuple[Any, ...]) -> Node:
    node = object.__new__(cls)
    for name, value in zip(cls.__dataclass_fields__, values, strict=True):
        object.__setattr__(node, name, value)
    return node


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    span: Span

    def __reduce__(self) -> tuple[Any, ...]:
        # pickling frozen dataclasses looks up the fields of every node, which is slow
        values = tuple(getattr(self, name) for name in self.__dataclass_fields__)
        return _rebuild, (type(self), values)


# ---- expressions


@dataclass(frozen=True, slots=True, kw_only=True)
class Path(Node):
    """A dotted name: `row.question` is ("row", "question")."""

    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        return ".".join(self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Index(Node):
    """`row.messages[0]`, `row["question"]`. A `.content` after an index is an Index with a string
    key."""

    base: Expr
    key: Expr
    dotted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Integer(Node):
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Number(Node):
    value: float
    text: str  # as written, for the formatter


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity(Node):
    """A number with a unit: ms s min h d (seconds), KiB MiB GiB TiB (bytes), k M (a count)."""

    value: float  # in the base unit: seconds, bytes, or one
    unit: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class String(Node):
    value: str
    style: str = "plain"  # plain | raw | text


@dataclass(frozen=True, slots=True, kw_only=True)
class Bool(Node):
    value: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NoneLiteral(Node):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class List(Node):
    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arg(Node):
    name: str | None
    value: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Node):
    function: Path
    args: tuple[Arg, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unary(Node):
    operator: str  # - + not
    operand: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary(Node):
    operator: str  # + - * / % ** and or == != <= >= < > ..
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditional(Node):
    """`then if test else otherwise`."""

    then: Expr
    test: Expr
    otherwise: Expr


Expr = (
    Path
    | Index
    | Integer
    | Number
    | Quantity
    | String
    | Bool
    | NoneLiteral
    | List
    | Call
    | Unary
    | Binary
    | Conditional
)


# ---- types


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedType(Node):
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenericType(Node):
    name: str
    args: tuple[Type, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorType(Node):
    axes: tuple[Expr, ...]  # axis names are one-part paths
    dtype: str
    diff: bool = False


Type = NamedType | GenericType | TensorType


# ---- items of a block


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign(Node):
    path: Path
    value: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedAssign(Node):
    name: str
    type: Type
    value: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Block(Node):
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested(Node):
    """`optimizer { ... }`, `schedule sync { ... }`, `name when cond { ... }`.
    `engine.extra { ... }` is two of them, one inside the other."""

    name: str
    name_span: Span
    label: str | None
    label_span: Span | None
    when: Expr | None
    block: Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Require(Node):
    test: Expr
    message: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Return(Node):
    value: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimize(Node):
    value: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Node):
    name: str
    name_span: Span
    value: Expr


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync(Node):
    source: Path
    target: Path
    block: Block | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect(Node):
    call: Call


Item = Assign | TypedAssign | Nested | Require | Return | Minimize | Report | Sync | Effect


# ---- declarations


@dataclass(frozen=True, slots=True, kw_only=True)
class Field(Node):
    """A parameter of a function: `logprob: diff [B, T] f32 = default`."""

    name: str
    name_span: Span
    type: Type
    default: Expr | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Edition(Node):
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportForge(Node):
    target: str
    target_span: Span
    alias: str | None
    args: tuple[Arg, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportPython(Node):
    target: str
    target_span: Span
    alias: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Param(Node):
    name: str
    name_span: Span
    type: Type
    default: Expr | None
    doc: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FnDecl(Node):
    """`advantage f(r: [G] f32) -> [G] f32 = expr` or `loss f(...) { ... }`."""

    kind: str
    kind_span: Span
    name: str
    name_span: Span
    fields: tuple[Field, ...]
    result: Type | None
    body: Expr | Block
    settings: Block | None = None  # settings in a block after an expression body
    doc: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BindDecl(Node):
    """`reward correct = rl.math_equal(tolerance = 1e-6) { ... }`."""

    kind: str
    kind_span: Span
    name: str
    name_span: Span
    value: Expr
    settings: Block | None = None
    doc: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDecl(Node):
    """`service trainer : titan(policy) { ... }`, `profile cpu when ... { ... }`, `cluster { }`."""

    kind: str
    kind_span: Span
    name: str | None
    name_span: Span | None
    ctor: Expr | None
    when: Expr | None
    block: Block
    doc: str = ""


Decl = ImportForge | ImportPython | Param | Require | FnDecl | BindDecl | BlockDecl | Assign


@dataclass(frozen=True, slots=True, kw_only=True)
class File(Node):
    edition: Edition | None
    decls: tuple[Decl, ...]
