"""Lowers a loss function of the HIR to the `Loss` of a job: torch and Triton modules, tree text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forgedsl.diagnostics import Reporter
from forgedsl.emit.places import place
from forgedsl.emit.pymodule import emit_module
from forgedsl.emit.torch import emit_loss
from forgedsl.emit.triton import emit_kernels
from forgedsl.ir import program as ir
from forgedsl.losses.infer import infer
from forgedsl.losses.selfcheck import kinks, self_check
from forgedsl.losses.text import write
from forgedsl.losses.tree import Tree
from forgedsl.source import SourceFile
from forgedsl.types.tensors import AXES

if TYPE_CHECKING:
    from forgedsl.lower import job


def lower_loss(
    function: ir.Function,
    reporter: Reporter,
    sources: Mapping[str, SourceFile],
    params: Mapping[str, Any] | None = None,
) -> job.Loss | None:
    """Infer, differentiate and emit `function`; None if its mistakes were reported."""
    tree = infer(function, reporter, params)
    if tree is None:
        return None
    if function.python is not None:
        return python_loss(tree, function.python, sources)
    self_check(tree)
    return loss_of(tree, sources)


def python_loss(tree: Tree, module: ir.PythonModule, sources: Mapping[str, SourceFile]) -> job.Loss:
    """Lower a loss that is a Python class: no kernels; the module contains the text of its file."""
    from forgedsl.lower import job

    return job.Loss(
        name=tree.name,
        source=emit_module(tree, module, sources),
        tree=write(tree),
        fields=fields_of(tree),
        reports=tree.reports,
        python=f"{module.name} of {module.module}",
    )


def loss_of(tree: Tree, sources: Mapping[str, SourceFile]) -> job.Loss:
    """Make the job's form of a loss tree. Fields that folding has removed are left out."""
    from forgedsl.lower import job

    return job.Loss(
        name=tree.name,
        source=emit_loss(tree, sources),
        tree=write(tree),
        fields=fields_of(tree),
        reports=tree.reports,
        kernels=emit_kernels(tree, sources),
        kinks=tuple(f"{kink.op} {place(kink.span, sources)}" for kink in kinks(tree)),
    )


def fields_of(tree: Tree) -> tuple[job.LossField, ...]:
    """Return the inputs of a loss in the job's form."""
    from forgedsl.lower import job

    return tuple(
        job.LossField(
            name=field.name,
            axes=tuple(axis for axis in AXES if axis in field.type.axes),
            dtype=field.type.dtype,
            diff=field.type.diff,
        )
        for field in tree.fields
    )
