"""The flow block -> `FlowStep`s in order.

Each statement names its result once (SSA) and reads earlier names only: a name used before it is
defined would be a data cycle (F105). A call inside a call becomes a step of its own, named
`<statement>.<argument>`. Every stream knows its ancestors; joining streams without a common one
is F112.

FlowStep.settings: draw and pairs {count}, sample {n}, step {loss: Ref}, sync {target: Ref, every,
overlap, reset_prefix_cache, transport, timeout}, call {constant arguments by name}.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forgedsl.diagnostics import Label
from forgedsl.hir.context import ERROR
from forgedsl.hir.evaluate import evaluate
from forgedsl.hir.ir import FlowInput, FlowStep, Function, Origin, Ref, Value
from forgedsl.hir.settings import Coercer
from forgedsl.hir.table import Collector, Declared, part_span
from forgedsl.schema.kinds import SYNC
from forgedsl.schema.types import COUNT
from forgedsl.source import Span
from forgedsl.syntax import ast

if TYPE_CHECKING:
    from forgedsl.hir.resolve import Resolver

METHODS = {
    "dataset": ("draw", "batches", "pairs"),
    "titan": ("step", "logprobs"),
    "vllm": ("sample",),
    "edge": ("keep",),
}
RESULTS = {
    "draw": "prompts",
    "batches": "batch",
    "pairs": "pairs",
    "sample": "rollouts",
    "logprobs": "log-probs",
    "score": "scores",
    "replay": "batch",
}
ATTRIBUTES = {
    "prompts": ("target", "text"),
    "rollouts": ("num_tokens", "truncated", "target", "behavior", "mask"),
    "pairs": ("chosen", "rejected"),
}
EFFECTS = ("step",)


@dataclass(frozen=True, slots=True)
class Edge:
    """A named stream: what flows in it and the draws it descends from."""

    content: str
    roots: frozenset[str]
    span: Span


class FlowResolver:
    """Resolves the statements of one flow."""

    def __init__(self, resolver: Resolver, functions: dict[str, Function]) -> None:
        self.resolver = resolver
        self.ctx = resolver.ctx
        self.functions = functions
        self.edges: dict[str, Edge] = {}
        self.steps: list[FlowStep] = []
        self.later: dict[str, Span] = {}
        self.failed: set[str] = set()

    def block(self, block: ast.Block) -> tuple[FlowStep, ...]:
        for item in block.items:
            if isinstance(item, ast.Assign):
                self.later.setdefault(item.path.text, item.path.span)
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
        return tuple(self.steps)

    # ---- statements

    def _assign(self, item: ast.Assign) -> None:
        name = item.path.text
        self.later.pop(name, None)
        if len(item.path.parts) > 1:
            self.ctx.error("F119", "the name of a stream has no dots", item.path.span)
        elif name in self.edges:
            related = (Label(text="first defined here", span=self.edges[name].span),)
            message = f"`{name}` is defined twice"
            help_text = "every stream has a name of its own"
            self.ctx.error("F102", message, item.path.span, related=related, help=help_text)
        elif name in self.resolver.table.spans:
            related = (Label(text="declared here", span=self.resolver.table.spans[name]),)
            message = f"`{name}` is already declared"
            self.ctx.error("F102", message, item.path.span, related=related)
        elif not isinstance(item.value, ast.Call):
            self.ctx.error("F119", "a stream is the result of a call", item.value.span)
            self.failed.add(name)
        else:
            edge = self._call(name, item.value, item.span, item.path.span)
            if edge is None:
                self.failed.add(name)
            else:
                self.edges[name] = edge

    def _effect(self, call: ast.Call) -> None:
        method = call.function.parts[-1]
        if method not in EFFECTS and len(call.function.parts) > 1 and self._known(call.function):
            message = f"the result of `{call.function.text}` is not used"
            self.ctx.error("F119", message, call.span, help="give it a name: `name = ...`")
            return
        self._call(None, call, call.span, call.span)

    def _known(self, path: ast.Path) -> bool:
        methods = {m for group in METHODS.values() for m in group}
        return path.parts[-1] in methods

    def _sync(self, item: ast.Sync) -> None:
        source = self._service(item.source)
        target = self._service(item.target)
        if source is None or target is None:
            return
        declared = Declared(kind=SYNC, name="sync", node=None)
        if item.block is not None:
            collector = Collector(self.ctx)
            collector.fill(declared, item.block.items, Origin(layer="file", detail="", span=None))
        settings = {"target": self._written(Ref(name=target.name), item.target.span)}
        for setting in SYNC.settings:
            settings[setting.name] = self.resolver.setting_of(declared, setting)
        self._emit(None, "sync", source.name, (), settings, item.span)

    def _service(self, path: ast.Path) -> Declared | None:
        declared = self.resolver.table.declared.get(path.text)
        if declared is not None and declared.kind.name == "service":
            self.resolver.used.add(path.text)
            return declared
        services = [n for n, d in self.resolver.table.declared.items() if d.kind.name == "service"]
        self.ctx.unknown("F101", "no service is called", path.text, path.span, services)
        return None

    # ---- calls

    def _call(self, name: str | None, call: ast.Call, span: Span, at: Span) -> Edge | None:
        path = call.function
        head = path.parts[0]
        if path.text == "replay":
            return self._replay(name, call, span, at)
        if len(path.parts) == 2 and head in self.edges:
            return self._keep(name, call, span, at)
        if len(path.parts) > 1 and head in self.failed:
            return None
        declared = self.resolver.table.declared.get(head)
        if declared is not None and len(path.parts) == 2:
            return self._method(name, call, declared, span, at)
        if declared is not None and declared.kind.name in {"rubric", "reward"}:
            return self._score(name, call, declared, span, at)
        function = self._function(path)
        if function is None:
            return None
        return self._apply(name, call, function, span, at)

    def _function(self, path: ast.Path) -> Function | None:
        found = self.resolver.scope.lookup(path.parts)
        if isinstance(found, Function):
            self.resolver.used.add(path.parts[0])
            if found.kind == "loss":
                message = f"a loss is named in a step: `trainer.step(batch, loss = {path.text})`"
                self.ctx.error("F119", message, path.span)
                return None
            self.functions[path.text] = found
            return found
        if path.parts[0] in self.later and len(path.parts) > 1:
            self._undefined(path)
            return None
        tables = (self.resolver.table.functions, self.resolver.table.declared, self.edges)
        known = [name for table in tables for name in table]
        module = self.resolver.scope.names.get(path.parts[0])
        if len(path.parts) > 1 and hasattr(module, "names"):
            names = module.names  # type: ignore[union-attr]
            if names or module.module:  # type: ignore[union-attr]
                what = f"`{path.parts[0]}` has no function"
                self.ctx.unknown("F101", what, path.parts[-1], part_span(path, 1), names)
            self.resolver.used.add(path.parts[0])
            return None
        what = "undefined name" if len(path.parts) > 1 else "undefined function"
        span = part_span(path, 0, 0)
        self.ctx.unknown("F101", what, path.parts[0], span, [*known, "replay"])
        return None

    def _method(
        self, name: str | None, call: ast.Call, declared: Declared, span: Span, at: Span
    ) -> Edge | None:
        method = call.function.parts[1]
        owner = declared.ctor or declared.kind.name
        methods = METHODS.get(owner, ())
        self.resolver.used.add(declared.name)
        if method not in methods:
            what = f"{owner} `{declared.name}` has no method"
            self.ctx.unknown("F101", what, method, part_span(call.function, 1), methods)
            return None
        if method in {"draw", "pairs", "batches"}:
            return self._source(name, call, declared, method, span, at)
        if method == "step":
            return self._step(call, declared, span)
        wanted = ("prompts",) if method == "sample" else ("rollouts", "pairs", "batch")
        argument = {"sample": "prompt", "logprobs": "rollout"}[method]
        inputs, settings = self._arguments(name, call, (argument, "n")[: 2 - (method != "sample")])
        edge = self._input(call, inputs, argument, wanted)
        if edge is None:
            return None
        if method == "sample":
            settings.setdefault("n", Value(value=1, origin=_DEFAULT))
            settings["n"] = self._count(settings["n"], call, "n")
            self.resolver.need(declared.name, "sampling.max_tokens", "it samples")
        self._emit(name, method, declared.name, inputs, settings, span)
        return Edge(RESULTS[method], edge.roots, at)

    def _source(
        self,
        name: str | None,
        call: ast.Call,
        declared: Declared,
        method: str,
        span: Span,
        at: Span,
    ) -> Edge | None:
        params = () if method == "batches" else ("count",)
        _, settings = self._arguments(name, call, params, aliases={"n": "count"})
        if params:
            if "count" not in settings:
                message = f"`{call.function.text}` takes the number of groups per step"
                self.ctx.error("F114", message, call.span)
                return None
            settings["count"] = self._count(settings["count"], call, "count")
        columns = {"draw": ("prompt",), "batches": ("chat",), "pairs": ("chosen", "rejected")}
        for column in columns[method]:
            if method == "batches" and "prompt" in declared.entries:
                continue  # supervised on prompt and target
            self.resolver.need(declared.name, column, f"`{method}` reads it")
        self._emit(name, method, declared.name, (), settings, span)
        return Edge(RESULTS[method], frozenset({name or declared.name}), at)

    def _step(self, call: ast.Call, declared: Declared, span: Span) -> Edge | None:
        loss = next((a for a in call.args if a.name == "loss"), None)
        rest = tuple(a for a in call.args if a is not loss)
        stripped = ast.Call(function=call.function, args=rest, span=call.span)
        inputs, _ = self._arguments(None, stripped, ("batch",))
        edge = self._input(call, inputs, "batch", ("batch",))
        if loss is None:
            message = f"`{call.function.text}` needs a loss"
            self.ctx.error("F114", message, call.span, help="`trainer.step(batch, loss = NAME)`")
            return None
        self.resolver.need(declared.name, "optimizer.lr", "it is trained")
        found = None
        if isinstance(loss.value, ast.Path):
            found = self.resolver.scope.lookup(loss.value.parts)
        if not isinstance(found, Function) or found.kind != "loss":
            self._unknown_loss(loss.value, found)
            return None
        assert isinstance(loss.value, ast.Path)
        self.resolver.used.add(loss.value.parts[0])
        self.functions[loss.value.text] = found
        if edge is not None:
            ref = self._written(Ref(name=loss.value.text), loss.value.span)
            self._emit(None, "step", declared.name, inputs, {"loss": ref}, span)
        return None

    def _unknown_loss(self, expr: ast.Expr, found: Any) -> None:
        if not isinstance(expr, ast.Path):
            self.ctx.error("F109", "a loss is given by its name", expr.span)
        elif isinstance(found, Function):
            self.ctx.error("F109", f"`{expr.text}` is a {found.kind}, not a loss", expr.span)
        else:
            losses = [n for n, f in self.functions.items() if f.kind == "loss"]
            scope = self.resolver.scope.names.get(expr.parts[0])
            if len(expr.parts) > 1 and hasattr(scope, "names"):
                members = scope.names.items()  # type: ignore[union-attr]
                losses = [f"{expr.parts[0]}.{n}" for n, f in members if isinstance(f, Function)]
            self.ctx.unknown("F101", "no loss is called", expr.text, expr.span, losses)

    def _score(
        self, name: str | None, call: ast.Call, declared: Declared, span: Span, at: Span
    ) -> Edge | None:
        self.resolver.used.add(declared.name)
        inputs, _ = self._arguments(name, call, ("rollout", "target"))
        edge = self._input(call, inputs, "rollout", ("rollouts",))
        if edge is None or not self._joined(call, inputs):
            return None
        self._emit(name, "score", declared.name, inputs, {}, span)
        return Edge("scores", edge.roots, at)

    def _apply(
        self, name: str | None, call: ast.Call, function: Function, span: Span, at: Span
    ) -> Edge | None:
        params = tuple(field.name for field in function.fields)
        inputs, settings = self._arguments(name, call, params)
        given = {i.argument for i in inputs} | set(settings)
        missing = [f.name for f in function.fields if f.default is None and f.name not in given]
        if missing and len(call.args) == len(inputs) + len(settings):
            listed = ", ".join(f"`{m}`" for m in missing)
            self.ctx.error("F114", f"`{call.function.text}` needs {listed}", call.span)
            return None
        if not inputs or not self._joined(call, inputs):
            return None
        self._emit(name, "call", call.function.text, inputs, settings, span)
        content = "mask" if function.kind == "filter" else "values"
        return Edge(content, self._roots(inputs), at)

    def _keep(self, name: str | None, call: ast.Call, span: Span, at: Span) -> Edge | None:
        head, method = call.function.parts
        if method not in METHODS["edge"]:
            what = f"stream `{head}` has no method"
            self.ctx.unknown("F101", what, method, part_span(call.function, 1), METHODS["edge"])
            return None
        inputs, _ = self._arguments(name, call, ("mask",))
        mask = self._input(call, inputs, "mask", ("mask",))
        if mask is None:
            return None
        edge = self.edges[head]
        if not edge.roots & mask.roots:
            self._unrelated(call.span, (head, inputs[0].edge))
            return None
        self._emit(name, "keep", head, inputs, {}, span)
        return Edge(edge.content, edge.roots, at)

    def _replay(self, name: str | None, call: ast.Call, span: Span, at: Span) -> Edge | None:
        params = ("rollout", *(a.name for a in call.args if a.name is not None))
        inputs, _ = self._arguments(name, call, params)
        edge = self._input(call, inputs, "rollout", ("rollouts", "pairs"))
        if edge is None or len(inputs) < len(call.args) or not self._joined(call, inputs):
            return None
        self._emit(name, "replay", "", inputs, {}, span)
        return Edge("batch", self._roots(inputs), at)

    # ---- arguments

    def _arguments(
        self,
        name: str | None,
        call: ast.Call,
        params: tuple[str, ...],
        aliases: dict[str, str] | None = None,
    ) -> tuple[tuple[FlowInput, ...], dict[str, Value]]:
        """Streams and constants by parameter; wrong ones are reported and left out."""
        inputs: list[FlowInput] = []
        settings: dict[str, Value] = {}
        for index, arg in enumerate(call.args):
            argument = (aliases or {}).get(arg.name or "", arg.name)
            if argument is None:
                if index >= len(params):
                    most = f"{len(params)} argument{'' if len(params) == 1 else 's'}"
                    message = f"`{call.function.text}` takes {most}"
                    self.ctx.error("F114", message, arg.span)
                    continue
                argument = params[index]
            elif argument not in params:
                span = Span(arg.span.file, arg.span.start, arg.span.start + len(arg.name or ""))
                what = f"`{call.function.text}` has no parameter"
                self.ctx.unknown("F114", what, argument, span, params)
                continue
            self._argument(name, call, argument, arg, inputs, settings)
        return tuple(inputs), settings

    def _argument(
        self,
        name: str | None,
        call: ast.Call,
        argument: str,
        arg: ast.Arg,
        inputs: list[FlowInput],
        settings: dict[str, Value],
    ) -> None:
        value = arg.value
        if isinstance(value, ast.Call) and argument not in {"n", "count"}:
            suffix = arg.name or value.function.parts[-1]
            inner = f"{name}.{suffix}" if name else suffix
            edge = self._call(inner, value, value.span, value.span)
            if edge is not None:
                self.edges[inner] = edge
                source = FlowInput(argument=argument, edge=inner, attribute=None, span=value.span)
                inputs.append(source)
            return
        is_name = isinstance(value, ast.Path)
        if is_name and self._is_stream(value.parts[0]):  # type: ignore[union-attr]
            assert isinstance(value, ast.Path)
            source = self._stream(argument, value)
            if source is not None:
                inputs.append(source)
            return
        found = evaluate(value, self.resolver, self.ctx)
        if found is not ERROR:
            settings[argument] = self._written(found, value.span)

    def _is_stream(self, name: str) -> bool:
        table = self.resolver.table
        if name in self.edges or name in self.failed or name in self.later:
            return True
        return name not in table.params and name not in table.declared and name not in table.imports

    def _stream(self, argument: str, path: ast.Path) -> FlowInput | None:
        head = path.parts[0]
        if head not in self.edges:
            self._undefined(path)
            return None
        attribute = None
        if len(path.parts) > 1:
            known = ATTRIBUTES.get(self.edges[head].content, ())
            attribute = ".".join(path.parts[1:])
            if attribute not in known:
                what = f"`{head}` ({self.edges[head].content}) has no attribute"
                self.ctx.unknown("F101", what, attribute, part_span(path, 1), known)
                return None
        return FlowInput(argument=argument, edge=head, attribute=attribute, span=path.span)

    def _undefined(self, path: ast.Path) -> None:
        head = path.parts[0]
        span = part_span(path, 0, 0)
        if head in self.failed:
            return
        if head in self.later:
            related = (Label(text="defined here", span=self.later[head]),)
            message = f"`{head}` is used before it is defined"
            help_text = "data flows downwards; only `sync` closes a cycle"
            self.ctx.error("F105", message, span, related=related, help=help_text)
            return
        self.ctx.unknown("F101", "undefined stream", head, span, self.edges)

    def _input(
        self, call: ast.Call, inputs: tuple[FlowInput, ...], argument: str, wanted: tuple[str, ...]
    ) -> Edge | None:
        """The edge given for `argument`, its content checked."""
        found = next((i for i in inputs if i.argument == argument), None)
        if found is None:
            if not call.args:
                message = f"`{call.function.text}` takes {' or '.join(wanted)}"
                self.ctx.error("F114", message, call.span)
            return None
        edge = self.edges[found.edge]
        if edge.content not in wanted or found.attribute is not None:
            content = edge.content if found.attribute is None else f"{found.attribute}s"
            message = f"`{call.function.text}` takes {' or '.join(wanted)}, not {content}"
            self.ctx.error("F109", message, found.span)
            return None
        return edge

    def _roots(self, inputs: tuple[FlowInput, ...]) -> frozenset[str]:
        return frozenset().union(*(self.edges[i.edge].roots for i in inputs))

    def _joined(self, call: ast.Call, inputs: tuple[FlowInput, ...]) -> bool:
        """All inputs descend from one draw."""
        first = inputs[0]
        for other in inputs[1:]:
            if not self.edges[first.edge].roots & self.edges[other.edge].roots:
                self._unrelated(other.span, (first.edge, other.edge))
                return False
        return True

    def _unrelated(self, span: Span, names: tuple[str, str]) -> None:
        roots = [" and ".join(sorted(self.edges[n].roots)) for n in names]
        message = f"`{names[0]}` and `{names[1]}` have no common ancestor"
        notes = tuple(f"`{n}` comes from `{r}`" for n, r in zip(names, roots, strict=True))
        help_text = "streams join by group and rollout, so both must descend from one draw"
        self.ctx.error("F112", message, span, notes=notes, help=help_text)

    def _count(self, value: Value, call: ast.Call, what: str) -> Value:
        coercer: Coercer = self.resolver.coercer
        span = value.origin.span or call.span
        return Value(
            value=coercer.check(value.value, COUNT, span, f"`{what}`"), origin=value.origin
        )

    def _written(self, value: Any, span: Span) -> Value:
        return Value(value=value, origin=Origin(layer="file", detail="", span=span))

    def _emit(
        self,
        name: str | None,
        op: str,
        receiver: str,
        inputs: tuple[FlowInput, ...],
        settings: dict[str, Value],
        span: Span,
    ) -> None:
        self.steps.append(
            FlowStep(
                name=name, op=op, receiver=receiver, inputs=inputs, settings=settings, span=span
            )
        )


_DEFAULT = Origin(layer="default", detail="default", span=None)


def resolve_flow(resolver: Resolver, functions: dict[str, Function]) -> tuple[FlowStep, ...]:
    """The steps of the program's flow; functions it uses from modules are added to `functions`."""
    flow = resolver.table.flow
    if flow is None:
        return ()
    if resolver.table.declared["schedule"].label is None:
        message = "a flow needs a schedule"
        help_text = "`schedule sync { steps = 100 }`"
        resolver.ctx.error("F110", message, flow.kind_span, help=help_text)
    return FlowResolver(resolver, functions).block(flow.block)
