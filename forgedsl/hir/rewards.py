"""Resolves rewards: a body in the language, a Python function, or a standard reward."""

from __future__ import annotations

import re
from typing import Any

from forgedsl.hir.context import ERROR
from forgedsl.hir.file import File
from forgedsl.hir.functions import build_function, check_function
from forgedsl.hir.judges import resolve_score_call
from forgedsl.hir.table import part_span
from forgedsl.ir.program import Constructor, Decl, Function, PythonFunction, RewardDecl, Scope
from forgedsl.records import replace
from forgedsl.schema.constructors import JUDGE, STANDARD_REWARDS
from forgedsl.services.registry import kind_of
from forgedsl.settings import ANY, REQUIRED, Parameter, Signature
from forgedsl.source import Span
from forgedsl.syntax import ast

NUMBERS = ("f32", "float")
"""types that a reward may declare for its result"""
Body = Function | PythonFunction | Constructor


def resolve_rewards(resolver: File, rewards: dict[str, RewardDecl]) -> None:
    """Resolve the rewards of a file and of its modules into `rewards`, by their names in the
    program. They are also added to the scope, where rubrics look them up."""
    for name, node in resolver.table.functions.items():
        if node.kind != "reward":
            continue
        declared = resolver.table.declared[name]
        settings = {s.name: resolver.setting(declared, s.name) for s in declared.kind.settings}
        imported = _imported(resolver, node, rewards)
        if imported is None:
            body = _body(resolver, node)
        else:
            body = imported.body
            given = {name: settings[name] for name in declared.entries}
            settings = {**imported.settings, **given}
        _rebase_files(resolver, settings, body)
        resolver.scope.names[name] = Decl(
            kind="reward",
            name=declared.name,
            ctor=None,
            ctor_args=(),
            label=None,
            settings=settings,
            doc=node.doc,
            span=node.span,
            name_span=node.name_span,
        )
        if body is not None:
            rewards[declared.name] = RewardDecl(
                name=declared.name, body=body, settings=settings, span=node.span
            )


def _rebase_files(resolver: File, settings: dict[str, Any], body: Body | None) -> None:
    """Make the paths of `files` relative to the file that is compiled. Report `files` of a reward
    that is not in Python."""
    files = settings["files"]
    if files.origin.layer == "default" or not isinstance(files.value, list):
        return
    if body is not None and not isinstance(body, PythonFunction):
        message = "`files` has no effect here: only a reward in Python reads files"
        resolver.ctx.error("F113", message, files.origin.span or body.span)
        return
    settings["files"] = replace(files, value=[resolver.rebase(path) for path in files.value])


def _imported(
    resolver: File, node: ast.FnDecl | ast.BindDecl, rewards: dict[str, RewardDecl]
) -> RewardDecl | None:
    """Resolve `reward correct = m.correct`, which gives a module's reward another name."""
    if not isinstance(node, ast.BindDecl) or not isinstance(node.value, ast.Path):
        return None
    found = resolver.scope.lookup(node.value.parts)
    if not isinstance(found, Decl) or len(node.value.parts) == 1:
        return None
    resolver.used.add(node.value.parts[0])
    return rewards.get(found.name)


def _body(resolver: File, node: ast.FnDecl | ast.BindDecl) -> Body | None:
    if isinstance(node, ast.BindDecl):
        return _bound(resolver, node.value)
    fields = {field.name for field in node.fields}
    if isinstance(node.body, ast.Path) and node.body.parts[0] not in fields:
        found = resolver.scope.lookup(node.body.parts)
        if isinstance(found, PythonFunction):
            return _bound(resolver, node.body)
        if isinstance(resolver.scope.names.get(node.body.parts[0]), Scope):
            return _bound(resolver, node.body)
    if isinstance(node.body, ast.Call):
        found = resolver.scope.lookup(node.body.function.parts)
        if isinstance(found, PythonFunction):
            return _bound(resolver, node.body)
    function = build_function(node, resolver.scope, resolver.ctx)
    _check_signature(resolver, node)
    resolver.used |= check_function(function, resolver.ctx, resolver.loader.checked)
    return function


def _check_signature(resolver: File, node: ast.FnDecl) -> None:
    first = node.fields[0] if node.fields else None
    is_rollout = isinstance(first and first.type, ast.NamedType) and first.type.name == "Rollout"  # type: ignore[union-attr]
    if not is_rollout:
        message = "the first parameter of a reward must be the rollout"
        span = first.span if first is not None else node.name_span
        resolver.ctx.error("F109", message, span, help=f"`reward {node.name}(r: Rollout) -> f32`")
    if len(node.fields) > 2:
        message = "a reward can have only two parameters: the rollout and its target"
        resolver.ctx.error("F114", message, node.fields[2].span)
    if node.result is not None and getattr(node.result, "name", "") not in NUMBERS:
        message = f"the result of reward `{node.name}` is f32, but another type is declared here"
        resolver.ctx.error("F109", message, node.result.span, help="declare `-> f32`")


