"""F104 unused: a declaration that nothing reads.

An unused reward or loss is usually a forgotten term: the run trains, but not on what was intended.

    reward brevity(r: Rollout) -> f32 = clamp(1.0 - r.num_tokens / 64, 0.0, 1.0)
    rubric score { score = correct, on_truncated = 0.0 }      # brevity is missing

Use it, or remove the declaration. A reward with `monitor = true` is logged and needs no other use.
The rule also fires for an import that nothing names, but not for unused declarations of a module.
It fires for a statistic such as `entropy` that a loss declares, if neither its objective nor a
report depends on it. It fires for a number that a loss declares and never reads, and for a field
that is put into a buffer and that no draw reads (it is not stored). It fires for the result of a
filter that no statement reads: then the groups that it drops are trained all the same.
"""

from collections.abc import Iterable, Iterator

from forgedsl.diagnostics import Edit, Fix
from forgedsl.ir.program import FlowInput, FlowStep, Scope
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View
from forgedsl.losses.tree import ROW_STATISTICS
from forgedsl.operations.registry import operation
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.syntax.walk import names
from forgedsl.types.flow import Role

finding = rule(__doc__, "W", everywhere=True)


def _without(view: View, span: Span) -> Fix | None:
    """Return the edit that removes an import, if it is alone on its line."""
    text = view.sources[span.file].text if span.file in view.sources else ""
    start, end = text.rfind("\n", 0, span.start) + 1, text.find("\n", span.end) + 1
    if text[start:end].strip() != text[span.start : span.end]:
        return None
    edit = Edit(text="", span=Span(span.file, start, end))
    return Fix(message="remove the import", edits=(edit,), safe=False)


def check(view: View) -> Findings:
    program = view.program
    if not program.flow:
        return  # a module: its importers use the declarations
    groups = {
        "parameter": program.params,
        "model": program.models,
        "dataset": program.datasets,
        "service": program.services,
        "reward": program.rewards,
        "rubric": program.rubrics,
        "environment": program.environments,
        **program.declared,
        "function": program.functions,
        "import": [n for n, found in program.scope.names.items() if isinstance(found, Scope)],
    }
    monitors = {n for n, reward in program.rewards.items() if reward.settings["monitor"].value}
    used = program.used | monitors
    for what, group in groups.items():
        for name in group:
            if name not in used and name in program.spans:
                kind = program.functions[name].kind if what == "function" else what
                span = program.spans[name]
                yield finding(
                    f"{kind} `{name}` is never used",
                    span,
                    help="use it, or remove it",
                    fix=_without(view, span) if what == "import" else None,
                )
    for function, field, is_named in _fields(view):
        why = "no value that it computes depends on it" if is_named else "its body does not read it"
        yield finding(
            f"loss `{function}` declares `{field.name}`, but {why}",
            field.span,
            help="leave it out, or use it"
            + (": `- 0.001 * entropy` in the objective" if field.name == "entropy" else ""),
        )
    for step in _without_effect(program.flow):
        yield finding(
            f"`{step.name}` is never used: no statement reads the groups that are kept",
            step.span,
            help=f"`replay({step.name}, ...)`, or remove the filter",
        )
    for drawn, put in _unread(program.flow):
        yield finding(
            f"`{put.argument}` is put into a buffer, but no draw reads `{drawn}.{put.argument}`",
            put.span,
            help=f"`{put.argument} = {drawn}.{put.argument}` in a `replay`, or leave it out",
        )


def _fields(view: View) -> Iterator[tuple[str, ast.Field, bool]]:
    """Yield fields of losses of the file that have no effect: statistics that the trainer computes
    for a loss although nothing in it depends on them, and numbers that its body never names."""
    for name, function in view.program.functions.items():
        if function.kind != "loss" or function.module or function.python is not None:
            continue
        named = {parts[0] for parts in view.shared.names(function)}
        own = named.intersection(ROW_STATISTICS) - {"logprob"}
        read = named & _followed(function.statements) if own else named
        for field in function.fields:
            is_number = isinstance(field.type, ast.NamedType)
            is_statistic = field.name in ROW_STATISTICS and field.name != "logprob"
            if (is_number and field.name not in named) or (is_statistic and field.name not in read):
                yield name.rpartition(".")[2], field, field.name in named


def _followed(statements: Iterable[object]) -> set[str]:
    """Return the names that the objective and the reports of a loss depend on, also through its
    local names."""
    read: set[str] = set()
    for statement in reversed([*statements]):
        if not isinstance(statement, ast.Assign | ast.TypedAssign):
            read |= {parts[0] for parts in names(statement)}
            continue
        own = statement.path.text if isinstance(statement, ast.Assign) else statement.name
        if own in read:
            read |= {parts[0] for parts in names(statement.value)}
    return read


def _without_effect(flow: tuple[FlowStep, ...]) -> Iterator[FlowStep]:
    """Yield the filters whose result no statement reads."""
    read = {each.edge for step in flow for each in step.inputs}
    read |= {step.receiver for step in flow}
    for step in flow:
        if Role.DROPS in step.roles and step.name is not None and step.name not in read:
            yield step


def _unread(flow: tuple[FlowStep, ...]) -> Iterator[tuple[str, FlowInput]]:
    read = {(i.edge, i.attribute) for step in flow for i in step.inputs}
    for draw in flow:
        put = operation(draw.op).stands_for(draw, flow)
        for part in put.inputs if put is not None and draw.name else ():
            if part.argument not in ("rollout", "keep") and (draw.name, part.argument) not in read:
                yield str(draw.name), part
