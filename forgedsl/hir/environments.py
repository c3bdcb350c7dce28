"""Resolves `environment shop = desk.Desk(rows = 40) { ... }` to its Python class and arguments."""

from __future__ import annotations

from forgedsl.hir.context import ERROR
from forgedsl.hir.file import File
from forgedsl.hir.table import Declared, part_span
from forgedsl.ir.program import EnvironmentDecl, PythonEnvironment, PythonModule, Scope, Value
from forgedsl.records import replace
from forgedsl.schema.constructors import GYMNASIUM, PROGRAM
from forgedsl.settings import ANY, BOOL, FLOAT, INT, REQUIRED, STR, Parameter, Signature, Type
from forgedsl.syntax import ast

TYPES = {"int": INT, "float": FLOAT, "str": STR, "bool": BOOL, "list": Type(base="list", item=ANY)}
NO_AGENT = {
    "max_observation": "which writes its prompts itself",
    "tool_timeout": "which calls its tools itself",
}
"""settings of environments that have no effect on an agent, and the reason"""


def resolve_environments(resolver: File, found: dict[str, EnvironmentDecl]) -> None:
    """Resolve the environments of a file into `found`, by their names in the program."""
    for declared in resolver.table.declared.values():
        if declared.kind.name != "environment" or declared.owner is not resolver:
            continue
        settings = {s.name: resolver.setting(declared, s.name) for s in declared.kind.settings}
        body = _body(resolver, declared)
        if body is not None and not _ignored(resolver, body, settings):
            found[declared.name] = EnvironmentDecl(
                name=declared.name, body=body, settings=settings, span=declared.span,
                name_span=declared.name_span,
            )  # fmt: skip


def _body(resolver: File, declared: Declared) -> PythonEnvironment | None:
    assert isinstance(declared.node, ast.BindDecl)
    value, ctx = declared.node.value, resolver.ctx
    call = value if isinstance(value, ast.Call) else None
    path = call.function if call is not None else value
    if not isinstance(path, ast.Path):
        help_text = f"`environment {declared.node.name} = desk.Desk(rows = 40) {{ procs = 2 }}`"
        ctx.error("F109", "the value of an environment must be a class", value.span, help=help_text)
        return None
    if path.text == PROGRAM.name and not resolver.knows(PROGRAM.name):
        from forgedsl.hir.programs import resolve_program  # most files have none

        return resolve_program(resolver, call, value.span)
    if path.text == GYMNASIUM.name and not resolver.knows(GYMNASIUM.name):
        from forgedsl.hir.gymnasium_calls import resolve_gymnasium

        return resolve_gymnasium(resolver, call, value.span)
    resolver.used.add(path.parts[0])
    found = resolver.scope.lookup(path.parts)
    if not isinstance(found, PythonEnvironment):
        _not_found(resolver, path)
        return None
    if found.problem:
        ctx.error("X802", f"agent `{found.name}` {found.problem}", value.span)
        return None
    bad = next((tool for tool in found.tools if tool.problem), None)
    if bad is not None:
        message = f"tool `{bad.name}` of `{found.name}` {bad.problem}"
        ctx.error("X802", message, value.span)
        return None
    args = call.args if call is not None else ()
    bound = resolver.coercer.bind(signature_of(found), args, value.span, resolver.scope)
    if bound is ERROR:
        return None
    order = [param.name for param in found.init if not param.keyword]
    given = {arg.name or order[index] for index, arg in enumerate(args)}
    return replace(found, args={name: bound[name] for name in bound if name in given})


def _ignored(resolver: File, body: PythonEnvironment, settings: dict[str, Value]) -> bool:
    """Refuse settings of environments that have no effect on an agent."""
    given = [name for name in NO_AGENT if body.agent and settings[name].origin.layer != "default"]
    for name in given:
        message = f"`{name}` has no effect: {body.name} is an agent, {NO_AGENT[name]}"
        resolver.ctx.error("F113", message, settings[name].origin.span or body.span)
    return bool(given)


def signature_of(found: PythonEnvironment | PythonModule) -> Signature:
    """Return the constructor of an environment class, with parameter types from its annotations."""
    return Signature(
        name=found.name,
        doc=f"`{found.name}` in {found.module}",
        params=tuple(
            Parameter(
                name=param.name,
                type=TYPES.get(param.annotation, ANY),
                default=REQUIRED if param.required else None,
                keyword=param.keyword,
            )
            for param in found.init
        ),
    )


def _not_found(resolver: File, path: ast.Path) -> None:
    module = resolver.scope.names.get(path.parts[0])
    if not isinstance(module, Scope):
        known = [n for n, s in resolver.scope.names.items() if isinstance(s, Scope)]
        known += [PROGRAM.name, GYMNASIUM.name]
        resolver.ctx.unknown("F101", "undefined class", path.text, path.span, known)
        return
    if not module.module and not module.names:
        return  # the import failed, which has been reported
    known = [n for n, each in module.names.items() if isinstance(each, PythonEnvironment)]
    what, name = f"`{path.parts[0]}` has no environment", ".".join(path.parts[1:])
    help_text = (
        "the class must be a subclass of forgedsl.environment.Environment or forgedsl.agent.Agent"
    ) + (f"; known are {', '.join(f'`{n}`' for n in sorted(known)[:12])}" if known else "")
    resolver.ctx.unknown("X801", what, name, part_span(path, 1), known, help_text)
