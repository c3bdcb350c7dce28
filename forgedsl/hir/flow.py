"""The flow block -> `FlowStep`s in order: every name in it resolved.

Each statement names its result once (SSA) and reads earlier names only: using a name before its
definition would be a data cycle (F105). A call inside a call becomes a step of its own, named
`<statement>.<argument>`. The types of streams, and whether they can be joined, are checked on the
graph (forgedsl.graph).

FlowStep.settings: draw {count, weight: Ref, observe: Ref}, pairs and recall {count}, sample {n,
env: Ref, max_turns}, step {loss: Ref, epochs, minibatches}, sync {target: Ref, every, overlap,
on_swap, weights, transport, timeout}, call {constant arguments by name}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forgedsl.diagnostics import Label
from forgedsl.hir import imports
from forgedsl.hir.context import ERROR
from forgedsl.hir.evaluate import evaluate
from forgedsl.hir.file import File
from forgedsl.hir.functions import as_reward, call_help
from forgedsl.hir.specialize import resolve_loss
from forgedsl.hir.streams import not_a_stream
from forgedsl.hir.table import Declared, part_span
from forgedsl.ir.program import (
    FlowInput,
    FlowStep,
    Function,
    PythonFunction,
    Ref,
    Scope,
    Value,
)
from forgedsl.mistakes.other_tools import function_equivalent
from forgedsl.operations import sync
from forgedsl.operations.registry import METHODS, forms, operation, operations, written
from forgedsl.operations.statements import Form, Statement, in_file
from forgedsl.records import replace
from forgedsl.schema.constructors import JUDGE
from forgedsl.schema.kinds import SYNC
from forgedsl.services.registry import kind_of
from forgedsl.settings import COUNT, Type
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.types.flow import Role


class FlowResolver:
    """Resolves the statements of one flow. `edges` maps each stream to the span of its
    definition."""

    def __init__(self, resolver: File, functions: dict[str, Function]) -> None:
        self.resolver = resolver
        self.ctx = resolver.ctx
        self.functions = functions
        self.edges: dict[str, Span] = {}
        self.failed: set[str] = set()
        self.later: dict[str, Span] = {}
        self.merged: dict[str, tuple[FlowInput, ...]] = {}
        """merged batches: name -> the batches in it"""
        self.read: set[str] = set()
        """names of merged batches that a step reads"""
        self.steps: list[FlowStep] = []
        self.observed: dict[str, Value] = {}
        """per weighted draw, the score that its weight is computed from"""
        self.with_errors: set[str] = set()
        """buffers with a statement that has a mistake"""

    def block(self, block: ast.Block) -> tuple[FlowStep, ...]:
        for assign in (i for i in block.items if isinstance(i, ast.Assign)):
            self.later.setdefault(assign.path.text, assign.path.span)
        for item in block.items:
            match item:
                case ast.Assign():
                    self._assign(item)
                case ast.Effect():
                    self._effect(item.call)
                case ast.Sync():
                    self._sync(item)
                case _:
                    word = type(item).__name__.lower()
                    message = f"`{word}` cannot stand in a flow"
                    help_text = "a flow contains only `name = call(...)`, calls and `sync a -> b`"
                    self.ctx.error("F119", message, item.span, help=help_text)
        for name in self.merged.keys() - self.read:
            message = f"no step reads `{name}`"
            self.ctx.error("F119", message, self.edges[name], help=f"`trainer.step({name}, ...)`")
        for unit in operations():
            unit.check_flow(self.ctx, self.steps, self.with_errors)
        steps: Sequence[FlowStep] = self.steps
        for unit in operations():
            steps = unit.finish(self, steps)
        return tuple(steps)

    # ---- statements

    def _assign(self, item: ast.Assign) -> None:
        name, span = item.path.text, item.path.span
        self.later.pop(name, None)
        known = self.edges.get(name) or self.resolver.table.spans.get(name)
        if len(item.path.parts) > 1:
            self.ctx.error("F119", "the name of a stream cannot contain dots", span)
        elif known is not None:
            related = (Label(text="first defined here", span=known),)
            help_text = "give each stream its own name"
            message = f"`{name}` is defined twice"
            self.ctx.error("F102", message, span, related=related, help=help_text)
        elif not isinstance(item.value, ast.Call):
            help_text = self._call_help(name, item.value)
            self.ctx.error(
                "F119", "the value of a stream must be a call", item.value.span, help=help_text
            )
            self.failed.add(name)
        elif self._call(name, item.value, item.span):
            self.edges[name] = span
        else:
            self.failed.add(name)

    def _call_help(self, name: str, value: ast.Expr) -> str:
        """Return the help for a value that is not a call: the call that was probably meant."""
        if isinstance(value, ast.Path) and value.text not in self.edges:
            declared, depth = self.resolver.declared_at(value)
            found = self.resolver.scope.lookup(value.parts)
            takes: tuple[str, ...] = ("...",)
            if isinstance(found, Function):
                return call_help(value, found, f"{name} = ")
            if declared is not None and declared.kind.name in ("rubric", "reward"):
                takes = ("rollout", "prompt.target")
            elif declared is not None and len(value.parts) == depth + 1:
                meant = written(declared.ctor or declared.kind.name, value.parts[-1])
                params = meant[1].params if meant is not None else ("...",)
                takes = tuple(EXAMPLES.get(p, p) for p in params if p != "weight")
            return f"call it: `{name} = {value.text}({', '.join(takes)})`"
        return "compute in a rubric: `rubric grade { score = 0.5 * correct }`"

    def _effect(self, call: ast.Call) -> None:
        before = len(self.steps)
        good = self._call(None, call, call.span)
        added = self.steps[before:]  # empty for `observe`, which adds no step
        if good and added and added[-1].op not in NAMELESS:
            message = f"the result of `{call.function.text}` is not used"
            self.ctx.error("F119", message, call.span, help="give it a name: `name = ...`")

    def _sync(self, item: ast.Sync) -> None:
        source = self._service(item.source)
        target = self._service(item.target)
        if source is None or target is None:
            return
        declared = self.resolver.table.syncs[item.span]
        settings = {"target": in_file(Ref(name=target.name), item.target.span)}
        for setting in SYNC.settings:
            settings[setting.name] = self.resolver.setting_of(declared, setting)
        statement = self._statement(
            None, ast.Call(function=item.source, args=(), span=item.span), sync.SYNC
        )
        self.emit(sync.Sync.name, replace(statement, receiver=source.name), (), settings)

    def _service(self, path: ast.Path) -> Declared | None:
        table = self.resolver.table.declared
        declared = table.get(path.text)
        if declared is not None and declared.kind.name == "service":
            self.resolver.used.add(path.parts[0])
            return declared
        services = [n for n, d in table.items() if d.kind.name == "service"]
        self.ctx.unknown("F101", "there is no service", path.text, path.span, services)
        return None

    # ---- calls: each function returns True if the call could be resolved

    def _call(self, name: str | None, call: ast.Call, span: Span) -> bool:
        path = call.function
        head = path.parts[0]
        declared, depth = self.resolver.declared_at(path)
        if (meant := written("", path.text)) is not None:
            unit, form = meant
            return unit.resolve(self, self._statement(name, call, form, span=span))
        if head in self.failed:
            return False
        if head in self.edges or (head in self.later and len(path.parts) == 2):
            return self._of_stream(name, call, span)
        if declared is not None and len(path.parts) == depth + 1:
            return self._method(name, call, declared, span)
        if declared is not None and (meant := written(declared.kind.name)) is not None:
            self.resolver.used.add(head)
            unit, form = meant
            return unit.resolve(self, self._statement(name, call, form, declared.name, span))
        function = self._function(path)
        if function is None:
            return False
        meant = written(function.kind)
        assert meant is not None, function.kind
        unit, form = meant
        return unit.resolve(self, self._statement(name, call, form, path.text, span))

    def _statement(
        self,
        name: str | None,
        call: ast.Call,
        form: Form,
        receiver: str = "",
        span: Span | None = None,
    ) -> Statement:
        return Statement(name=name, call=call, form=form, receiver=receiver, span=span or call.span)

    def _method(self, name: str | None, call: ast.Call, declared: Declared, span: Span) -> bool:
        path = call.function
        method = path.parts[-1]
        owner = declared.ctor or declared.kind.name
        self.resolver.used.add(path.parts[0])
        kind = kind_of(owner) if declared.ctor else None
        if kind is not None and kind.judges and method == JUDGE.name:
            message = f"`{path.text}` is a reward that is not declared"
            given = "" if kind.trains else "prompt = ..."
            help_text = f"`reward NAME = {path.text}({given})`, and call `NAME` here"
            self.ctx.error("F119", message, call.span, help=help_text)
            return False
        meant = written(owner, method)
        if meant is None:
            what = f"{owner} `{declared.name}` has no method"
            self.with_errors.add(declared.name)
            span = part_span(path, len(path.parts) - 1)
            self.ctx.unknown("F101", what, method, span, METHODS.get(owner, ()))
            return False
        unit, form = meant
        for column in form.columns:
            self.resolver.need(declared.name, column, f"`{method}` reads it")
        for capability, setting, why in kind.needs if kind is not None else ():
            if capability is form.capability:
                self.resolver.need(declared.name, setting, why)
        good = unit.resolve(self, self._statement(name, call, form, declared.name, span))
        self.with_errors |= set() if good else {declared.name}
        return good

    def _of_stream(self, name: str | None, call: ast.Call, span: Span) -> bool:
        """Resolve a call of a method of a stream."""
        path = call.function
        head = path.parts[0]
        if head in self.later:
            self._undefined(path)
            return False
        meant = written("stream", ".".join(path.parts[1:]))
        if meant is None:
            what = f"stream `{head}` has no method"
            known = [form.method for _, form in forms("stream")]
            self.ctx.unknown("F101", what, ".".join(path.parts[1:]), part_span(path, 1), known)
            return False
        unit, form = meant
        return unit.resolve(self, self._statement(name, call, form, head, span))

    # ---- methods that operations call (operations.statements.Statements)

    @property
    def scope(self) -> Scope:
        return self.resolver.scope

    def use(self, name: str) -> None:
        self.resolver.used.add(name)

    def loss(self, value: ast.Expr) -> str | None:
        return resolve_loss(value, self.resolver, self.functions)

    def reference(self, value: ast.Expr, type_: Type, what: str) -> Ref | None:
        found = self.resolver.coercer.value(value, type_, self.resolver.scope, what)
        return found if isinstance(found, Ref) else None

    def value_head_declaration(self, service: str) -> str | None:
        declared = self.resolver.table.declared[service]
        if declared.head:
            return None
        model = getattr(declared.ctor_args[0], "text", "")
        return f"service {service} : {declared.ctor}(value_head({model}))"

    def resolve_call(self, op: str, statement: Statement) -> bool:
        """Resolve a call whose streams come first; its integer parameters are constants."""
        arguments = self.arguments(statement)
        if arguments is None:
            return False
        inputs, settings = arguments
        form, callee = statement.form, statement.call.function.text
        first = form.params[0] if form.params else ""
        given = settings if first in form.counts else {i.argument for i in inputs}
        if first and first not in given:
            shown = form.example or f"{callee}({', '.join(form.params)})"
            message = f"`{callee}` needs its {first}"
            self.ctx.error("F114", message, statement.call.span, help=f"`{shown}`")
            return False
        for name in form.required:
            if name not in settings and name not in {i.argument for i in inputs}:
                self.ctx.error("F114", f"`{callee}` needs its {name}", statement.call.span)
                return False
        for key in form.counts:
            if key in settings:
                settings[key] = self.count(settings[key], statement.call, key)
        self.emit(op, statement, inputs, settings)
        return True

    def _function(self, path: ast.Path) -> Function | None:
        found = self.resolver.scope.lookup(path.parts)
        if isinstance(found, Function):
            self.resolver.used.add(path.parts[0])
            if found.kind != "loss":
                self.functions[path.text] = found
                return found
            help_text = f"`trainer.step(batch, loss = {path.text})`"
            self.ctx.error("F119", "name the loss in a step", path.span, help=help_text)
            return None
        if path.parts[0] in self.resolver.modules:
            self.resolver.used.add(path.parts[0])
            self._not_called(path, found)
            return None
        module = self.resolver.scope.names.get(path.parts[0])
        if len(path.parts) > 1 and isinstance(module, Scope):
            self.resolver.used.add(path.parts[0])
            remedy = as_reward(path, module)
            if isinstance(module.lookup(path.parts[1:]), PythonFunction):
                remedy = f"declare it with `reward NAME = {path.text}`, and call `NAME` here"
            if remedy is not None:
                message = f"`{path.text}` is a reward that is not declared"
                self.ctx.error("F119", message, path.span, help=remedy)
            elif module.names:  # else its import failed, which has been reported
                what = f"`{path.parts[0]}` has no function"
                name, span = ".".join(path.parts[1:]), part_span(path, 1)
                self.ctx.unknown("F101", what, name, span, module.names)
            return None
        table = self.resolver.table
        callables = (n for n, d in table.declared.items() if not d.kind.singleton)
        words = (form.method for _, form in forms("") if form is not sync.SYNC)
        known = (*words, *table.functions, *callables, *self.edges)
        what = f"undefined {'name' if len(path.parts) > 1 else 'function'}"
        span, meant = part_span(path, 0, 0), function_equivalent(path.text)
        self.ctx.unknown("F101", what, path.parts[0], span, known, meant)
        return None

    def _not_called(self, path: ast.Path, found: object) -> None:
        """Report a name of a module that cannot be called."""
        declared, _ = self.resolver.declared_at(path)
        if found is not None or declared is not None:
            what = declared.kind.name if declared is not None else "constant"
            self.ctx.error("F119", f"`{path.text}` is a {what}, not a function", path.span)
        else:
            imports.unknown_member(self.resolver, path)

    # ---- arguments

    def arguments(
        self, statement: Statement, params: tuple[str, ...] | None = None
    ) -> tuple[tuple[FlowInput, ...], dict[str, Value]] | None:
        """Resolve the arguments: streams and constants by parameter. None after reporting a
        mistake."""
        inputs: list[FlowInput] = []
        settings: dict[str, Value] = {}
        good, call, known = True, statement.call, statement.form.params
        params = known if params is None else params
        for index, arg in enumerate(call.args):
            argument = "count" if arg.name == "n" and params == ("count",) else arg.name
            if argument is None and index < len(params):
                argument = params[index]
            if argument is None:
                most = f"{len(params)} argument{'' if len(params) == 1 else 's'}"
                message = f"`{call.function.text}` takes {most}"
                help_text = "" if params else "`batch.rows` of the trainer sets the number"
                self.ctx.error("F114", message, arg.span, help=help_text)
            elif argument not in params:
                span = Span(arg.span.file, arg.span.start, arg.span.start + len(arg.name or ""))
                what = f"`{call.function.text}` has no parameter"
                self.ctx.unknown("F114", what, argument, span, known, _played(statement, argument))
            elif argument in settings or any(i.argument == argument for i in inputs):
                self.ctx.error("F114", f"`{argument}` is given twice", arg.span)
            elif self._argument(statement, argument, arg, inputs, settings):
                continue
            good = False
        return (tuple(inputs), settings) if good else None

    def _argument(
        self,
        statement: Statement,
        argument: str,
        arg: ast.Arg,
        inputs: list[FlowInput],
        settings: dict[str, Value],
    ) -> bool:
        value, counts = arg.value, statement.form.counts
        if isinstance(value, ast.Call) and argument not in counts:
            inner = self._inner_name(statement.name, arg.name or value.function.parts[-1])
            if not self._call(inner, value, value.span):
                return False
            self.edges[inner] = value.span
            source = FlowInput(argument=argument, edge=inner, attribute=None, span=value.span)
            inputs.append(source)
            return True
        if isinstance(value, ast.Path) and self._is_stream(value.parts[0]):
            if argument in counts and value.parts[0] in self.edges:
                message = f"`{argument}` is a number, not a stream"
                self.ctx.error("F109", message, value.span)
                return False
            if value.parts[0] not in self.edges:
                self._undefined(value)
                return False
            attribute = ".".join(value.parts[1:]) or None
            inputs.append(
                FlowInput(
                    argument=argument, edge=value.parts[0], attribute=attribute, span=value.span
                )
            )
            return True
        if not_a_stream(self.resolver, argument, value, {*self.edges, *self.failed}):
            return False
        found = evaluate(value, self.resolver, self.ctx)
        if found is ERROR:
            return False
        settings[argument] = in_file(found, value.span)
        return True

    def _inner_name(self, name: str | None, suffix: str) -> str:
        """Return a name for the result of a nested call. It has a dot, which names of users cannot
        have."""
        base = f"{name}.{suffix}" if name else suffix
        number = 2
        unique = base
        while unique in self.edges:
            unique = f"{base}{number}"
            number += 1
        return unique

    def _is_stream(self, name: str) -> bool:
        if name in self.edges or name in self.failed or name in self.later:
            return True
        table = self.resolver.table
        return not any(name in t for t in (table.params, table.declared, table.imports))

    def _undefined(self, path: ast.Path) -> None:
        head = path.parts[0]
        span = part_span(path, 0, 0)
        if head in self.failed:
            return
        if head in self.later:
            related = (Label(text="defined here", span=self.later[head]),)
            message = f"`{head}` is used before it is defined"
            help_text = (
                "define it above this line; only `sync`, `observe` and a buffer can close a cycle"
            )
            self.ctx.error("F105", message, span, related=related, help=help_text)
        else:
            meant = self._meant(head) if len(path.parts) == 1 else ""
            known = {} if meant else self.edges
            self.ctx.unknown("F101", "undefined stream", head, span, known, meant)

    def _meant(self, name: str) -> str:
        """Return the help for a name that is a field of a prompt, or a function; "" if neither."""
        if name == "target":
            drawn = next((step.name for step in self.steps if Role.SOURCE in step.roles), "")
            return f"the target belongs to a prompt: write `{drawn}.target`" if drawn else ""
        if name in self.resolver.table.functions:
            return f"`{name}` is a function: call it, `{name}(...)`"
        return ""

    def count(self, value: Value, call: ast.Call, what: str) -> Value:
        span = value.origin.span or call.span
        written = next((arg.value for arg in call.args if arg.value.span == span), None)
        found: Any = self.resolver.coercer.check(value.value, COUNT, span, f"`{what}`", written)
        return Value(value=found, origin=value.origin)

    def emit(
        self,
        op: str,
        statement: Statement,
        inputs: tuple[FlowInput, ...],
        settings: dict[str, Value],
    ) -> None:
        whole = next((i for i in inputs if i.edge in self.merged), None)
        if whole is not None:
            message = f"`{whole.edge}` is merged for a step; `{op}` cannot read it"
            self.ctx.error("F109", message, whole.span, help="read the batches that were merged")
            return
        step = FlowStep(
            name=statement.name,
            op=op,
            receiver=statement.receiver,
            inputs=inputs,
            settings=settings,
            roles=operation(op).roles,
            span=statement.span,
        )
        self.steps.append(step)


NAMELESS = frozenset(o.name for o in operations() if not any(form.result for form in o.forms))
EXAMPLES = {"count": "32", "n": "n = 8", "max_turns": "max_turns = 3", "env": "env = game"}
"""example arguments of methods, for messages"""


def _played(statement: Statement, argument: str) -> str:
    """Return the help for an environment that is given to `sample`; "" for other arguments."""
    if argument != "env" or statement.form.method != "sample":
        return ""
    return f"environments are played: `{statement.receiver}.play(prompt, env = NAME, n = 8)`"


def resolve_flow(resolver: File, functions: dict[str, Function]) -> tuple[FlowStep, ...]:
    """Resolve the program's flow to its steps. Functions of modules that it uses are added to
    `functions`."""
    flow = resolver.table.flow
    if flow is None:
        return ()
    schedule = resolver.table.declared["schedule"]
    if schedule.label is None and schedule.node is None:  # an unknown mode has been reported
        message = "a flow needs a schedule"
        help_text = "`schedule sync { steps = 100 }`"
        resolver.ctx.error("F110", message, flow.kind_span, help=help_text)
    return FlowResolver(resolver, functions).block(flow.block)
