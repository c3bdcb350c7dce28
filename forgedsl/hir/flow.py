"""The flow block -> `FlowStep`s in order: every name in it resolved.

Each statement names its result once (SSA) and reads earlier names only: a name used before it is
defined would be a data cycle (F105). A call inside a call becomes a step of its own, named
`<statement>.<argument>`. What streams carry, and whether they may meet, is checked on the graph
(forgedsl.graph).

FlowStep.settings: draw {count, weight: Ref, observe: Ref}, pairs and recall {count}, sample {n,
env: Ref, max_turns}, step {loss: Ref, epochs, minibatches}, sync {target: Ref, every, overlap,
on_swap, transport, timeout}, call {constant arguments by name}.
"""

from __future__ import annotations

from typing import Any

from forgedsl.diagnostics import Label
from forgedsl.hir import curricula, imports
from forgedsl.hir.collect import Collector
from forgedsl.hir.context import ERROR
from forgedsl.hir.evaluate import evaluate
from forgedsl.hir.file import File
from forgedsl.hir.functions import called
from forgedsl.hir.habits import function_habit, reward_habit
from forgedsl.hir.specialize import incomplete_step, resolve_loss
from forgedsl.hir.streams import named_step, not_a_stream
from forgedsl.hir.table import Declared, part_span
from forgedsl.ir.program import (
    FlowInput,
    FlowStep,
    Function,
    Origin,
    PythonFunction,
    Ref,
    Scope,
    Value,
)
from forgedsl.operations.registry import OPERATIONS, operation, written
from forgedsl.records import replace
from forgedsl.schema.flow import COLUMNS, COUNTS, METHODS, PARAMETERS, place
from forgedsl.schema.kinds import SYNC
from forgedsl.services.registry import kind_of
from forgedsl.settings import COUNT, Type
from forgedsl.source import Span
from forgedsl.syntax import ast


