"""`import "x" as m`: the declarations of another .forge file, under the names `m.NAME`.

    importer --opened--> a Resolver for each module: its table, its names, its parameters
    importer.table.declared["m.generator"]: the module's own entry, shared
    Program holds those declarations of modules that the flow or the file needs

The text of a module is evaluated with the module's names; overrides by an importer are evaluated
with the importer's. A module's flow, evals and run settings are not imported: those of the program
that is run count. A profile of a module applies together with the importer's profile of the same
name. Modules of the standard library hold functions only; see `hir.instantiate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from forgedsl import surface
from forgedsl.hir.file import File
from forgedsl.hir.instantiate import argument_entries
from forgedsl.hir.table import Declared, part_span
from forgedsl.ir.program import (
    Constructor,
    Decl,
    Deferred,
    FlowStep,
    Function,
    Ref,
    RewardDecl,
    Scope,
    Value,
)
from forgedsl.records import fields, replace
from forgedsl.schema.kinds import SYNC
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.syntax.walk import names

F = TypeVar("F", bound=File)


def is_standard(decl: ast.ImportForge) -> bool:
    """True if an import path names a module of the standard library."""
    return decl.target == "std" or decl.target.startswith("std/")


def open_modules(resolver: File, trail: tuple[str, ...] = ()) -> None:
    """Read the imported files and enter their declarations. `trail` is the chain of importing
    files; it is empty for the program itself."""
    table = resolver.table
    for alias, decl in table.imports.items():
        if not isinstance(decl, ast.ImportForge) or is_standard(decl):
            continue
        trail = trail or (str(Path(resolver.name).resolve()),)
        module = resolver.loader.load(decl, resolver.folder, resolver.ctx)
        if module is not None and module.key in trail:
            files = (*trail[trail.index(module.key) :], module.key)
            shown = " -> ".join(f"`{Path(file).stem}`" for file in files)
            message = f"modules import each other: {shown}"
            resolver.ctx.error("F116", message, decl.target_span)
            module = None
        if module is None:
            resolver.ctx.broken.add(alias)
            continue
        child = type(resolver)(
            module.file,
            module.file.span.file,
            module.folder,
            resolver.loader,
            resolver.host,
            parent=resolver,
            alias=alias,
        )
        child.params.imported = (child.prefix.removesuffix("."), decl.target_span)
        resolver.modules[alias] = child
        child.table.param_entries.update(argument_entries(decl, resolver.ctx))
        open_modules(child, (*trail, module.key))
        _check_parameters(child, decl, resolver)
        offered = {n: d for n, d in child.table.declared.items() if is_offered(d)}
        table.declared.update({f"{alias}.{name}": d for name, d in offered.items()})
        resolver.ctx.broken.update(f"{alias}.{name}" for name in child.ctx.broken)


def adopt(child: File, parent: File) -> None:
    """Replace the run settings of a module by those of the program that imports it."""
    for name, declared in parent.table.declared.items():
        if declared.kind.singleton:
            child.table.declared[name] = declared
    child.ctx.broken |= {f"{child.prefix}{name}" for name in child.ctx.broken}


def _check_parameters(child: File, decl: ast.ImportForge, importer: File) -> None:
    for name, entry in [*child.table.param_entries.items()]:
        if name not in child.table.params:
            what = f"module `{decl.target}` has no parameter"
            importer.ctx.unknown("F103", what, name, entry.path_span, child.table.params)
            del child.table.param_entries[name]


def modules(resolver: F) -> Iterator[F]:
    """Yield all modules that a file imports, directly or not, each after those that it imports
    itself."""
    for child in resolver.modules.values():
        yield from modules(child)
        yield child


def profiles(resolver: File) -> tuple[str, ...]:
    """The names of the file's profiles and of those of its modules."""
    files = (resolver, *modules(resolver))
    return tuple(dict.fromkeys(name for file in files for name in file.table.profiles))


def is_offered(declared: Declared) -> bool:
    """True if an importer may name this declaration: not the flow, evals or settings of the run."""
    return not declared.kind.singleton and declared.kind.name != "eval"


def left_behind(module: File) -> frozenset[str]:
    """Return the names that an importer does not get."""
    apart = (n for n, d in module.table.declared.items() if not is_offered(d))
    return frozenset((SYNC.name, *apart))


def is_known(module: File, name: str) -> bool:
    """True if an importer may use `name`."""
    table = module.table
    declared = table.declared.get(name)
    if declared is not None:
        return is_offered(declared)
    return name in table.params or name in table.functions or name in table.imports


def inner(path: ast.Path) -> ast.Path:
    """Return a path as the module writes it: `m.generator.procs` -> `generator.procs`."""
    return ast.Path(parts=path.parts[1:], span=part_span(path, 1))


