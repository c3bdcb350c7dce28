"""The records and enumerations of the IRs, by the name that their text form uses."""

from __future__ import annotations

import functools
import importlib
from enum import Enum
from typing import Any

MODULES = {
    "hir": ("forgedsl.hir.ir",),
    "host": ("forgedsl.hir.context",),
    "graph": ("forgedsl.graph.ir",),
    "family": ("forgedsl.families.base",),
    "plan": tuple(
        f"forgedsl.plan.{name}"
        for name in ("capacity", "cost", "memory", "meshes", "plan", "schedule",
                     "staleness")
    ),
    "ast": ("forgedsl.syntax.ast",),
}  # fmt: skip


@functools.cache
def classes() -> dict[str, type[Any]]:
    """Every record and enumeration by its name, such as `hir.Decl`."""
    found: dict[str, type[Any]] = {}
    for prefix, modules in MODULES.items():
        for name in modules:
            for cls in vars(importlib.import_module(name)).values():
                if isinstance(cls, type) and cls.__module__ == name and _is_ir(cls):
                    found[f"{prefix}.{cls.__name__}"] = cls
    return found


def _is_ir(cls: type) -> bool:
    return hasattr(cls, "_record") or issubclass(cls, Enum)


@functools.cache
def names() -> dict[type[Any], str]:
    """The other way round."""
    return {cls: name for name, cls in classes().items()}
