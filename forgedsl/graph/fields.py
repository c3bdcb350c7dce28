"""Compares the fields of the loss with those of the batch: F111 loss-field.

Input: the typed nodes of a flow, its loss, and the fields that the loss reads after folding.
Output: diagnostics. One missing and one superfluous field are reported together, as a wrong name.
"""

from __future__ import annotations

from forgedsl.diagnostics import Diagnostic, Label, Severity
from forgedsl.ir.graph import Input, Node
from forgedsl.ir.program import Decl, Function, model_of
from forgedsl.losses.tree import VALUE
from forgedsl.mistakes.suggest import nearest
from forgedsl.schema import builtins
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.types.flow import Role

UNNAMED = frozenset((*builtins.TRAINER_FIELDS, *builtins.ROLLOUT_FIELDS, *builtins.RUN_FIELDS))
"""Fields that `replay` provides without a name. Supervised batches and pairs have all but
`behavior`."""

GIVEN = {
    "adv": "rl.group_norm(score)",
    "ref": "reference.logprobs(rollout)",
    "proximal": "trainer.logprobs(rollout)",
    "teacher": "teacher.logprobs(rollout)",
}
"""expressions that produce common fields, for messages"""


def check_fields(
    batch: Node, loss: Function, live: frozenset[str], trainer: Decl, drawn: str
) -> list[Diagnostic]:
    """Report fields of the loss that a batch does not have, and fields of the batch that the loss
    does not declare. `drawn` is the name of the draw if the batch's rollouts come from a buffer,
    else "".
    """
    headless = next((f for f in loss.fields if f.name == VALUE and not trainer.head), None)
    if headless is not None and VALUE in live:
        message = f"loss `{loss.name}` reads `value`, but `{trainer.name}` has no value head"
        help = f"`service {trainer.name} : {trainer.ctor}(value_head({model_of(trainer)}))`"
        place = Label(text="declared here", span=headless.span)
        return [_error(message, trainer.name_span, place, help)]
    fields = batch.inputs if Role.PACKS in batch.roles else ()
    supplied = {i.argument for i in fields}
    given = UNNAMED | supplied
    if not batch.samplers:
        given -= {"behavior"}
    declared = {field.name for field in loss.fields}
    missing = [
        field
        for field in loss.fields
        if isinstance(field.type, ast.TensorType)  # scalars are parameters, not parts of the batch
        and field.name in live
        and field.name not in given
        and field.default is None
    ]
    extra = [i for i in fields if i.argument not in declared and i.argument != "rollout"]
    if len(missing) == len(extra) == 1 and missing[0].name != "behavior":
        return [_misnamed(missing[0], extra[0], loss)]
    found = [_missing(field.name, field.span, batch, loss, drawn) for field in missing]
    return found + [_unknown(i, loss, declared) for i in extra]


def _misnamed(field: ast.Field, given: Input, loss: Function) -> Diagnostic:
    """Return the message if exactly one field is missing and one is superfluous: a wrong name."""
    name = field.name
    return _error(
        f"loss `{loss.name}` needs `{name}`, but is given `{given.argument}`",
        given.span,
        Label(text=f"`{name}` is declared here", span=field.span),
        f"use the loss's name for it: `replay(..., {name} = ...)`",
    )


def _unknown(given: Input, loss: Function, declared: set[str]) -> Diagnostic:
    close = nearest(given.argument, declared)
    help = f"remove it, or declare `{given.argument}` in the loss"
    return _error(
        f"loss `{loss.name}` has no field `{given.argument}`",
        given.span,
        Label(text="the loss is declared here", span=loss.span),
        f"did you mean `{close[0]}`?" if close else help,
    )


def _missing(name: str, span: Span, batch: Node, loss: Function, drawn: str) -> Diagnostic:
    if name == "behavior":
        message = f"loss `{loss.name}` needs `behavior`, but no sampler produced this batch"
        help = "supervised batches and pairs have no log-probs of a sampler"
    else:
        message = f"loss `{loss.name}` needs `{name}`, which the batch does not have"
        close = nearest(name, UNNAMED)
        made = GIVEN.get(name, "...")
        if drawn:  # recomputed by a model, or stored in the buffer
            again = made.endswith("logprobs(rollout)")
            made = made.replace("(rollout)", f"({drawn})") if again else f"{drawn}.{name}"
        help = f"add it: `replay(..., {name} = {made})`"
        if drawn and not again:
            help += f", stored with `put(..., {name} = ...)`"
        if name == "ref":
            help += " of a frozen `service reference : titan(MODEL) {}`"
            fields = {field.name for field in loss.fields}
            if "beta" in fields:
                help += ", or train without it: write `(beta = 0.0)` after the name of the loss"
        help = f"did you mean `{close[0]}`?" if close else help
    declared = Label(text="declared here", span=span)
    return _error(message, batch.span, declared, help, "the batch is made here")


def _error(message: str, span: Span, related: Label, help: str, label: str = "") -> Diagnostic:
    return Diagnostic(
        code="F111",
        name="loss-field",
        severity=Severity.ERROR,
        message=message,
        span=span,
        label=label,
        related=(related,),
        help=help,
    )
