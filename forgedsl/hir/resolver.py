"""One file under one profile: its names, its parameters, its settings, each evaluated on demand.

    Resolver(file) -> layers(overrides, profile) -> imports() -> functions() -> decls()

Constant expressions look up names here. Each module has a resolver of its own, which takes
the settings of the run from the resolver of the program. `hir.resolve` assembles the parts.
"""

from __future__ import annotations

from collections import ChainMap
from pathlib import Path
from typing import Any, Self

from forgedsl import surface
from forgedsl.hir import imports, requirements
from forgedsl.hir.context import ERROR
from forgedsl.hir.derive import DEFAULT, DERIVED, defaults
from forgedsl.hir.file import File
from forgedsl.hir.functions import build_function, call_help, check_deferred, check_function
from forgedsl.hir.instantiate import import_module
from forgedsl.hir.modules import Loader, Module
from forgedsl.hir.overlay import Overlay, Override
from forgedsl.hir.specialize import bound
from forgedsl.hir.table import RANK, Declared, part_span
from forgedsl.ir.program import Constant, Decl, Deferred, Function, Origin, Ref, Scope, Value
from forgedsl.settings import Auto, Derived, Required, Setting
from forgedsl.sizes.hosts import Host
from forgedsl.source import SourceFile, Span
from forgedsl.syntax import ast

ASYNC_ONLY = ("max_policy_age", "window", "on_stale", "starve_timeout")