def unknown_member(resolver: File, path: ast.Path, candidates: Iterable[str] = ()) -> Any:
    """Report `m.NAME` if the module has nothing of that name that can be used here."""
    alias, name, *_ = *path.parts, ""
    module = resolver.modules[alias]
    if not name:
        message = f"`{alias}` is a module; name one of its declarations"
        return resolver.ctx.error("F109", message, path.span, help=f"`{alias}.NAME`")
    if name in module.modules and len(path.parts) > 2:
        return unknown_member(module, inner(path), candidates)
    imported = module.scope.names.get(name)
    if isinstance(imported, Scope) and len(path.parts) > 2:  # a module of the standard library
        what, last = f"`{alias}.{name}` has no member", ".".join(path.parts[2:])
        return resolver.ctx.unknown("F101", what, last, part_span(path, 2), imported.names)
    span = part_span(path, 1, 1)
    apart = _stays_behind(module, alias, name)
    if apart is not None:
        message, help_text = apart
        return resolver.ctx.error("F119", message, span, help=help_text)
    table = module.table
    offered = [n for n, d in table.declared.items() if is_offered(d)]
    known = tuple(candidates) or (*offered, *table.functions, *table.params, *table.imports)
    if f"{alias}.{name}" in resolver.ctx.broken:
        return resolver.ctx.unknown("F101", "", f"{alias}.{name}", span, ())
    what = f"`{alias}` has no member"
    return resolver.ctx.unknown("F101", what, name, span, dict.fromkeys(known))


def _stays_behind(module: File, alias: str, name: str) -> tuple[str, str] | None:
    """Return a message about a name that an import does not provide, and the remedy."""
    table = module.table
    declared = table.declared.get(name)
    if table.flow is not None and table.flow.name == name:
        message = f"`{name}` is the flow of `{alias}`, which an import does not provide"
        return message, "declare a flow here: `flow train { ... }`"
    if declared is not None and declared.kind.name == "eval":
        message = f"`{name}` is an eval of `{alias}`, which an import does not provide"
        dataset = declared.entries.get("dataset")
        named = dataset.expr if dataset is not None else None
        shown = f"{alias}.{named.text}" if isinstance(named, ast.Path) else "..."
        return message, f"declare it here: `eval {name} {{ dataset = {shown}, ... }}`"
    if declared is not None and declared.kind.singleton:
        message = f"`{name}` is a setting of the whole run, which module `{alias}` cannot provide"
        return message, f"set `{name}` in the program itself"
    if name in table.profiles:
        message = f"`{name}` is a profile of `{alias}`, which cannot be used like this"
        option = surface.option("--profile", name)
        return message, f"`{option}` applies it to the declarations of the module"
    return None


def with_rewards_named(value: Deferred) -> Deferred:
    """Rewrite the score of a rubric: rewards get the names that they have in the program."""

    def named(part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(map(named, part))
        if not isinstance(part, ast.Node):
            return part
        if isinstance(part, ast.Path):
            found = value.scope.lookup(part.parts)
            if isinstance(found, Decl) and found.kind == "reward":
                return replace(part, parts=tuple(found.name.split(".")))
            return part
        return replace(part, **{f.name: named(getattr(part, f.name)) for f in fields(part)})

    return replace(value, expr=named(value.expr))


# ---- declarations of modules that a program needs


def needed(
    decls: Mapping[str, Decl],
    rewards: Mapping[str, RewardDecl],
    environments: Iterable[str],
    flow: tuple[FlowStep, ...],
) -> set[str]:
    """Return the file's own declarations, and those that these and the flow use, directly or
    not."""
    pending = [name for name in (*decls, *rewards, *environments) if "." not in name]
    for step in flow:
        pending.append(step.receiver)
        pending += [v.value.name for v in step.settings.values() if isinstance(v.value, Ref)]
    found: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += _uses(decls[name]) if name in decls else ()
            body = rewards[name].body if name in rewards else None
            # an LLM judge or a reward model
            if isinstance(body, Constructor) and "service" in body.args:
                pending.append(str(body.args["service"]))
    return found


def places(
    resolver: File, declared: Iterable[str], functions: Mapping[str, Function]
) -> dict[str, Span]:
    """Return the spans of declarations and functions of modules that the program uses, by name."""
    table = resolver.table
    found = {name: table.declared[name].name_span for name in declared if "." in name}
    for module in modules(resolver):
        params = module.table.params.items()
        found |= {f"{module.prefix}{name}": param.name_span for name, param in params}
        found |= {n: f.span for n, f in functions.items() if f.span.file == module.name}
    return {name: span for name, span in found.items() if name not in table.spans}


def _uses(decl: Decl) -> Iterator[str]:
    for value in (*decl.ctor_args, *decl.settings.values()):
        yield from _references(value)


def _references(value: Any) -> Iterator[str]:
    match value:
        case Value():
            yield from _references(value.value)
        case Ref():
            yield value.name
        case Deferred():
            yield from (".".join(parts) for parts in names(value.expr))
        case Constructor():
            for argument in value.args.values():
                yield from _references(argument)
        case list() | tuple():
            for item in value:
                yield from _references(item)
