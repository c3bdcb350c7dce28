"""AST + profile + overrides -> Program: names resolved, every value folded, every setting filled.

    table (who declares and sets what) -> modules -> overrides -> profile -> imports and functions
    -> rewards -> settings, each evaluated once on demand -> flow -> requirements -> Program

Mistakes go to the reporter. The result is None if the profile is unknown.
"""

from __future__ import annotations

from pathlib import Path

from forgedsl import extensions
from forgedsl.hir import imports, requirements
from forgedsl.hir.context import ERROR
from forgedsl.hir.evals import with_losses
from forgedsl.hir.flow import resolve_flow
from forgedsl.hir.modules import Loader
from forgedsl.hir.overlay import Override
from forgedsl.hir.resolver import Resolver
from forgedsl.hir.rewards import resolve_rewards
from forgedsl.ir.program import Decl, EnvironmentDecl, FlowStep, Function, Program, RewardDecl
from forgedsl.operations.registry import declarations
from forgedsl.sizes.hosts import Host
from forgedsl.syntax import ast


def resolve(
    file: ast.File,
    *,
    name: str,
    folder: Path | None,
    loader: Loader,
    profile: str = "auto",
    overrides: tuple[Override, ...] = (),
    host: Host | None = None,
    allow_missing_params: bool = False,
) -> Program | None:
    """Resolve a parsed file under a profile ("auto", "none", or its name). None if the profile is
    unknown; otherwise check `loader.reporter.has_errors` before relying on the values.
    With `allow_missing_params`, parameters of a module may have no value (their value is ERROR)."""
    if folder is not None and folder not in loader.extended:
        extensions.use_near(folder / Path(name).name)
        loader.extended.add(folder)
    resolver = Resolver(file, name, folder, loader, host or Host())
    resolver.params.is_open = allow_missing_params and is_module(file)
    imports.open_modules(resolver)
    if not resolver.layers(overrides, profile):
        return None
    return _program(resolver)


def is_module(file: ast.File) -> bool:
    """True if a file is a module, to be imported: it has neither a flow nor a schedule."""
    kinds = {decl.kind for decl in file.decls if isinstance(decl, ast.BlockDecl)}
    return not kinds & {"flow", "schedule"}


def _program(resolver: Resolver) -> Program:
    files = resolver.files()
    functions: list[dict[str, Function]] = []
    rewards: dict[str, RewardDecl] = {}
    environments: dict[str, EnvironmentDecl] = {}
    for file in files:
        file.imports()
        functions.append(file.functions())
    for file in files:
        resolve_rewards(file, rewards)
        if any(declared.kind.name == "environment" for declared in file.table.declared.values()):
            from forgedsl.hir.environments import resolve_environments  # most files have none

            resolve_environments(file, environments)
    decls = {decl.name: decl for file in files for decl in file.decls()}
    flow = resolve_flow(resolver, functions[-1])
    decls = with_losses(decls, resolver, functions[-1])
    for file, bodies in zip(files, functions, strict=True):
        file.check_bodies(bodies)
        requirements.check(file)
    return _assembled(resolver, functions[-1], rewards, environments, decls, flow)


def _assembled(
    resolver: Resolver,
    functions: dict[str, Function],
    rewards: dict[str, RewardDecl],
    environments: dict[str, EnvironmentDecl],
    decls: dict[str, Decl],
    flow: tuple[FlowStep, ...],
) -> Program:
    """Assemble the Program from its own declarations and those that it needs of modules."""
    table = resolver.table
    if resolver.modules:
        needed = imports.needed(decls, rewards, environments, flow)
        decls = {name: decl for name, decl in decls.items() if name in needed}
        rewards = {name: reward for name, reward in rewards.items() if name in needed}
        environments = {name: each for name, each in environments.items() if name in needed}

    def of(*kinds: str) -> dict[str, Decl]:
        return {name: decl for name, decl in decls.items() if decl.kind in kinds}

    singletons = ("run", "cluster", "launcher", "checkpoint", "logging", "proofs", "colocate")
    run_name = decls["run"].settings["name"].value
    modules = (*imports.modules(resolver),)
    imported = imports.places(resolver, (*decls, *rewards, *environments), functions)
    return Program(
        file=resolver.name,
        name=resolver.stem if run_name is ERROR else run_name,
        profile=resolver.profile,
        params={
            f"{file.prefix}{name}": file.params.fold(name)
            for file in (resolver, *modules)
            for name in file.table.params
        },
        models=of("model"),
        datasets=of("dataset"),
        services=of("service"),
        rewards=rewards,
        environments=environments,
        declared={kind: of(kind) for kind in declarations()},
        rubrics=of("rubric"),
        functions=functions,
        flow=flow,
        schedule=decls["schedule"] if table.declared["schedule"].label is not None else None,
        evals=of("eval"),
        singletons=of(*singletons),
        spans=table.spans | imported,
        scope=resolver.scope,
        used=frozenset(resolver.in_use().union(imported)),
    )
