"""Finds parameters (such as `beta`) that make a service unnecessary when set to 0.

    Program, fields of the loss -> the first such parameter, `beta`, or ""

Each floating-point parameter that is not 0 is tried: the loss is inferred once more with it at 0,
and folding says which fields are left.
"""

from __future__ import annotations

from collections.abc import Set

from forgedsl.diagnostics import Reporter
from forgedsl.ir.program import Constant, Program, Scope
from forgedsl.losses.infer import infer
from forgedsl.records import replace
from forgedsl.types.flow import Role


def freeing_parameter(program: Program, fields: Set[str]) -> str:
    """Return a parameter that, set to 0, removes `fields` from the loss of the flow."""
    step = next(step for step in program.flow if Role.UPDATES in step.roles)
    loss = program.functions[step.settings["loss"].value.name]
    for name, value in program.params.items():
        known = name.removeprefix(f"{loss.scope.module}.")
        found = loss.scope.names.get(known)
        if not isinstance(value.value, float) or not value.value or not isinstance(found, Constant):
            continue
        names = {**loss.scope.names, known: Constant(value=0.0, span=found.span)}
        scope = Scope(module=loss.scope.module, names=names)
        tree = infer(replace(loss, scope=scope), Reporter())
        if tree is not None and fields <= set(tree.unused):
            return name
    return ""
