"""Facts of a model that its declaration gives."""

from typing import Any

from forgedsl.families.base import Unsupported
from forgedsl.families.registry import by_hub_name
from forgedsl.ir.program import Constructor, Decl


def arch_of(model: Decl) -> Any:
    """The architecture as it is declared, else what the name of a published model says."""
    arch, source = model.settings["arch"].value, model.settings["source"].value
    if isinstance(arch, Constructor) or getattr(source, "name", "") != "hf":
        return arch
    try:
        known = by_hub_name(str(source.args["id"]))
    except Unsupported:
        return arch
    return arch if known is None else Constructor(name=known[0].name, args={}, span=source.span)
