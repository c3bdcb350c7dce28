"""Completion of types: of parameters, fields, results and services.

words before the cursor --expects--> True behind `:`, `->`, or in a tensor type
                        --offered--> types, axes, dtypes, constructors of services
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.ide import names
from forgedsl.ide.context import Context
from forgedsl.ide.names import Name
from forgedsl.ide.workspace import Document
from forgedsl.schema import builtins
from forgedsl.schema.kinds import SERVICES
from forgedsl.types.tensors import DTYPES

_SHAPES = ("diff [B, T] f32", "[B, T] f32", "[B, T] bool", "[B] f32", "[B] bool", "[G] f32")
_SCALARS = ("float", "int", "bool")
BEFORE = ((":",), ("->",), ("diff",))
"""words before the axes of a tensor type"""


def expects(where: Context) -> bool:
    """True if the cursor is where a type, or a part of one, is written."""
    behind = where.words[-1:] in ((":",), ("->",))
    return behind or _is_behind_axes(where.words) or _is_among_axes(where)


def offered(document: Document, where: Context) -> Iterator[Name]:
    """Yield the types, axes or dtypes that may stand at the cursor."""
    if _is_behind_axes(where.words):
        yield from (Name(name=dtype, kind="type") for dtype in DTYPES)
    elif _is_among_axes(where):
        yield from (Name(name=axis, kind="axis") for axis in sorted(builtins.AXES))
    else:
        yield from _types(document, where)


def _is_behind_axes(words: tuple[str, ...]) -> bool:
    """True behind the axes of a tensor type: `adv: [B] `, `-> diff [B, T] `."""
    return words[-1:] == ("()",) and words[-2:-1] in BEFORE


def _is_among_axes(where: Context) -> bool:
    """True among the axes of a tensor type."""
    if not where.stack or where.stack[-1].bracket != "[":
        return False
    return where.stack[-1].head[-1:] in BEFORE


def _types(document: Document, where: Context) -> Iterator[Name]:
    words = where.words
    if words[:1] == ("param",):
        yield from (Name(name=name, kind="type") for name in builtins.PARAM_TYPES)
    elif words[:1] == ("service",):
        for name, kind in SERVICES.items():
            yield Name(name=name, kind="constructor", detail=f"{name}(MODEL)", doc=kind.doc)
    elif words[-1:] == ("->",) and words[:1] == ("sync",):
        yield from names.declared(document, "service")
    else:
        known = builtins.FIELD_TYPES.get(words[-2]) if len(words) > 1 else None
        for shape in (*((known,) if known else ()), *_SHAPES, *_SCALARS, "Rollout"):
            yield Name(name=shape, kind="type")