def _bound(resolver: File, value: ast.Expr) -> Body | None:
    """Resolve `rl.math_equal(tolerance = 1e-6)`, `rl.exact`, `judge.score`, or a module's
    reward."""
    ctx = resolver.ctx
    if isinstance(value, ast.Path):
        path, call = value, None
    elif isinstance(value, ast.Call):
        path, call = value.function, value
    else:
        ctx.error("F109", "the value of a reward must be a function", value.span)
        return None
    declared, depth = resolver.declared_at(path)
    if declared is not None and declared.ctor is not None and len(path.parts) == depth + 1:
        return resolve_score_call(resolver, declared, path, value)
    resolver.used.add(path.parts[0])
    module, deep = resolver.scope.names.get(path.parts[0]), 1
    while deep < len(path.parts) - 1 and isinstance(module, Scope):  # `common.rl.exact`
        module, deep = module.names.get(path.parts[deep]), deep + 1
    if isinstance(module, Scope) and module.module.startswith("std/"):
        signature = STANDARD_REWARDS.get(".".join(path.parts[deep:]))
        if signature is not None:
            args = call.args if call is not None else ()
            bound = resolver.coercer.bind(signature, args, value.span, resolver.scope)
            if bound is ERROR or _bad_pattern(resolver, bound.get("pattern"), value):
                return None
            if _bad_tag(resolver, bound.get("tag"), value):
                return None
            return Constructor(name=signature.name, args=bound, span=value.span)
    found = resolver.scope.lookup(path.parts)
    if isinstance(found, PythonFunction):
        return _python(resolver, found, call, value.span)
    if isinstance(found, Function) and found.kind in {"reward", "fn"}:
        if call is None:
            return found
        ctx.error("F114", f"name `{path.text}` without arguments here", call.span)
        return None
    _not_found(resolver, path, module, deep)
    return None


def _python(
    resolver: File, found: PythonFunction, call: ast.Call | None, span: Span
) -> PythonFunction | None:
    """Resolve a Python function, or a class with the arguments of its objects."""
    of_class = found.makes == "class"
    params = found.init if of_class else tuple(p for p in found.params if not p.by_position)
    if call is not None and found.makes == "object":
        message = f"`{found.name}` is an object: name it without arguments"
        resolver.ctx.error("F114", message, call.span)
        return None
    signature = Signature(
        name=found.name,
        doc=f"`{found.name}` in {found.module}",
        params=tuple(
            Parameter(
                name=param.name,
                type=ANY,
                default=REQUIRED if of_class and param.required else None,
                keyword=param.keyword or not of_class,
            )
            for param in params
        ),
    )
    args = call.args if call is not None else ()
    bound = resolver.coercer.bind(signature, args, span, resolver.scope)
    if bound is ERROR:
        return None
    order = [param.name for param in params if not param.keyword]
    given = {arg.name or order[index] for index, arg in enumerate(args)}
    plain = {name: plain_value(bound[name]) for name in bound if name in given}
    return replace(found, args=plain)


def plain_value(value: Any) -> Any:
    """Convert a value to plain Python: durations to seconds, sizes to bytes."""
    if isinstance(value, list):
        return [plain_value(item) for item in value]
    return float(value) if isinstance(value, float) else value


def _bad_pattern(resolver: File, pattern: str | None, value: ast.Expr) -> bool:
    """Report a pattern that is no valid regular expression; True if so."""
    try:
        re.compile(pattern) if pattern else None
    except re.error as error:
        message = f"`{pattern}` is not a valid regular expression: {error}"
        resolver.ctx.error("F113", message, value.span)
        return True
    return False


def _bad_tag(resolver: File, tag: str | None, value: ast.Expr) -> bool:
    """Report an invalid tag name; True if so."""
    if tag is None or re.fullmatch(r"\w[\w-]*", tag):
        return False
    message = f"`{tag}` is not a tag name: use letters and digits, without `<` and `>`"
    resolver.ctx.error("F113", message, value.span)
    return True


def _not_found(resolver: File, path: ast.Path, module: object, deep: int) -> None:
    if isinstance(module, Scope) and len(path.parts) > 1:
        known = [*module.names]
        if module.module.startswith("std/"):
            known += STANDARD_REWARDS
        if not module.module and not known:
            return  # the import failed, which has been reported
        code = "X801" if module.module.endswith(".py") else "F101"
        what = f"`{'.'.join(path.parts[:deep])}` has no function"
        span, last = part_span(path, deep), ".".join(path.parts[deep:])
        if last in module.others:
            help_text = f"{module.module} has this name, but it is {module.others[last]}"
            resolver.ctx.error(code, f"{what} `{last}`", span, help=help_text)
        else:
            resolver.ctx.unknown(code, what, last, span, known)
    elif path.parts[1:] == (JUDGE.name,):
        kinds = {n: kind_of(d.ctor) for n, d in resolver.table.declared.items() if d.ctor}
        judging = [n for n, kind in kinds.items() if kind.judges or kind.trains]
        name = path.parts[0]
        help_text = f"declare the judge: `service {name} : vllm(MODEL) {{ ... }}`"
        span = part_span(path, 0, 0)
        resolver.ctx.unknown("F101", "undefined service", name, span, judging, help_text)
    else:
        known = [n for n, s in resolver.scope.names.items() if isinstance(s, Scope)]
        what = "undefined function"
        resolver.ctx.unknown("F101", what, path.text, path.span, known)
