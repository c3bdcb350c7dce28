"""AST -> table of declarations and, per declaration, the settings that the file assigns.

Nothing is evaluated here. Checks that every name and setting path exists, and that none is declared
twice.
"""

from __future__ import annotations

from collections.abc import Iterator

from forgedsl.diagnostics import Label
from forgedsl.hir.context import Context
from forgedsl.hir.table import RANK, Declared, Entry, Table
from forgedsl.ir.program import Origin
from forgedsl.mistakes.other_tools import EQUIVALENTS, equivalent
from forgedsl.mistakes.suggest import nearest
from forgedsl.schema import builtins
from forgedsl.schema.kinds import ALL_KINDS, FUNCTION_KINDS, KINDS, SERVICES, SYNC
from forgedsl.services.registry import kinds as service_kinds
from forgedsl.settings import Kind
from forgedsl.source import Span
from forgedsl.syntax import ast

NAMING = ("name", "type", "algorithm")
"""what other tools call the `kind` of a block"""


class Collector:
    """Enters the declarations of one file into a Table."""

    def __init__(self, ctx: Context, module: str = "") -> None:
        self.ctx = ctx
        layer, detail = ("module", f"module {module}") if module else ("file", "")
        self.origin = Origin(layer=layer, detail=detail, span=None)
        self.table = Table()
        for kind in KINDS.values():
            if kind.singleton:
                self.table.declared[kind.name] = Declared(kind=kind, name=kind.name, node=None)

    def file(self, file: ast.File) -> Table:
        if file.edition is not None and file.edition.number != 1:
            message = f"unknown edition {file.edition.number}"
            self.ctx.error("F118", message, file.edition.span, help="write `forge 1`")
        assigns: list[ast.Assign] = []
        aliases = {alias_of(d) for d in file.decls if isinstance(d, ast.ImportForge)}
        for decl in file.decls:
            match decl:
                case ast.ImportForge() | ast.ImportPython():
                    self._import(decl)
                case ast.Param():
                    if self._new_name(decl.name, decl.name_span):
                        self.table.params[decl.name] = decl
                case ast.Require():
                    self.table.requires.append(decl)
                case ast.FnDecl() | ast.BindDecl():
                    self._function(decl)
                case ast.BlockDecl() if decl.kind in aliases and decl.name is None:
                    self._module_block(decl)
                case ast.BlockDecl():
                    self._block(decl)
                case ast.Assign():
                    assigns.append(decl)
        for item in assigns:
            self._top_assign(item)
        return self.table

    def _new_name(self, name: str, span: Span) -> bool:
        """Register `name`, or report why it cannot be used."""
        if name in builtins.RESERVED:
            self.ctx.error("S018", f"`{name}` is a reserved word and cannot be a name", span)
            return False
        taken = self.table.declared.get(name)
        if taken is not None and taken.kind.singleton:
            message = f"`{name}` is a kind of declaration and cannot be a name"
            self.ctx.error("S018", message, span, help="choose another name")
            return False
        before = self.table.spans.get(name)
        if before is not None:
            related = (Label(text="first declared here", span=before),)
            self.ctx.error("F102", f"`{name}` is declared twice", span, related=related)
            return False
        self.table.spans[name] = span
        return True

    def _import(self, decl: ast.ImportForge | ast.ImportPython) -> None:
        name = alias_of(decl)
        if self._new_name(name, decl.span):
            self.table.imports[name] = decl

    def _known_kind(self, kind: str, span: Span, name: str | None) -> bool:
        if kind in ALL_KINDS:
            return True
        self.ctx.unknown("F101", "unknown kind of declaration", kind, span, ALL_KINDS)
        if name is not None:
            self.ctx.broken.add(name)
        return False

    def _function(self, decl: ast.FnDecl | ast.BindDecl) -> None:
        if not self._known_kind(decl.kind, decl.kind_span, decl.name):
            return
        if decl.kind == "environment" and isinstance(decl, ast.BindDecl):
            self._environment(decl)
            return
        if decl.kind not in FUNCTION_KINDS:
            kind = KINDS.get(decl.kind)
            shown = f"`{decl.kind} {decl.name} {{ ... }}`"
            if kind is not None and kind.singleton:
                shown = f"`{decl.kind} {{ {decl.name} = ... }}`"
            message = f"{a_kind(decl.kind)} must be declared with a block: {shown}"
            self.ctx.error("F119", message, decl.kind_span.to(decl.name_span))
            self.ctx.broken.add(decl.name)
            return
        if not self._new_name(decl.name, decl.name_span):
            return
        self.table.functions[decl.name] = decl
        if decl.kind == "reward":
            declared = Declared(kind=KINDS["reward"], name=decl.name, node=decl)
            self.table.declared[decl.name] = declared
            if decl.settings is not None:
                self.fill(declared, decl.settings.items, self.origin)
        elif decl.settings is not None:
            self.ctx.error("F119", f"a {decl.kind} has no settings", decl.settings.span)

    def _environment(self, decl: ast.BindDecl) -> None:
        if self._new_name(decl.name, decl.name_span):
            declared = Declared(kind=KINDS["environment"], name=decl.name, node=decl)
            self.table.declared[decl.name] = declared
            if decl.settings is not None:
                self.fill(declared, decl.settings.items, self.origin)

    def _block(self, decl: ast.BlockDecl) -> None:
        if not self._known_kind(decl.kind, decl.kind_span, decl.name):
            return
        if decl.when is not None and decl.kind != "profile":
            self.ctx.error("F119", "only a profile can have a condition", decl.when.span)
        if decl.ctor is not None and decl.kind != "service":
            self.ctx.error("F119", f"a {decl.kind} takes no constructor", decl.ctor.span)
        if decl.kind == "profile":
            self._profile(decl)
        elif decl.kind == "flow":
            if self.table.flow is not None:
                related = (Label(text="the first one", span=self.table.flow.kind_span),)
                message = "a program can have only one flow"
                self.ctx.error("F102", message, decl.kind_span, related=related)
            else:
                self.table.flow = decl
                self._syncs(decl.block)
        elif decl.kind in FUNCTION_KINDS and decl.kind != "reward":
            message = f"a {decl.kind} needs parameters: `{decl.kind} {decl.name or 'name'}(...)`"
            self.ctx.error("F119", message, decl.kind_span)
            if decl.name is not None:
                self.ctx.broken.add(decl.name)
        else:
            declared = self._declare(decl)
            if declared is not None:
                self.fill(declared, decl.block.items, self.origin)

    def _syncs(self, flow: ast.Block) -> None:
        """Register the syncs of the flow: profiles and overrides can set their settings."""
        for item in (i for i in flow.items if isinstance(i, ast.Sync)):
            declared = Declared(kind=SYNC, name=f"{SYNC.name}.{item.target.text}", node=None)
            self.table.syncs[item.span] = declared
            if item.block is not None:
                self.fill(declared, item.block.items, self.origin)

    def _module_block(self, decl: ast.BlockDecl) -> None:
        """Enter `m { generator { replicas = 2 } }`, which overrides settings of the module `m`."""
        settings = ast.Nested(
            name=decl.kind,
            name_span=decl.kind_span,
            label=None,
            label_span=None,
            when=None,
            block=decl.block,
            span=decl.span,
        )
        self.table.module_settings.append(settings)

    def _profile(self, decl: ast.BlockDecl) -> None:
        if decl.name is None or decl.name_span is None:
            self.ctx.error("F119", "a profile needs a name", decl.kind_span)
        elif decl.name in self.table.profiles or decl.name in {"none", "auto"}:
            message = f"a profile cannot be named `{decl.name}`"
            if decl.name in self.table.profiles:
                message = f"profile `{decl.name}` is declared twice"
            self.ctx.error("F102", message, decl.name_span)
        else:
            self.table.profiles[decl.name] = decl

    def _declare(self, decl: ast.BlockDecl) -> Declared | None:
        """Make the table row of a declaration with settings."""
        if decl.kind == "service":
            return self._service(decl)
        kind = KINDS[decl.kind]
        if kind.singleton:
            return self._singleton(decl, kind)
        if decl.name is None or decl.name_span is None:
            example = f"`{decl.kind} NAME {{ ... }}`"
            message = f"{a_kind(decl.kind)} needs a name: {example}"
            self.ctx.error("F119", message, decl.kind_span)
            return None
        if decl.kind == "environment":
            message = "an environment needs a class: `environment NAME = FILE.CLASS(...) { ... }`"
            self.ctx.error("F119", message, decl.kind_span.to(decl.name_span))
            self.ctx.broken.add(decl.name)
            return None
        if decl.kind == "reward":
            message = f"a reward needs a value or a body: `reward {decl.name} = ...`"
            self.ctx.error("F119", message, decl.kind_span.to(decl.name_span))
            return None
        if not self._new_name(decl.name, decl.name_span):
            return None
        declared = Declared(kind=kind, name=decl.name, node=decl)
        self.table.declared[decl.name] = declared
        return declared

    def _singleton(self, decl: ast.BlockDecl, kind: Kind) -> Declared | None:
        if kind.single:
            example = {"launcher": "launcher = local", "colocate": "colocate = [a, b]"}[kind.name]
            self.ctx.error(
                "F119",
                f"`{kind.name}` is a setting, not a block: write `{example}`",
                decl.kind_span,
            )
            return None
        declared = self.table.declared[kind.name]
        if declared.node is not None:
            related = (Label(text="the first one", span=declared.node.kind_span),)
            message = f"`{kind.name}` is declared twice"
            self.ctx.error("F102", message, decl.kind_span, related=related)
            return None
        declared.node = decl
        self.table.spans[kind.name] = decl.kind_span
        self.set_label(declared, decl.name, decl.name_span, decl.kind_span, "file")
        return declared

    def _service(self, decl: ast.BlockDecl) -> Declared | None:
        if decl.name is None or decl.name_span is None:
            message = "a service needs a name: `service NAME : titan(MODEL) { ... }`"
            self.ctx.error("F119", message, decl.kind_span)
            return None
        ctor = decl.ctor
        arguments = tuple(a.value for a in ctor.args) if isinstance(ctor, ast.Call) else ()
        known = ctor.function.text if isinstance(ctor, ast.Call) else ""
        remote = any(kind.name == known and kind.remote for kind in service_kinds())
        form = ast.String if remote else ast.Path
        arguments, head = _headed(arguments, known)
        if not isinstance(ctor, ast.Call) or not all(isinstance(a, form) for a in arguments):
            example = f'{known}("MODEL")' if remote else "titan(MODEL)"
            message = f"a service needs a backend: `service NAME : {example} {{ ... }}`"
            self.ctx.error("F119", message, ctor.span if ctor is not None else decl.name_span)
            self.ctx.broken.add(decl.name)
            return None
        name = ctor.function.text
        if name not in SERVICES:
            span = ctor.function.span
            self.ctx.unknown("F101", "unknown service", name, span, SERVICES)
            self.ctx.broken.add(decl.name)
            return None
        if len(arguments) != 1:
            self.ctx.error("F114", f"`{name}` takes one model", ctor.span)
            self.ctx.broken.add(decl.name)
            return None
        if not self._new_name(decl.name, decl.name_span):
            return None
        declared = Declared(kind=SERVICES[name], name=decl.name, node=decl, ctor=name)
        declared.ctor_args = tuple(a for a in arguments if isinstance(a, form))
        declared.head = head
        self.table.declared[decl.name] = declared
        return declared

    def set_label(
        self, declared: Declared, label: str | None, span: Span | None, at: Span, layer: str
    ) -> None:
        """Set the mode of a declaration (`schedule async`)."""
        kind = declared.kind
        if label is None:
            if kind.labels and layer == "file":
                modes = " or ".join(f"`{kind.name} {mode} {{ ... }}`" for mode in kind.labels)
                self.ctx.error("F110", f"`{kind.name}` needs a mode: {modes}", at)
            return
        if RANK[layer] < RANK[declared.label_layer]:
            return
        if label in kind.labels:
            declared.label, declared.label_layer = label, layer
        elif kind.labels:
            self.ctx.unknown("F101", "unknown mode", label, span or at, kind.labels)
        else:
            self.ctx.error("F119", f"`{kind.name}` takes no name", span or at)

    # ---- settings

    def fill(self, declared: Declared, items: tuple[ast.Item, ...], origin: Origin) -> None:
        """Enter the assignments of a block, nested blocks included."""
        seen: dict[str, Span] = {}
        unknown = _unknown_blocks(declared.kind, items)
        for name, span in unknown.items():
            self._unknown_block(declared, name, span)
        for path, item in flat(items, ()):
            if path and path[0] in unknown:
                continue
            if not isinstance(item, ast.Assign):
                self.ctx.error("F119", _misplaced(item, declared), item.span)
                continue
            text = ".".join(path)
            if text in seen:
                related = (Label(text="first set here", span=seen[text]),)
                span = item.path.span
                self.ctx.error("F102", f"`{text}` is set twice", span, related=related)
                continue
            seen[text] = item.path.span
            self.enter(declared, path, item.path.span, item.value, origin)

    def enter(
        self,
        declared: Declared,
        path: tuple[str, ...],
        span: Span,
        expr: ast.Expr,
        origin: Origin,
    ) -> None:
        """Enter one assignment whose path, relative to the declaration, is `path`."""
        text = ".".join(path)
        setting = declared.kind.setting(text)
        if setting is None:
            self._unknown_setting(declared, path, span)
            return
        if (why := dict(declared.kind.taken).get(text)) is not None:
            message = f"`{path[-1]}` of `{declared.name}` cannot be set: the runtime decides it"
            self.ctx.error("F103", message, span, help=why)
            return
        before = declared.entries.get(text)
        if before is not None and RANK[before.origin.layer] > RANK[origin.layer]:
            return
        placed = Origin(layer=origin.layer, detail=origin.detail, span=expr.span)
        declared.entries[text] = Entry(expr=expr, origin=placed, path_span=span)

    def _unknown_block(self, declared: Declared, block: str, span: Span) -> None:
        kind = declared.kind
        # a required setting of the block that is meant: do not report that it is missing
        meant = tuple(f"{near}." for near in nearest(block, kind.blocks))
        below = (s.name for s in kind.settings if s.name.startswith(meant))
        self.ctx.broken |= {f"{declared.name}.{name}" for name in below}
        self.ctx.unknown("F103", f"{_owner(declared)} has no settings", block, span, kind.blocks)

    def _unknown_setting(self, declared: Declared, path: tuple[str, ...], span: Span) -> None:
        kind = declared.kind
        text = ".".join(path)
        block, _, leaf = text.rpartition(".")
        owner = _owner(declared)
        if text in kind.blocks:
            self.ctx.error("F113", f"`{text}` is a block: `{text} {{ ... }}`", span)
            return
        word = Span(span.file, max(span.start, span.end - len(leaf)), span.end)
        if block and block not in kind.blocks:
            head = path[0]
            start = Span(span.file, span.start, min(span.end, span.start + len(head)))
            self._unknown_block(declared, block, start)
            return
        siblings = [
            s.name.rpartition(".")[2] for s in kind.settings if s.name.rpartition(".")[0] == block
        ]
        siblings += [b for b in kind.blocks if not block]
        what = f"{owner} has no setting" if not block else f"`{block}` of {owner} has no setting"
        elsewhere = [s.name for s in kind.settings if s.name.rpartition(".")[2] == leaf]
        if elsewhere and not nearest(leaf, siblings):
            help_text = f"did you mean `{elsewhere[0]}`?"
            self.ctx.broken.add(f"{declared.name}.{elsewhere[0]}")
            self.ctx.error("F103", f"{what} `{leaf}`", word, help=help_text)
            return
        # it may be a required setting with a typing error: do not report that one as missing too
        meant = nearest(leaf, siblings) or siblings
        prefix = f"{declared.name}.{block}." if block else f"{declared.name}."
        self.ctx.broken |= {prefix + name for name in meant}
        if leaf in NAMING and "kind" in siblings:
            self.ctx.error("F103", f"{what} `{leaf}`", word, help="did you mean `kind`?")
            return
        listed = ", ".join(f"`{each}`" for each in siblings)
        help_text = equivalent(leaf) or (f"known are {listed}" if block else "")
        self.ctx.unknown("F103", what, leaf, word, siblings, help_text)

    def _top_assign(self, item: ast.Assign) -> None:
        name = item.path.text
        if item.path.parts[0] in self.table.imports:
            self.table.module_settings.append(item)
            return
        declared = self.table.declared.get(name)
        if declared is not None and declared.kind.single:
            self.table.spans[name] = item.path.span
            origin = self.origin
            self.enter(declared, ("value",), item.path.span, item.value, origin)
            return
        help_text = "to declare a parameter, write `param NAME : TYPE = VALUE`"
        if name in EQUIVALENTS:
            help_text = equivalent(name)
        if item.path.parts[0] in self.table.declared:
            help_text = f"write it inside the declaration of `{item.path.parts[0]}`"
        else:
            self.ctx.broken.add(item.path.parts[0])
        self.ctx.error(
            "F119",
            f"`{name} = ...` cannot stand outside a declaration",
            item.path.span,
            help=help_text,
        )