class Resolver(File):
    """Implements `File`: applies layers, evaluates settings on demand, resolves declarations."""

    def __init__(
        self,
        file: ast.File,
        name: str,
        folder: Path | None,
        loader: Loader,
        host: Host,
        parent: Self | None = None,
        alias: str = "",
    ) -> None:
        super().__init__(file, name, folder, loader, host, parent, alias)
        self.profile: str | None = None
        self._names: dict[str, Any] | None = None
        """names for expressions that are evaluated per row or rollout; set once all functions are
        known"""
        self._memo: dict[tuple[str, str], Value] = {} if parent is None else parent._memo
        self._open: list[tuple[str, str]] = [] if parent is None else parent._open
        for declared in self.table.declared.values():
            declared.owner, declared.name = self, f"{self.prefix}{declared.name}"
        if parent is not None:
            imports.adopt(self, parent)

    # ---- names in constant expressions

    def value_of(self, path: ast.Path) -> Any:
        head, rest = path.parts[0], path.parts[1:]
        module = self.modules.get(head)
        if module is not None:
            self.used.add(head)
            if not rest or not imports.is_known(module, rest[0]):
                return imports.unknown_member(self, path)
            return module.value_of(imports.inner(path))
        if head in self.table.params and not rest:
            self.used.add(head)
            return self.params.fold(head).value
        declared = self.table.declared.get(head)
        if declared is not None:
            return self._setting_value(path, declared)
        found = self.scope.lookup(path.parts)
        if isinstance(found, Constant):
            self.used.add(head)
            return found.value
        if found is not None or head in self.table.functions or head in self.table.imports:
            if isinstance(self.scope.names.get(head), Scope) and found is None:
                known = self.scope.names[head].names  # type: ignore[union-attr]
                span = part_span(path, 1)
                what = f"`{head}` has no member"
                return self.ctx.unknown("F101", what, ".".join(rest), span, known)
            help_text = call_help(path, found) if isinstance(found, Function) else ""
            return self.ctx.error(
                "F109", f"`{path.text}` is not a constant", path.span, help=help_text
            )
        span = part_span(path, 0, 0)
        is_ours = self.table.declared["cluster"].kind.setting(head) is not None
        meant = f"did you mean `cluster.{head}`?" if is_ours else ""
        return self.ctx.unknown("F101", "undefined name", head, span, self.constants(), meant)

    def _setting_value(self, path: ast.Path, declared: Declared) -> Any:
        head, text = path.parts[0], ".".join(path.parts[1:])
        if not text:
            message = f"`{head}` is a {declared.kind.name}, not a value"
            return self.ctx.error("F109", message, path.span)
        setting = declared.kind.setting(text)
        if setting is None:
            known = [s.name for s in declared.kind.settings]
            what = f"`{head}` has no setting"
            return self.ctx.unknown("F103", what, text, part_span(path, 1), known)
        self.used.add(head)
        return self.setting(declared, text).value

    # ---- settings

    def setting(self, declared: Declared, name: str) -> Value:
        """Return the value of a setting. Each is evaluated once."""
        if declared.owner is not None and declared.owner is not self:
            return declared.owner.setting(declared, name)
        key = (declared.name, name)
        if key in self._memo:
            return self._memo[key]
        if key in self._open:
            shown = " -> ".join(f"`{a}.{b}`" for a, b in [*self._open, key])
            entry = declared.entries.get(name)
            span = entry.path_span if entry is not None else declared.name_span
            self.ctx.error("F117", f"the value of a setting depends on itself: {shown}", span)
            self._memo[key] = Value(value=ERROR, origin=DEFAULT)
            return self._memo[key]
        setting = declared.kind.setting(name)
        assert setting is not None, key
        self._open.append(key)
        value = self.setting_of(declared, setting)
        self._open.pop()
        self._memo.setdefault(key, value)
        return self._memo[key]

    def setting_of(self, declared: Declared, setting: Setting) -> Value:
        """Evaluate a setting from its entry or its default."""
        entry = declared.entries.get(setting.name)
        if entry is not None:
            what = f"`{setting.name}`" if not declared.kind.single else f"`{declared.name}`"
            home = self.home(entry)
            scope = (
                home._deferred_scope(declared) if setting.type.base == "deferred" else home.scope
            )
            value = home.coercer.value(entry.expr, setting.type, scope, what)
            if isinstance(value, Deferred) and setting.type.base == "deferred":
                check_deferred(value, declared.kind.name, home.ctx, home.used)
                if home.parent is not None:
                    value = imports.with_rewards_named(value)
            if not (isinstance(value, Auto) and isinstance(setting.default, Derived)):
                return Value(value=value, origin=entry.origin, place=entry.path_span)
        if isinstance(setting.default, Required):
            self._missing(declared, setting)
            return Value(value=ERROR, origin=DEFAULT)
        if isinstance(setting.default, Derived):
            derived = DERIVED[declared.kind.name, setting.name](self, declared)
            origin = Origin(layer="default", detail=setting.default.text, span=None)
            return Value(value=derived, origin=origin)
        return Value(value=setting.default, origin=DEFAULT)

    def _missing(self, declared: Declared, setting: Setting) -> None:
        if f"{declared.name}.{setting.name}" in self.ctx.broken:
            return
        owner = f"{declared.ctor or declared.kind.name} `{declared.name}`"
        message = f"{owner} has no `{setting.name}`"
        help_text = f"`{setting.name} = ...`: {setting.doc}; {setting.type.text}"
        self.ctx.error("F110", message, declared.name_span, help=help_text)

    def need(self, name: str, setting: str, why: str) -> None:
        """Report a missing setting that the use of its declaration in the flow requires."""
        declared = self.table.declared[name]
        known = f"{name}.{setting}" in self.ctx.broken
        if not known and self.setting(declared, setting).value is None:
            row = declared.kind.setting(setting)
            assert row is not None
            help_text = f"`{setting} = ...`: {row.doc}"
            message = f"`{name}` has no `{setting}`, but {why}"
            self.ctx.error("F110", message, declared.name_span, help=help_text)

    def _deferred_scope(self, declared: Declared) -> Scope:
        if self._names is None:
            self._names = dict(self.scope.names)
        if declared.kind.name != "dataset":
            return Scope(names=self._names)
        system = self.setting(declared, "system").value
        own = {"system": Constant(value=None if system is ERROR else system, span=None)}
        return Scope(names=ChainMap[str, Any](own, self._names))

    # ---- the parts of a program

    def layers(self, overrides: tuple[Override, ...], profile: str) -> bool:
        """Apply overrides and the profile; False if the profile is unknown."""
        overlay = Overlay(self)
        overlay.items(self.table.module_settings, Origin(layer="file", detail="", span=None))
        for override in overrides:
            overlay.override(override, self.loader.sources)
        if profile == "auto":
            self.profile = self._matching_profile()
        elif profile == "none":
            for file in self.files():
                requirements.check_conditions(file)
        else:
            known = imports.profiles(self)
            if profile not in known:
                place, text = surface.typed("--profile"), surface.option("--profile", profile)
                self.loader.sources[place] = SourceFile(place, text)
                begin = text.rindex(profile)
                span = Span(place, begin, begin + len(profile))
                what = "there is no profile"
                none = "" if known else "the file has no profiles"
                self.ctx.unknown("F101", what, profile, span, known, none)
                return False
            self.profile = profile
        for file in self.files():
            if self.profile in file.table.profiles:
                apart = frozenset() if file is self else imports.left_behind(file)
                Overlay(file).profile(file.table.profiles[self.profile], apart)
        self._schedule_mode()
        self._memo.clear()
        for file in self.files():
            file.params.values.clear()
        return True

    def files(self) -> tuple[Self, ...]:
        """Return all imported modules, then this file."""
        return (*imports.modules(self), self)

    def _matching_profile(self) -> str | None:
        for file in (self, *imports.modules(self)):
            for name, profile in file.table.profiles.items():
                if profile.when is not None and requirements.holds(profile.when, file):
                    return name
        return None

    def _schedule_mode(self) -> None:
        """Under `schedule sync`, drop settings that only `schedule async` has. Report those set in
        the same layer as `sync`, or in a stronger one."""
        declared = self.table.declared["schedule"]
        if declared.label != "sync":
            return
        for name in ASYNC_ONLY[:3]:
            entry = declared.entries.get(name)
            if entry is None:
                continue
            if RANK[entry.origin.layer] >= RANK[declared.label_layer]:
                message = f"`{name}` applies only to `schedule async`, but this schedule is `sync`"
                self.ctx.error("F103", message, entry.path_span)
            del declared.entries[name]

    def imports(self) -> None:
        for alias, decl in self.table.imports.items():
            found: Scope | None
            if alias in self.modules:
                found = self.modules[alias].scope
            elif isinstance(decl, ast.ImportPython):
                from forgedsl.hir.pyimport import python_scope  # most files import no Python

                found = python_scope(decl, self.folder, self.ctx, self.rebase)
            elif not imports.is_standard(decl):
                found = None  # a wrong mode has been reported
            else:
                prefix = f"{alias}."
                entries = self.table.param_entries.items()
                given = {k.removeprefix(prefix): e for k, e in entries if k.startswith(prefix)}
                importer = Module(
                    name=self.name,
                    file=ast.File(edition=None, decls=(), span=decl.span),
                    folder=self.folder,
                    is_standard=False,
                )
                found = import_module(decl, importer, self, given, self.loader, self.ctx, ())
            if found is None:
                self.ctx.broken.add(alias)
            self.scope.names[alias] = found if found is not None else Scope(module="")

    def functions(self) -> dict[str, Function]:
        """Resolve the losses, advantages, filters and fns of the file. Their bodies are checked
        last."""
        for name in self.table.params:
            value = self.params.fold(name).value
            found = None if value is ERROR else value
            self.scope.names[name] = Constant(value=found, span=self.table.params[name].name_span)
        functions = {}
        for name, decl in self.table.functions.items():
            if decl.kind == "reward":
                continue
            if isinstance(decl, ast.FnDecl):
                made = self._function(decl)
                if made is None:
                    continue
                functions[name] = made
            else:
                alias = bound(decl, self)
                if alias is None:
                    continue
                functions[name] = alias
            self.scope.names[name] = functions[name]
        return functions

    def _function(self, decl: ast.FnDecl) -> Function | None:
        if decl.kind == "loss" and not isinstance(decl.body, ast.Block):
            from forgedsl.hir.pyloss import is_python, python_loss  # most losses have statements

            if is_python(self, decl):
                return python_loss(self, decl)
        return build_function(decl, self.scope, self.ctx)

    def check_bodies(self, functions: dict[str, Function]) -> None:
        for name, function in functions.items():
            if function.scope is self.scope:
                self.used_by[name] = check_function(function, self.ctx, self.loader.checked)

    def decls(self) -> list[Decl]:
        """Resolve the declarations of the file. Of a module, evals and run settings are left
        out."""
        own = {
            name: self.decl(declared)
            for name, declared in self.table.declared.items()
            if declared.owner is self
            and declared.kind.name not in ("reward", "environment")
            and (self.parent is None or imports.is_offered(declared))
        }
        self.scope.names.update({n: d for n, d in own.items() if n not in self.scope.names})
        return list(own.values())

    def decl(self, declared: Declared) -> Decl:
        """Resolve a declaration: evaluate all its settings."""
        kind, entries = declared.kind, declared.entries
        settings = {
            name: self.setting(declared, name) if value is None or name in entries else value
            for name, value in defaults(kind).items()
        }
        settings |= {n: self.setting(declared, n) for n in entries if n not in settings}
        args: tuple[Any, ...] = ()
        if declared.ctor is not None:
            model = self.model_of(declared)
            args = tuple(
                a.value if isinstance(a, ast.String) else Ref(name=model.name if model else a.text)
                for a in declared.ctor_args
            )
            self._check_model(declared)
        return Decl(
            kind=declared.kind.name,
            name=declared.name,
            ctor=declared.ctor,
            ctor_args=args,
            head=declared.head,
            label=declared.label,
            settings=settings,
            doc=getattr(declared.node, "doc", ""),
            span=declared.span,
            name_span=declared.name_span,
        )

    def _check_model(self, declared: Declared) -> None:
        path = declared.ctor_args[0]
        if isinstance(path, ast.String):
            return
        if self.model_of(declared) is not None:
            self.used |= {path.text, path.parts[0]}
            return
        other = self.table.declared.get(path.text)
        if other is not None:
            message = f"`{declared.ctor}` needs a model, but `{path.text}` is a {other.kind.name}"
            self.ctx.error("F109", message, path.span)
            return
        models = [n for n, d in self.table.declared.items() if d.kind.name == "model"]
        self.ctx.unknown("F101", "there is no model", path.text, path.span, models)
