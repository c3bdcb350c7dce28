"""Declarations and items -> pieces: columns that may be aligned, the rest, and a block.

    service trainer | : titan(policy) | {     columns "service trainer", ": titan(policy)", a block
    report kl_ref   | = token_mean(kl, mask)  columns "report kl_ref", the rest a document

Only pieces of one `table` are aligned with each other.
"""

from __future__ import annotations

from forgedsl.format.doc import Doc, concat
from forgedsl.format.expressions import Expressions, quoted
from forgedsl.format.fields import header
from forgedsl.records import dataclass
from forgedsl.syntax import ast


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """`columns`, then `rest`, then `{ block }`, separated by blanks where present."""

    node: ast.Node
    table: str = ""  # "": never aligned
    columns: tuple[str, ...] = ()
    rest: Doc = ""
    block: ast.Block | None = None


def piece(node: ast.Node, printer: Expressions) -> Piece:
    """One declaration or item."""
    match node:
        case ast.Assign():
            return _setting(node, printer)
        case ast.Nested():
            return _nested(node, printer)
        case ast.Param():
            return _param(node, printer)
        case ast.FnDecl():
            return Piece(
                node=node,
                rest=header(node, printer),
                block=node.body if isinstance(node.body, ast.Block) else node.settings,
            )
        case ast.BindDecl():
            columns = (f"{node.kind} {node.name}",)
            rest = concat("= ", printer.value(node.value))
            return Piece(node=node, table="bind", columns=columns, rest=rest, block=node.settings)
        case ast.BlockDecl():
            return _block_decl(node, printer)
        case ast.Report():
            columns = (f"report {node.name}",)
            rest = concat("= ", printer.value(node.value))
            return Piece(node=node, table="report", columns=columns, rest=rest)
        case ast.Sync():
            text = f"sync {node.source.text} -> {node.target.text}"
            return Piece(node=node, rest=text, block=node.block)
    return Piece(node=node, rest=_plain(node, printer))


def _plain(node: ast.Node, printer: Expressions) -> Doc:
    """Format a piece that is never aligned and has no block."""
    match node:
        case ast.Edition():
            return f"forge {node.number}"
        case ast.ImportForge():
            return _import(node, printer)
        case ast.ImportPython():
            return f"import python {quoted(node.target)}" + _alias(node.alias)
        case ast.Require():
            message = "" if node.message is None else f" else {quoted(node.message)}"
            return concat("require ", printer.value(node.test), message)
        case ast.Return():
            return concat("return ", printer.value(node.value))
        case ast.Minimize():
            return concat("minimize ", printer.value(node.value))
        case ast.TypedAssign():
            head = f"{node.name}: {printer.type(node.type)} = "
            return concat(head, printer.value(node.value))
        case ast.Effect():
            return printer.value(node.call)
    raise AssertionError(node)


def _setting(node: ast.Assign, printer: Expressions) -> Piece:
    if len(node.path.parts) > 1:
        return Piece(node=node, rest=concat(f"{node.path.text} = ", printer.value(node.value)))
    rest = concat("= ", printer.value(node.value))
    return Piece(node=node, table="setting", columns=node.path.parts, rest=rest)


def _nested(node: ast.Nested, printer: Expressions) -> Piece:
    if node.label is None and node.when is None:
        return Piece(node=node, table="setting", columns=(node.name,), block=node.block)
    head = node.name if node.label is None else f"{node.name} {node.label}"
    rest = concat(head, " when ", printer.value(node.when)) if node.when is not None else head
    return Piece(node=node, rest=rest, block=node.block)


def _param(node: ast.Param, printer: Expressions) -> Piece:
    name, type_ = f"param {node.name}", f": {printer.type(node.type)}"
    if node.default is None:
        return Piece(node=node, table="param", columns=(name,), rest=type_)
    rest = concat("= ", printer.value(node.default))
    return Piece(node=node, table="param", columns=(name, type_), rest=rest)


def _block_decl(node: ast.BlockDecl, printer: Expressions) -> Piece:
    head = node.kind if node.name is None else f"{node.kind} {node.name}"
    ctor = "" if node.ctor is None else f": {printer.flat(node.ctor)}"
    if node.when is not None:
        rest = concat(f"{head} {ctor}".rstrip(), " when ", printer.value(node.when))
        return Piece(node=node, rest=rest, block=node.block)
    if not ctor:
        return Piece(node=node, table="block", columns=(head,), block=node.block)
    columns = (head, ctor)
    return Piece(node=node, table="service", columns=columns, block=node.block)


def _import(node: ast.ImportForge, printer: Expressions) -> Doc:
    text = f"import {quoted(node.target)}" + _alias(node.alias)
    if not node.args:
        return text
    return printer.arguments(text, node.args, node.span.end)


def _alias(alias: str | None) -> str:
    return "" if alias is None else f" as {alias}"
