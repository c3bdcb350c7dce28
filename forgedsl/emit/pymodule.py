"""Emits the module of a Python loss: the text of its file, and functions that call it.

It has the functions of a generated loss (see `emit.torch`), which call the class.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from forgedsl.emit.jinja import environment
from forgedsl.emit.places import place
from forgedsl.emit.torch import tuple_of
from forgedsl.hir.pyloss import MORE
from forgedsl.ir import program as ir
from forgedsl.losses.tree import VOCABULARY, Tree
from forgedsl.source import SourceFile


def emit_module(tree: Tree, module: ir.PythonModule, sources: Mapping[str, SourceFile]) -> str:
    """Return the text of the Python module that calls `forward`."""
    templates = environment()
    templates.filters |= {"names": tuple_of, "quoted": quoted}
    return templates.get_template("pymodule.py.j2").render(
        name=tree.name,
        where=place(tree.span, sources),
        module=module,
        fields=[field.name for field in tree.fields],
        per_sequence=[field.name for field in tree.fields if field.type.tokens is None],
        statistics=[f.name for f in tree.fields if f.name in VOCABULARY and f.type.diff],
        taken=[param.name for param in module.forward],
        counts=MORE[1:],
    )


def quoted(value: object) -> str:
    """Write a literal as the formatter does: strings in double quotes, unless they contain some."""
    if isinstance(value, str) and '"' not in value:
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