def a_kind(name: str) -> str:
    """Return a kind with its article: `an eval`, `a model`."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _headed(arguments: tuple[ast.Expr, ...], kind: str) -> tuple[tuple[ast.Expr, ...], bool]:
    """Unwrap `titan(value_head(policy))`: the model, and True if it has a value head."""
    trains = any(each.name == kind and each.trains for each in service_kinds())
    match arguments:
        case (
            ast.Call(function=ast.Path(parts=("value_head",)), args=(ast.Arg(name=None) as arg,)),
        ) if trains:
            return (arg.value,), True
    return arguments, False


def alias_of(decl: ast.ImportForge | ast.ImportPython) -> str:
    """Return the name that an import binds."""
    stem = decl.target.rpartition("/")[2]
    return decl.alias or stem.removesuffix(".forge").removesuffix(".py")


def flat(
    items: tuple[ast.Item, ...], prefix: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], ast.Item]]:
    for item in items:
        if isinstance(item, ast.Assign):
            yield (*prefix, *item.path.parts), item
        elif isinstance(item, ast.Nested) and item.label is None and item.when is None:
            yield from flat(item.block.items, (*prefix, item.name))
        else:
            yield prefix, item


def _unknown_blocks(kind: Kind, items: tuple[ast.Item, ...]) -> dict[str, Span]:
    """Return the nested blocks that a kind does not have, and where each is named first."""
    nested = [i for i in items if isinstance(i, ast.Nested) and i.label is None and i.when is None]
    if not nested:
        return {}
    known = {name.partition(".")[0] for name in (*kind.blocks, *(s.name for s in kind.settings))}
    found: dict[str, Span] = {}
    for item in nested:
        if item.name not in known:
            found.setdefault(item.name, item.name_span)
    return found


def _owner(declared: Declared) -> str:
    """A declaration in a message: ``vllm `generator` ``, or only the kind."""
    kind = declared.kind
    if kind.singleton or kind is SYNC or kind.name == declared.name:
        return f"`{kind.name}`"
    return f"{declared.ctor or kind.name} `{declared.name}`"


def _misplaced(item: ast.Item, declared: Declared) -> str:
    owner = f"a {declared.kind.name}"
    match item:
        case ast.TypedAssign():
            return f"a setting has no type: write `{item.name} = ...`"
        case ast.Nested():
            return f"`{item.name} {item.label or 'when'}` cannot stand in {owner}"
        case ast.Effect():
            return f"a call cannot stand in {owner}"
    return f"`{type(item).__name__.lower()}` cannot stand in {owner}"
