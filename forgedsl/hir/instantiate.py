"""A parsed module + arguments -> Scope: its constants, its functions, and those of its imports."""

from __future__ import annotations

from typing import Any

from forgedsl.diagnostics import Label
from forgedsl.hir.collect import alias_of
from forgedsl.hir.context import ERROR, Context
from forgedsl.hir.evaluate import NamesOfFile
from forgedsl.hir.functions import build_function, check_function
from forgedsl.hir.modules import Loader, Module, standard_modules
from forgedsl.hir.params import Params
from forgedsl.hir.table import Entry
from forgedsl.ir.program import Constant, Origin, Scope
from forgedsl.syntax import ast


class ModuleNames:
    """Names visible inside a module: its parameters and those of its imports."""

    def __init__(self, scope: Scope, ctx: Context) -> None:
        self.scope = scope
        self.ctx = ctx
        self.params = Params({}, {}, self, lambda entry: self, ctx)

    def knows(self, name: str) -> bool:
        return name in self.params.params or name in self.scope.names

    def constants(self) -> tuple[str, ...]:
        return (*self.params.params, *self.scope.names)

    def origins(self, expr: ast.Expr) -> tuple[Label, ...]:
        return self.params.origins(expr)

    def value_of(self, path: ast.Path) -> Any:
        if len(path.parts) == 1 and path.text in self.params.params:
            return self.params.fold(path.text).value
        found = self.scope.lookup(path.parts)
        if isinstance(found, Constant):
            return found.value
        what = "undefined name"
        return self.ctx.unknown("F101", what, path.text, path.span, self.constants())


def instantiate(
    module: Module,
    arguments: dict[str, Entry],
    outer: NamesOfFile,
    loader: Loader,
    ctx: Context,
    trail: tuple[str, ...] = (),
) -> Scope:
    """Return the scope of `module`. `arguments` are by parameter; `trail` is the chain of
    importers."""
    scope = Scope(module=module.name)
    names = ModuleNames(scope, ctx)
    declared = {d.name: d for d in module.file.decls if isinstance(d, ast.Param)}
    names.params = Params(declared, arguments, names, lambda entry: outer, ctx)
    for name, entry in arguments.items():
        if name not in declared:
            what = f"module `{module.name}` has no parameter"
            ctx.unknown("F103", what, name, entry.path_span, declared)
    for decl in module.file.decls:
        if isinstance(decl, ast.ImportForge):
            _nested_import(decl, module, scope, names, loader, ctx, trail)
    broken: set[str] = set()
    for name, param in declared.items():
        value = names.params.fold(name).value
        if value is ERROR:
            broken.add(name)
        else:
            scope.names[name] = Constant(value=value, span=param.name_span)
    functions = []
    for decl in module.file.decls:
        if isinstance(decl, ast.FnDecl):
            if decl.name in scope.names:
                related = (Label(text="used here", span=decl.name_span),)
                message = f"`{decl.name}` is declared twice"
                ctx.error("F102", message, decl.name_span, related=related)
                continue
            function = build_function(decl, scope, ctx)
            scope.names[decl.name] = function
            functions.append(function)
    if not module.is_standard:  # tests check the standard library, so that users do not wait for it
        for function in functions:
            check_function(function, ctx, loader.checked, broken)
    return scope


def _nested_import(
    decl: ast.ImportForge,
    module: Module,
    scope: Scope,
    names: NamesOfFile,
    loader: Loader,
    ctx: Context,
    trail: tuple[str, ...],
) -> None:
    imported = import_module(decl, module, names, {}, loader, ctx, trail)
    if imported is not None:
        scope.names[alias_of(decl)] = imported


def import_module(
    decl: ast.ImportForge,
    importer: Module,
    names: NamesOfFile,
    overrides: dict[str, Entry],
    loader: Loader,
    ctx: Context,
    trail: tuple[str, ...],
) -> Scope | None:
    """Load and instantiate the module that `decl` names. Cycles are F116."""
    arguments = argument_entries(decl, ctx) | overrides
    if not arguments and decl.target in standard_modules():
        library = loader.library(decl.target)
        if library is not None:
            return library
    module = loader.load(decl, importer.folder, ctx)
    if module is None:
        return None
    key = f"{module.folder}/{module.name.rpartition('/')[2].removesuffix('.forge')}"
    if key in trail:
        shown = " -> ".join(f"`{k.rpartition('/')[2]}`" for k in (*trail[trail.index(key) :], key))
        ctx.error("F116", f"modules import each other: {shown}", decl.target_span)
        return None
    return instantiate(module, arguments, names, loader, ctx, (*trail, key))


def argument_entries(decl: ast.ImportForge, ctx: Context) -> dict[str, Entry]:
    """Return the arguments of `m(param = v)` as entries of layer `module`."""
    entries: dict[str, Entry] = {}
    for arg in decl.args:
        if arg.name is None:
            message = "give the parameters of a module by name"
            ctx.error("F114", message, arg.span, help="`import ... as m(param = value)`")
            continue
        start = arg.span.start
        span = type(arg.span)(arg.span.file, start, start + len(arg.name))
        origin = Origin(layer="module", detail=f"import {decl.target}", span=arg.value.span)
        entries[arg.name] = Entry(expr=arg.value, origin=origin, path_span=span)
    return entries
