"""`TRAINER.step(batch, loss = NAME)`: an optimizer step, which makes a new version of the
weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forgedsl.diagnostics import Edit, Fix
from forgedsl.ir.program import FlowInput, Ref, Value
from forgedsl.operations.base import Level, Lowering, Operation, Role, Sizes, Stream, Wanted
from forgedsl.operations.logprobs import MODEL_TIMEOUT
from forgedsl.operations.statements import DEFAULT, Form, Statement, Statements, in_file
from forgedsl.records import replace
from forgedsl.services.base import Capability
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.types.flow import place

if TYPE_CHECKING:
    from forgedsl.ir.graph import Input, Node
    from forgedsl.ir.program import Program

STEP = Form(
    owner="service",
    method="step",
    capability=Capability.TRAINS,
    params=("batch", "loss", "epochs", "minibatches"),
    streams=("batch",),
    counts=("epochs", "minibatches"),
    result=False,
    doc="trains on the batch: `epochs` passes (default 1), each split into `minibatches` updates "
    "(default 1) of whole groups in a new random order. A step makes one policy version. "
    "`step(a, loss = x, b, loss = y)` adds the gradients of two losses, each over its own "
    "batch",
)


class Step(Operation):
    name = "step"
    roles = frozenset({Role.UPDATES})
    span = True
    work = "batch"
    item_state = "training"
    level = Level.BATCH
    produces = "weights"
    owner = "service"
    forms = (STEP,)

    def resolve(self, flow: Statements, statement: Statement) -> bool:
        """Resolve `step(a, loss = x, b, loss = y)`: each loss applies to the batch before it."""
        call = statement.call
        if statement.name is not None:
            help = (
                f"write `{call.function.text}(...)` without a name; for metrics, use `report` "
                "in the loss"
            )
            flow.ctx.error("F119", "`step` has no result", call.span, help=help)
            return False
        losses = [arg for arg in call.args if arg.name == "loss"]
        if _without_loss(flow, call, losses):
            return False
        counts = tuple(arg for arg in call.args if arg.name in STEP.counts)
        batches = tuple(arg for arg in call.args if arg not in (*losses, *counts))
        if not losses or not batches or len(losses) > len(batches):
            _incomplete(flow, call)
            return False
        params = tuple(place("batch", i) for i in range(len(losses)))
        shorter = replace(call, args=(*batches, *counts))
        arguments = flow.arguments(replace(statement, call=shorter), (*params, *STEP.counts))
        names = [flow.loss(arg.value) for arg in losses]
        flow.read |= {read.edge for read in arguments[0]} if arguments else set()
        if None in names or arguments is None or _twice(flow, losses):
            return False
        inputs, given = arguments
        if len(inputs) < len(losses):
            _incomplete(flow, replace(call, args=tuple(losses)))
            return False
        reads: list[FlowInput] = []
        settings: dict[str, Value] = {}
        for read, loss, named in zip(inputs, losses, names, strict=True):
            key = place("loss", len(reads))
            settings[key] = in_file(Ref(name=str(named)), loss.value.span)
            for part in flow.merged.get(read.edge, (read,)):
                reads.append(replace(part, argument=place("batch", len(reads)), span=read.span))
        if _read_twice(flow, reads):
            return False
        for key in STEP.counts:
            written = given.get(key, Value(value=1, origin=DEFAULT))
            settings[key] = flow.count(written, call, key)
        flow.emit(self.name, statement, tuple(reads), settings)
        return True

    def wanted(self, program: Program, node: Node, read: Input) -> Wanted | None:
        help = f"`batch = replay({read.edge}, ...)`"
        return Wanted(streams=(Stream.BATCH,), text="a batch", help=help)

    def call_text(self, node: Node) -> str:
        settings = node.settings
        updates = "".join(
            f", {key} = {settings[key]}" for key in ("epochs", "minibatches") if settings[key] > 1
        )
        losses = ", ".join(loss for loss, _ in node.terms)
        return f"{node.target}.step({losses}{updates})"

    def note_text(self, node: Node, sizes: Sizes) -> str:
        return f"microbatches of {sizes.rows} x {sizes.row_tokens} tokens"

    def size_text(self, node: Node, sizes: Sizes) -> str:
        return f"microbatches of {sizes.rows} x {sizes.row_tokens} tokens on each rank"

    def fields(self, node: Node, to: Lowering) -> dict[str, Any]:
        settings = node.settings
        further = range(1, len(node.inputs))
        return {
            "loss": settings["loss"],
            "beside": tuple(settings.get(place("loss", i), "") for i in further),
            "epochs": settings["epochs"],
            "minibatches": settings["minibatches"],
        }

    def timeout(self, node: Node, to: Lowering) -> float:
        return MODEL_TIMEOUT


def _without_loss(flow: Statements, call: ast.Call, losses: list[ast.Arg]) -> bool:
    """Report a batch without a loss after it, when others have one; True if there is one."""
    known = [a for a in call.args if a.name is None and _is_batch(flow, a.value)]
    if not losses or len(known) <= len(losses):
        return False
    behind = zip(call.args, (*call.args[1:], None), strict=True)
    alone = next((a for a, b in behind if a in known and b not in losses), known[-1])
    callee = call.function.text
    help = f"`{callee}(merge(a, b), loss = x)`, or `{callee}(a, loss = x, b, loss = y)`"
    flow.ctx.error("F114", "this batch has no loss", alone.span, help=help)
    return True


def _is_batch(flow: Statements, value: ast.Expr) -> bool:
    return isinstance(value, ast.Call) or (isinstance(value, ast.Path) and value.text in flow.edges)


def _incomplete(flow: Statements, call: ast.Call) -> None:
    """Report a step without a batch or a loss; `trainer.step(batch, pg)` has both."""
    callee = call.function.text
    shown = f"`{callee}(batch, loss = NAME)`"
    named = [arg.name for arg in call.args]
    if named == [None, None]:
        span = call.args[1].span
        edit = Edit(text="loss = ", span=Span(span.file, span.start, span.start))
        fix = Fix(message="write `loss = `", edits=(edit,))
        flow.ctx.error("F114", f"`{callee}` needs its loss by name", span, help=shown, fix=fix)
    else:
        missing = "a batch" if "loss" in named else "a loss"
        flow.ctx.error("F114", f"`{callee}` needs {missing}", call.span, help=shown)


def _twice(flow: Statements, losses: list[ast.Arg]) -> bool:
    """Report a loss that gets parameters for one batch but is used for several; True if there is
    one."""
    paths = [a.value.function if isinstance(a.value, ast.Call) else a.value for a in losses]
    texts = [path.text for path in paths if isinstance(path, ast.Path)]
    calls = [a.value for a in losses if isinstance(a.value, ast.Call)]
    again = next((call for call in calls if texts.count(call.function.text) > 1), None)
    if again is not None:
        name = again.function.text
        message = f"`{name}` is given parameters, but is also used for another batch"
        help = f"declare `loss other = {name}(...)`, and write `loss = other` here"
        flow.ctx.error("F114", message, again.span, help=help)
    return again is not None


def _read_twice(flow: Statements, reads: list[FlowInput]) -> bool:
    edges = [read.edge for read in reads]
    again = next((read for i, read in enumerate(reads) if read.edge in edges[:i]), None)
    if again is not None:
        message = f"the step reads `{again.edge}` twice"
        flow.ctx.error("F114", message, again.span, help="add up both losses in one loss")
    return again is not None


OPERATIONS: Sequence[Operation] = (Step(),)
