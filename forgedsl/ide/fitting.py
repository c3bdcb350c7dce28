"""What fits at the cursor by its type: parameters for a setting, kinds of functions for an
argument."""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.ide import names
from forgedsl.ide.context import Context
from forgedsl.ide.names import Name
from forgedsl.ide.uses import uses_of
from forgedsl.ide.workspace import Document
from forgedsl.operations.registry import written
from forgedsl.schema.kinds import KINDS
from forgedsl.settings import Type
from forgedsl.syntax import ast
from forgedsl.types.flow import Stream

ANY = Type(base="any")
FITTING = {
    "int": ("int",), "float": ("float", "int"), "bytes": ("bytes",), "bool": ("bool",),
    "duration": ("duration",), "interval": ("duration", "int"), "word": ("str",), "str": ("str",),
    "list": ("list",),
}  # fmt: skip
"""types of parameters by what a setting takes; any parameter for other settings"""


def params(document: Document, type_: Type) -> Iterator[Name]:
    """Return the parameters of the file whose type fits a setting."""
    fitting = FITTING.get(type_.base)
    for definition in uses_of(document).top.values():
        written = getattr(definition.node, "type", None)
        if definition.kind == "param" and (
            fitting is None or getattr(written, "name", fitting[0]) in fitting
        ):
            yield names.name_of(definition)


def constants(document: Document, type_: Type = ANY) -> Iterator[Name]:
    """Return names for a value of a type: parameters, and settings of other declarations."""
    yield from params(document, type_)
    yield from names.declared(document, "service", "model", "dataset")
    for name in ("cluster", "run", "schedule"):
        yield Name(name=name, kind="keyword", detail="settings", doc=KINDS[name].doc)


def stream_attributes(document: Document, name: str, offset: int) -> Iterator[Name]:
    """Return the attributes of a stream of the flow that is defined before a place."""
    from forgedsl.graph.streams import PARTS
    from forgedsl.reference.expressions import MEANINGS

    stream = _stream_of(document, name, offset)
    owner = "a prompt" if stream is Stream.PROMPT else "a rollout"
    for part in PARTS.get(stream, ()):
        yield Name(name=part, kind="attribute", detail=f"of {owner}", doc=MEANINGS.get(part, ""))


def _stream_of(document: Document, name: str, offset: int) -> Stream:
    """Return the kind of data of a stream, by the call that makes it."""
    calls = {
        item.path.text: item.value
        for decl in document.tree.decls
        if isinstance(decl, ast.BlockDecl) and decl.kind == "flow"
        for item in decl.block.items
        if isinstance(item, ast.Assign) and item.span.end < offset
    }
    while isinstance(call := calls.pop(name, None), ast.Call):
        receiver, _, method = call.function.text.rpartition(".")
        found = written(names.owner_of(document, receiver), method)
        if found is None:
            break
        if found[0].stream is not Stream.NOTHING:
            return found[0].stream
        name = receiver  # `rollout.keep(...)` has the items of `rollout`
    return Stream.NOTHING


WANTED = {
    "loss": ("loss",), "adv": ("advantage", "python"), "keep": ("filter", "python"),
    "weight": ("fn", "python"),
}  # fmt: skip
"""kinds of functions by the argument of a statement of the flow"""


def wanted(where: Context, in_flow: bool) -> tuple[str, ...] | None:
    """Return the kinds of functions that may stand at the cursor; None for all."""
    if where.words[:1] == ("reward",) and not where.stack:
        return ("reward", "python")
    named = where.words[0] if where.words[1:2] == ("=",) else ""
    return WANTED.get(named) if in_flow and where.call else None
