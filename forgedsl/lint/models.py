"""Facts about a model that follow from its declaration."""

from typing import Any

from forgedsl.families.base import Unsupported
from forgedsl.families.registry import by_hub_name
from forgedsl.ir.program import Constructor, Decl


def arch_of(model: Decl) -> Any:
    """Return the declared architecture, else that of a published model of this name."""
    arch, source = model.settings["arch"].value, model.settings["source"].value
    if isinstance(arch, Constructor) or getattr(source, "name", "") != "hf":
        return arch
    try:
        known = by_hub_name(str(source.args["id"]))
    except Unsupported:
        return arch
    return arch if known is None else Constructor(name=known[0].name, args={}, span=source.span)
