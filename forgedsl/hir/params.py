"""Parameters of one module. The value comes from the strongest layer and is folded on demand.

Layers: default < module argument < profile < --set-file < --set. A parameter may use others; one
that depends on itself is F117.
"""

from __future__ import annotations

from collections.abc import Callable

from forgedsl.diagnostics import Label
from forgedsl.hir.context import ERROR, Context
from forgedsl.hir.evaluate import NamesOfFile, show
from forgedsl.hir.settings import Coercer
from forgedsl.hir.table import Entry
from forgedsl.ir.program import Origin, Scope, Value
from forgedsl.records import replace
from forgedsl.settings import BOOL, BYTES, DURATION, FLOAT, INT, STR, Type
from forgedsl.source import Span
from forgedsl.surface import override
from forgedsl.syntax import ast
from forgedsl.syntax.walk import walk

_TYPES = {
    "str": STR,
    "int": INT,
    "float": FLOAT,
    "bool": BOOL,
    "duration": DURATION,
    "bytes": BYTES,
    "list": Type(base="list"),
}


def param_type(type_: ast.Type, ctx: Context) -> Type | None:
    """Return the schema type of a parameter's annotation."""
    if isinstance(type_, ast.NamedType) and type_.name in _TYPES:
        return _TYPES[type_.name]
    if isinstance(type_, ast.GenericType) and type_.name == "list" and len(type_.args) == 1:
        item = param_type(type_.args[0], ctx)
        return None if item is None else Type(base="list", item=item)
    name = getattr(type_, "name", "")
    ctx.unknown("F101", "a parameter cannot have the type", name, type_.span, _TYPES)
    return None


class Params:
    """Values of the parameters of one module. `entries` are the assignments of outer layers."""

    def __init__(
        self,
        params: dict[str, ast.Param],
        entries: dict[str, Entry],
        names: NamesOfFile,
        home: Callable[[Entry], NamesOfFile],
        ctx: Context,
        imported: tuple[str, Span] | None = None,
    ) -> None:
        self.params = params
        self.entries = entries
        self.names = names
        self.home = home  # returns the file whose names an entry is evaluated with
        self.ctx = ctx
        self.imported = imported  # alias of the module, and the span of its import
        # a module checked alone: importers will give values to parameters without default
        self.is_open = False
        self.values: dict[str, Value] = {}
        self._open: list[str] = []

    def fold(self, name: str) -> Value:
        """Return the value of parameter `name` (its `value` is ERROR after a diagnostic)."""
        if name in self.values:
            return self.values[name]
        param = self.params[name]
        if name in self._open:
            return self._cycle(name)
        self._open.append(name)
        value = self._fold(param)
        self._open.pop()
        self.values.setdefault(name, value)
        return self.values[name]

    def origins(self, expr: ast.Expr) -> tuple[Label, ...]:
        """Return labels at the values of the parameters that an expression reads."""
        paths = {node.text for node in walk(expr) if isinstance(node, ast.Path)}
        values = {name: self.fold(name) for name in sorted(paths & self.params.keys())}
        return tuple(
            Label(text=f"`{name}` is {show(value.value)} here", span=value.origin.span)
            for name, value in values.items()
            if value.origin.span is not None
        )

    def _fold(self, param: ast.Param) -> Value:
        type_ = param_type(param.type, self.ctx)
        entry = self.entries.get(param.name)
        if entry is not None:
            expr, origin = entry.expr, entry.origin
            names = self.home(entry)
        elif param.default is not None:
            expr, names = param.default, self.names
            origin = Origin(layer="default", detail="default", span=param.default.span)
        else:
            self._missing(param)
            return Value(value=ERROR, origin=Origin(layer="default", detail="", span=None))
        if type_ is None:
            return Value(value=ERROR, origin=origin)
        what = f"parameter `{param.name}`"
        if isinstance(expr, ast.NoneLiteral):
            # `dual_clip : float = none` in the standard library: an optional number
            type_ = replace(type_, optional=isinstance(param.default, ast.NoneLiteral))
            value = Coercer(self.ctx, names, {}).value(expr, type_, Scope(), what)
            return Value(value=value, origin=origin)
        found = Coercer(self.ctx, names, {}).folded(expr, type_, what)
        return Value(value=found, origin=origin)

    def _missing(self, param: ast.Param) -> None:
        if self.is_open:
            return
        if self.imported is None:
            message = f"parameter `{param.name}` has no value"
            help_text = f"give it a default, or `{override(f'{param.name}=VALUE')}`"
            self.ctx.error("F110", message, param.name_span, help=help_text)
            return
        alias, span = self.imported
        message = f"module `{alias}` needs its parameter `{param.name}`"
        short = alias.rpartition(".")[2]
        help_text = f"`import ... as {short}({param.name} = ...)`, or "
        help_text += f"`{override(f'{alias}.{param.name}=VALUE')}`"
        related = (Label(text="declared here", span=param.name_span),)
        self.ctx.error("F110", message, span, help=help_text, related=related)

    def _cycle(self, name: str) -> Value:
        loop = [*self._open[self._open.index(name) :], name]
        shown = " -> ".join(f"`{n}`" for n in loop)
        related = tuple(
            Label(text="needs it", span=self.params[n].name_span) for n in loop[1:-1][:3]
        )
        message = f"the value of parameter `{name}` depends on itself: {shown}"
        self.ctx.error("F117", message, self.params[name].name_span, related=related)
        origin = Origin(layer="default", detail="", span=None)
        for member in loop:
            self.values[member] = Value(value=ERROR, origin=origin)
        return self.values[name]