class FlowResolver:
    """Resolves the statements of one flow. `edges` maps a stream to where it is defined."""

    def __init__(self, resolver: File, functions: dict[str, Function]) -> None:
        self.resolver = resolver
        self.ctx = resolver.ctx
        self.functions = functions
        self.edges: dict[str, Span] = {}
        self.failed: set[str] = set()
        self.later: dict[str, Span] = {}
        self.merged: dict[str, tuple[FlowInput, ...]] = {}
        """batches put together, by the name of the whole"""
        self.read: set[str] = set()
        """of those, what is put into a step"""
        self.steps: list[FlowStep] = []
        self.observed: dict[str, Value] = {}
        """by draw, the score whose results it is weighed by"""
        self.unsure: set[str] = set()
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
                    help_text = "a flow holds `name = call(...)`, calls and `sync a -> b`"
                    self.ctx.error("F119", message, item.span, help=help_text)
        for name in self.merged.keys() - self.read:
            message = f"no step reads `{name}`"
            self.ctx.error("F119", message, self.edges[name], help=f"`trainer.step({name}, ...)`")
        for unit in OPERATIONS:
            unit.check_flow(self.ctx, self.steps, self.unsure)
        return tuple(curricula.joined(self, self.observed))

    # ---- statements

    def _assign(self, item: ast.Assign) -> None:
        name, span = item.path.text, item.path.span
        self.later.pop(name, None)
        known = self.edges.get(name) or self.resolver.table.spans.get(name)
        if len(item.path.parts) > 1:
            self.ctx.error("F119", "the name of a stream has no dots", span)
        elif known is not None:
            related = (Label(text="first defined here", span=known),)
            help_text = "every stream has a name of its own"
            message = f"`{name}` is defined twice"
            self.ctx.error("F102", message, span, related=related, help=help_text)
        elif not isinstance(item.value, ast.Call):
            said = self._called(name, item.value)
            self.ctx.error("F119", "a stream is the result of a call", item.value.span, help=said)
            self.failed.add(name)
        elif self._call(name, item.value, item.span):
            self.edges[name] = span
        else:
            self.failed.add(name)

    def _called(self, name: str, value: ast.Expr) -> str:
        """What to write for a value that is no call."""
        if isinstance(value, ast.Path) and value.text not in self.edges:
            declared, depth = self.resolver.declared_at(value)
            found = self.resolver.scope.lookup(value.parts)
            takes: tuple[str, ...] = ("...",)
            if isinstance(found, Function):
                return called(value, found, f"{name} = ")
            if declared is not None and declared.kind.name in ("rubric", "reward"):
                takes = ("rollout", "prompt.target")
            elif declared is not None and len(value.parts) == depth + 1:
                params = (p for p in PARAMETERS.get(value.parts[-1], ("...",)) if p != "weight")
                takes = tuple(EXAMPLES.get(p, p) for p in params)
            return f"call it: `{name} = {value.text}({', '.join(takes)})`"
        return "compute in a rubric: `rubric grade { score = 0.5 * correct }`"

    def _effect(self, call: ast.Call) -> None:
        before = len(self.steps)
        good = self._call(None, call, call.span)
        added = self.steps[before:]  # nothing, where results are observed
        if good and added and added[-1].op not in NAMELESS:
            message = f"the result of `{call.function.text}` is not used"
            self.ctx.error("F119", message, call.span, help="give it a name: `name = ...`")

    def _sync(self, item: ast.Sync) -> None:
        source = self._service(item.source)
        target = self._service(item.target)
        if source is None or target is None:
            return
        declared = Declared(kind=SYNC, name="sync", node=None)
        if item.block is not None:
            collector = Collector(self.ctx)
            collector.fill(declared, item.block.items, Origin(layer="file", detail="", span=None))
        settings = {"target": _written(Ref(name=target.name), item.target.span)}
        for setting in SYNC.settings:
            settings[setting.name] = self.resolver.setting_of(declared, setting)
        self._emit(None, "sync", source.name, (), settings, item.span)

    def _service(self, path: ast.Path) -> Declared | None:
        table = self.resolver.table.declared
        declared = table.get(path.text)
        if declared is not None and declared.kind.name == "service":
            self.resolver.used.add(path.parts[0])
            return declared
        services = [n for n, d in table.items() if d.kind.name == "service"]
        self.ctx.unknown("F101", "no service is called", path.text, path.span, services)
        return None

    # ---- calls; each returns whether it could be resolved

    def _call(self, name: str | None, call: ast.Call, span: Span) -> bool:
        path = call.function
        head = path.parts[0]
        declared, depth = self.resolver.declared_at(path)
        if path.text == "merge":
            return self._merge(name, call)
        if (meant := written("", path.text)) is not None:
            unit, form = meant
            return unit.resolve(self, name, call, form, "", span)
        if path.text == "replay":
            names = tuple(arg.name for arg in call.args if arg.name is not None)
            return self.simple(name, "replay", "", call, ("rollout", *names), span)
        if head in self.failed:
            return False
        if head in self.edges or (head in self.later and len(path.parts) == 2):
            return self._keep(name, call, span)
        if declared is not None and len(path.parts) == depth + 1:
            return self._method(name, call, declared, span)
        if declared is not None and declared.kind.name in {"rubric", "reward"}:
            self.resolver.used.add(head)
            return self.simple(name, "score", declared.name, call, PARAMETERS["score"], span)
        function = self._function(path)
        return function is not None and self._apply(name, call, function, span)

    def _method(self, name: str | None, call: ast.Call, declared: Declared, span: Span) -> bool:
        path = call.function
        method = path.parts[-1]
        owner = declared.ctor or declared.kind.name
        methods = METHODS.get(owner, ())
        self.resolver.used.add(path.parts[0])
        if method not in methods:
            what = f"{owner} `{declared.name}` has no method"
            known = [name for name in methods if name != "score"]
            self.unsure.add(declared.name)
            self.ctx.unknown("F101", what, method, part_span(path, len(path.parts) - 1), known)
            return False
        if method == "values" and not declared.head:
            model = declared.ctor_args[0]
            message = f"`{declared.name}` has no value head"
            said = f"`service {declared.name} : {owner}(value_head({getattr(model, 'text', '')}))`"
            self.ctx.error("F119", message, call.span, help=said)
            return False
        if method == "score":
            message = f"`{path.text}` is a reward that is not declared"
            given = "" if kind_of(owner).trains else "prompt = ..."
            said = f"`reward NAME = {path.text}({given})`, and call `NAME` here"
            self.ctx.error("F119", message, call.span, help=said)
            return False
        if method == "step":
            return not named_step(self.ctx, name, call) and self._step(call, declared, span)
        if method == "observe":
            return curricula.observe(self, name, call, declared)
        meant = written(owner, method)
        if meant is not None:
            unit, form = meant
            good = unit.resolve(self, name, call, form, declared.name, span)
            self.unsure |= set() if good else {declared.name}
            return good
        for column in COLUMNS.get(method, ()):
            self.resolver.need(declared.name, column, f"`{method}` reads it")
        for needed, setting, why in kind_of(owner).needs if declared.ctor else ():
            if needed == method:
                self.resolver.need(declared.name, setting, why)
        if method == "play":
            return self._play(name, call, declared, span)
        if method == "draw":
            return self._draw(name, call, declared, span)
        return self.simple(name, method, declared.name, call, PARAMETERS[method], span)

    def _draw(self, name: str | None, call: ast.Call, declared: Declared, span: Span) -> bool:
        """A draw; its `weight` names a function."""
        by = next((arg for arg in call.args if arg.name == "weight"), None)
        rest = replace(call, args=tuple(arg for arg in call.args if arg is not by))
        weight = None if by is None else curricula.weight(self, by.value)
        if not self.simple(name, "draw", declared.name, rest, ("count",), span):
            return False
        if weight is not None:
            settings = {**self.steps[-1].settings, "weight": weight}
            self.steps[-1] = replace(self.steps[-1], settings=settings)
        return by is None or weight is not None

    def _play(self, name: str | None, call: ast.Call, declared: Declared, span: Span) -> bool:
        """A sampling in an environment; `env` names a declaration, all else is as of `sample`."""
        env = next((arg for arg in call.args if arg.name == "env"), None)
        if env is None:
            shown = f"`{call.function.text}(prompt, env = NAME, n = 8, max_turns = 6)`"
            message = f"`{call.function.text}` needs its env"
            self.ctx.error("F114", message, call.span, help=shown)
            return False
        meant = self.resolver.coercer.value(env.value, _ENV, self.resolver.scope, "`env`")
        rest = replace(call, args=tuple(arg for arg in call.args if arg is not env))
        params = tuple(p for p in PARAMETERS["play"] if p != "env")
        if meant is ERROR or not self.simple(name, "sample", declared.name, rest, params, span):
            return False
        settings = {**self.steps[-1].settings, "env": _written(meant, env.value.span)}
        self.steps[-1] = replace(self.steps[-1], settings=settings)
        return True

    def _keep(self, name: str | None, call: ast.Call, span: Span) -> bool:
        path = call.function
        head = path.parts[0]
        if head in self.later:
            self._undefined(path)
            return False
        if path.parts[1:] != ("keep",):
            what = f"stream `{head}` has no method"
            self.ctx.unknown("F101", what, ".".join(path.parts[1:]), part_span(path, 1), ("keep",))
            return False
        return self.simple(name, "keep", head, call, PARAMETERS["keep"], span)

    def simple(
        self,
        name: str | None,
        op: str,
        receiver: str,
        call: ast.Call,
        params: tuple[str, ...],
        span: Span,
        shown: str = "",
    ) -> bool:
        """A call whose stream parameters come first and whose counts are constants."""
        arguments = self._arguments(name, call, params)
        if arguments is None:
            return False
        inputs, settings = arguments
        first = params[0] if params else ""
        given = settings if first == "count" else {i.argument for i in inputs}
        if first and first not in given:
            callee = call.function.text
            said = f"`{shown or callee + '(' + ', '.join(params) + ')'}`"
            self.ctx.error("F114", f"`{callee}` needs its {first}", call.span, help=said)
            return False
        if op == "sample":
            settings.setdefault("n", Value(value=1, origin=_DEFAULT))
        for key in ("n", "count", "max_turns"):
            if key in settings:
                settings[key] = self._count(settings[key], call, key)
        self._emit(name, op, receiver, inputs, settings, span)
        return True

    def _merge(self, name: str | None, call: ast.Call) -> bool:
        """Batches as one: `merge(a, b)`. It is no node: a step reads all that a whole is of."""
        params = tuple(place("batch", i) for i in range(len(call.args)))
        found = self._arguments(name, call, params)
        if found is None:
            return False
        inputs, constants = found
        if name is None:
            said = "give it a name: `both = merge(...)`"
            self.ctx.error("F119", "the result of `merge` is not used", call.span, help=said)
            return False
        if constants or len(inputs) < 2:
            message = "`merge` takes two batches or more"
            help_text = "`merge(replay(a, ...), replay(b, ...))`"
            self.ctx.error("F114", message, call.span, help=help_text)
            return False
        self.read |= {i.edge for i in inputs}
        self.merged[name] = tuple(p for i in inputs for p in self.merged.get(i.edge, (i,)))
        return True

    def _step(self, call: ast.Call, declared: Declared, span: Span) -> bool:
        """`step(a, loss = x, b, loss = y)`: a loss belongs to the batch before it."""
        losses = [arg for arg in call.args if arg.name == "loss"]
        if self._without_loss(call, losses):
            return False
        counts = tuple(arg for arg in call.args if arg.name in COUNTS)
        batches = tuple(arg for arg in call.args if arg not in (*losses, *counts))
        if not losses or not batches or len(losses) > len(batches):
            incomplete_step(call, self.ctx)
            return False
        params = (place("batch", i) for i in range(len(losses)))
        more = tuple(p for p in PARAMETERS["step"] if p in COUNTS)
        arguments = self._arguments(None, replace(call, args=(*batches, *counts)), (*params, *more))
        names = [resolve_loss(arg.value, self.resolver, self.functions) for arg in losses]
        self.read |= {read.edge for read in arguments[0]} if arguments else set()
        if None in names or arguments is None or self._twice(losses):
            return False
        inputs, given = arguments
        if len(inputs) < len(losses):
            incomplete_step(replace(call, args=tuple(losses)), self.ctx)
            return False
        reads: list[FlowInput] = []
        settings: dict[str, Value] = {}
        for read, loss, named in zip(inputs, losses, names, strict=True):
            key = place("loss", len(reads))
            settings[key] = _written(Ref(name=str(named)), loss.value.span)
            for part in self.merged.get(read.edge, (read,)):
                reads.append(replace(part, argument=place("batch", len(reads)), span=read.span))
        edges = [read.edge for read in reads]
        again = next((read for i, read in enumerate(reads) if read.edge in edges[:i]), None)
        if again is not None:
            message = f"`{again.edge}` is read twice by the step"
            self.ctx.error("F114", message, again.span, help="add up both in one loss")
            return False
        for key in more:
            written = given.get(key, Value(value=1, origin=_DEFAULT))
            settings[key] = self._count(written, call, key)
        self._emit(None, "step", declared.name, tuple(reads), settings, span)
        return True

    def _without_loss(self, call: ast.Call, losses: list[ast.Arg]) -> bool:
        """Whether a batch has no loss behind it where others have."""
        known = [a for a in call.args if a.name is None and self._is_batch(a.value)]
        if not losses or len(known) <= len(losses):
            return False
        behind = zip(call.args, (*call.args[1:], None), strict=True)
        alone = next((a for a, b in behind if a in known and b not in losses), known[-1])
        callee = call.function.text
        help_text = f"`{callee}(merge(a, b), loss = x)`, or `{callee}(a, loss = x, b, loss = y)`"
        self.ctx.error("F114", "this batch has no loss", alone.span, help=help_text)
        return True

    def _is_batch(self, value: ast.Expr) -> bool:
        return isinstance(value, ast.Call) or (
            isinstance(value, ast.Path) and value.text in self.edges
        )

    def _twice(self, losses: list[ast.Arg]) -> bool:
        """Whether one loss is given parameters for a batch, which would be those of all."""
        paths = [a.value.function if isinstance(a.value, ast.Call) else a.value for a in losses]
        texts = [path.text for path in paths if isinstance(path, ast.Path)]
        calls = [a.value for a in losses if isinstance(a.value, ast.Call)]
        again = next((call for call in calls if texts.count(call.function.text) > 1), None)
        if again is not None:
            name = again.function.text
            message = f"`{name}` is given parameters, and minimized for another batch too"
            help_text = f"`loss other = {name}(...)`, and `loss = other` here"
            self.ctx.error("F114", message, again.span, help=help_text)
        return again is not None

    def _apply(self, name: str | None, call: ast.Call, function: Function, span: Span) -> bool:
        params = tuple(field.name for field in function.fields)
        arguments = self._arguments(name, call, params)
        if arguments is None:
            return False
        inputs, settings = arguments
        given = {i.argument for i in inputs} | set(settings)
        missing = [f.name for f in function.fields if f.default is None and f.name not in given]
        if missing:
            listed = ", ".join(f"`{m}`" for m in missing)
            self.ctx.error("F114", f"`{call.function.text}` needs {listed}", call.span)
            return False
        self._emit(name, "call", call.function.text, inputs, settings, span)
        return True

    def _function(self, path: ast.Path) -> Function | None:
        found = self.resolver.scope.lookup(path.parts)
        if isinstance(found, Function):
            self.resolver.used.add(path.parts[0])
            if found.kind != "loss":
                self.functions[path.text] = found
                return found
            help_text = f"`trainer.step(batch, loss = {path.text})`"
            self.ctx.error("F119", "a loss is named in a step", path.span, help=help_text)
            return None
        if path.parts[0] in self.resolver.modules:
            self.resolver.used.add(path.parts[0])
            self._not_called(path, found)
            return None
        module = self.resolver.scope.names.get(path.parts[0])
        if len(path.parts) > 1 and isinstance(module, Scope):
            self.resolver.used.add(path.parts[0])
            said = reward_habit(path, module)
            if isinstance(module.lookup(path.parts[1:]), PythonFunction):
                said = f"declare it with `reward NAME = {path.text}`, and call `NAME` here"
            if said is not None:
                message = f"`{path.text}` is a reward that is not declared"
                self.ctx.error("F119", message, path.span, help=said)
            elif module.names:  # else its import failed and has been reported
                what = f"`{path.parts[0]}` has no function"
                name, span = ".".join(path.parts[1:]), part_span(path, 1)
                self.ctx.unknown("F101", what, name, span, module.names)
            return None
        table = self.resolver.table
        callables = (n for n, d in table.declared.items() if not d.kind.singleton)
        known = ("replay", "merge", *table.functions, *callables, *self.edges)
        what = f"undefined {'name' if len(path.parts) > 1 else 'function'}"
        span, meant = part_span(path, 0, 0), function_habit(path.text)
        self.ctx.unknown("F101", what, path.parts[0], span, known, meant)
        return None

    def _not_called(self, path: ast.Path, found: object) -> None:
        """A name of a module that is nothing to call."""
        declared, _ = self.resolver.declared_at(path)
        if found is not None or declared is not None:
            what = declared.kind.name if declared is not None else "constant"
            self.ctx.error("F119", f"`{path.text}` is a {what}, not a function", path.span)
        else:
            imports.unknown_member(self.resolver, path)

    # ---- arguments

    def _arguments(
        self, name: str | None, call: ast.Call, params: tuple[str, ...]
    ) -> tuple[tuple[FlowInput, ...], dict[str, Value]] | None:
        """Streams and constants by parameter; None if one of them is wrong."""
        inputs: list[FlowInput] = []
        settings: dict[str, Value] = {}
        good = True
        for index, arg in enumerate(call.args):
            argument = "count" if arg.name == "n" and params == ("count",) else arg.name
            if argument is None and index < len(params):
                argument = params[index]
            if argument is None:
                most = f"{len(params)} argument{'' if len(params) == 1 else 's'}"
                message = f"`{call.function.text}` takes {most}"
                said = "" if params else "`batch.rows` of the trainer says how many"
                self.ctx.error("F114", message, arg.span, help=said)
            elif argument not in params:
                span = Span(arg.span.file, arg.span.start, arg.span.start + len(arg.name or ""))
                what = f"`{call.function.text}` has no parameter"
                known = PARAMETERS["step"] if "epochs" in params else params
                self.ctx.unknown("F114", what, argument, span, known)
            elif argument in settings or any(i.argument == argument for i in inputs):
                self.ctx.error("F114", f"`{argument}` is given twice", arg.span)
            elif self._argument(name, argument, arg, inputs, settings):
                continue
            good = False
        return (tuple(inputs), settings) if good else None

    def _argument(
        self,
        name: str | None,
        argument: str,
        arg: ast.Arg,
        inputs: list[FlowInput],
        settings: dict[str, Value],
    ) -> bool:
        value = arg.value
        if isinstance(value, ast.Call) and argument not in COUNTS:
            inner = self._inner_name(name, arg.name or value.function.parts[-1])
            if not self._call(inner, value, value.span):
                return False
            self.edges[inner] = value.span
            source = FlowInput(argument=argument, edge=inner, attribute=None, span=value.span)
            inputs.append(source)
            return True
        if isinstance(value, ast.Path) and self._is_stream(value.parts[0]):
            if argument in COUNTS and value.parts[0] in self.edges:
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
        settings[argument] = _written(found, value.span)
        return True

    def _inner_name(self, name: str | None, suffix: str) -> str:
        """A name for the result of a nested call; user names have no dots."""
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
            help_text = "data flows downwards; only `sync` and a buffer close a cycle"
            self.ctx.error("F105", message, span, related=related, help=help_text)
        else:
            self.ctx.unknown("F101", "undefined stream", head, span, self.edges)

    def _count(self, value: Value, call: ast.Call, what: str) -> Value:
        span = value.origin.span or call.span
        found: Any = self.resolver.coercer.check(value.value, COUNT, span, f"`{what}`")
        return Value(value=found, origin=value.origin)

    def _emit(
        self,
        name: str | None,
        op: str,
        receiver: str,
        inputs: tuple[FlowInput, ...],
        settings: dict[str, Value],
        span: Span,
    ) -> None:
        whole = next((i for i in inputs if i.edge in self.merged), None)
        if whole is not None:
            message = f"`{whole.edge}` is merged for a step; `{op}` cannot read it"
            self.ctx.error("F109", message, whole.span, help="read the batches that it is made of")
            return
        step = FlowStep(
            name=name,
            op=op,
            receiver=receiver,
            inputs=inputs,
            settings=settings,
            roles=operation(op).roles,
            span=span,
        )
        self.steps.append(step)


NAMELESS = ("step", *(o.name for o in OPERATIONS for f in o.forms if not f.result))
EXAMPLES = {"count": "32", "n": "n = 8", "max_turns": "max_turns = 3", "env": "env = game"}
"""arguments of methods, as one writes them"""
_ENV = Type(base="ref", kinds=("environment",))
_DEFAULT = Origin(layer="default", detail="default", span=None)


def _written(value: Any, span: Span) -> Value:
    return Value(value=value, origin=Origin(layer="file", detail="", span=span))


def resolve_flow(resolver: File, functions: dict[str, Function]) -> tuple[FlowStep, ...]:
    """The steps of the program's flow; functions it uses from modules are added to `functions`."""
    flow = resolver.table.flow
    if flow is None:
        return ()
    schedule = resolver.table.declared["schedule"]
    if schedule.label is None and schedule.node is None:  # a wrong mode has been reported
        message = "a flow needs a schedule"
        help_text = "`schedule sync { steps = 100 }`"
        resolver.ctx.error("F110", message, flow.kind_span, help=help_text)
    return FlowResolver(resolver, functions).block(flow.block)
