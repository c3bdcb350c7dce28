"""LLM judges and reward models: `reward style = judge.score(prompt = "... {response} ...", scale =
[1, 5])`.

The prompt is a template with the placeholders `{prompt}`, `{response}`, `{target}` and
`{row.COLUMN}`. `{other}` or `{others}` stand for other completions of the same prompt, which the
judge compares. `{{` and `}}` are literal braces. A judge becomes the `Constructor` NAME, with the
arguments of `score` and its `service`. A reward model, `reward liked = scorer.score()`, becomes the
`Constructor` SCORER: its score is the value head's output at the last token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from forgedsl.hir.context import ERROR
from forgedsl.hir.file import File
from forgedsl.hir.table import Declared, part_span
from forgedsl.ir.program import Constructor, Decl, Program, RewardDecl
from forgedsl.operations.registry import written
from forgedsl.schema.constructors import JUDGE
from forgedsl.services.registry import kind_of
from forgedsl.syntax import ast

NAME, SCORER = "judge", "scorer"
PLACEHOLDERS = ("prompt", "response", "target", "other", "others")
OTHER_COMPLETIONS = ("other", "others")
"""placeholders for other completions of the prompt: `other` is one, `others` a list of all"""
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
"""name of an environment variable; API keys do not match, because they have hyphens or are
longer"""
DIGITS = 9
"""the largest grade, so that a grade is one token (a digit)"""


def resolve_score_call(
    resolver: File, declared: Declared, path: ast.Path, value: ast.Expr
) -> Constructor | None:
    """Resolve `SERVICE.score(...)` to a judge; None after reporting a mistake."""
    ctx, kind = resolver.ctx, kind_of(declared.ctor)
    resolver.used.add(path.parts[0])
    method = path.parts[-1]
    if method != JUDGE.name or not kind.judges:
        if written(kind.name, method) is not None:
            message = (
                f"`{path.text}` can be called only in the flow; a reward calls a judge's `score`"
            )
            ctx.error("F119", message, path.span, help=f"`{declared.name}.score(prompt = ...)`")
        else:
            what = f"{kind.name} `{declared.name}` has no method"
            methods = (JUDGE.name,) if kind.judges else ()
            ctx.unknown("F101", what, method, part_span(path, len(path.parts) - 1), methods)
        return None
    args = value.args if isinstance(value, ast.Call) else ()
    if kind.trains:
        return _scorer(resolver, declared, args, value)
    bound = resolver.coercer.bind(JUDGE, args, value.span, resolver.scope)
    if bound is ERROR:
        return None
    least, most = bound["scale"]
    low, high = bound["range"]
    problem = _template_problem(resolver, bound["prompt"], value)
    if not problem and least >= most:
        problem = f"a scale must go up, but this one goes from {least} to {most}"
    if not problem and not kind.remote and most > DIGITS:
        problem = f"a grade must be one token, 0 to {DIGITS}, but this scale goes to {most}"
    if not problem and low >= high:
        problem = f"a range must go up, but this one goes from {low:g} to {high:g}"
    if problem:
        if problem is not True:
            ctx.error("F113", problem, value.span)
        return None
    if kind.remote and not _reachable(resolver, declared):
        return None
    return Constructor(name=NAME, args={**bound, "service": declared.name}, span=value.span)


def _reachable(resolver: File, declared: Declared) -> bool:
    """True if an endpoint has a URL, and its key is given as the name of an environment
    variable."""
    url, key = (resolver.setting(declared, name) for name in ("url", "key"))
    bad = []
    renamed = resolver.setting(declared, "rename")
    for text in renamed.value if isinstance(renamed.value, list) else ():
        if not re.fullmatch(r"(max_tokens|temperature|response_format)=\w+", text):
            message = (
                "an entry of `rename` must be `FIELD=NAME` with FIELD max_tokens, temperature "
                "or response_format, not "
            )
            bad.append((renamed, f"{message}`{text}`", ""))
    if isinstance(url.value, str) and not url.value.startswith(("http://", "https://")):
        bad.append((url, "`url` must begin with http:// or https://", ""))
    if isinstance(key.value, str) and not re.fullmatch(VARIABLE, key.value):
        help_text = (
            "do not write the key itself into a file: run `export JUDGE_KEY=...` and write "
            '`key = "JUDGE_KEY"`'
        )
        bad.append((key, "`key` must be the name of an environment variable", help_text))
    for value, message, help_text in bad:
        span = value.place or declared.name_span
        resolver.ctx.error("F113", message, span, help=help_text)
    return not bad


def _scorer(
    resolver: File, declared: Declared, args: tuple[ast.Arg, ...], value: ast.Expr
) -> Constructor | None:
    """Resolve a reward model: it reads the whole answer, and `score` takes no arguments."""
    if not declared.head:
        message = f"`{declared.name}` has no value head"
        help_text = f"`service {declared.name} : {declared.ctor}(value_head(MODEL))`"
        resolver.ctx.error("F119", message, value.span, help=help_text)
        return None
    if args:
        message = (
            f"`{declared.name}.score` takes no arguments: a reward model reads the prompt "
            "and the answer"
        )
        resolver.ctx.error("F114", message, args[0].span)
        return None
    return Constructor(name=SCORER, args={"service": declared.name}, span=value.span)


def _template_problem(resolver: File, prompt: str, value: ast.Expr) -> str | bool:
    """Return the problem of a template, "" if there is none, True if it has already been
    reported."""
    try:
        found = placeholders(prompt)
    except ValueError as error:
        return (
            f"the judge's prompt is not a valid template: {error}; write braces as `{{{{` and "
            "`}}`"
        )
    unknown = [name for name in found if name not in PLACEHOLDERS and not name.startswith("row.")]
    if unknown:
        what = "the judge's prompt cannot have the placeholder"
        resolver.ctx.unknown("F101", what, unknown[0], value.span, (*PLACEHOLDERS, "row.COLUMN"))
        return True
    if all(name in found for name in OTHER_COMPLETIONS):
        return (
            "use either `{other}`, to compare with one answer at a time, or `{others}`, to "
            "compare with all at once"
        )
    return (
        ""
        if "response" in found
        else ("the judge's prompt does not show the answer: it has no placeholder `{response}`")
    )


def placeholders(prompt: str) -> tuple[str, ...]:
    """Return the placeholders of a template, each once. Raises ValueError if the syntax is
    wrong."""
    from string import Formatter  # imported late: most programs have no templates

    found = []
    for _, name, form, conversion in Formatter().parse(prompt):
        if name is not None and (form or conversion):
            raise ValueError(f"`{{{name}}}` cannot have a format")
        found += [name] if name is not None else []
    return tuple(dict.fromkeys(found))


def compares(judge: Constructor | None) -> bool:
    """True if a judge sees other completions of the prompt besides the one that it grades."""
    if judge is None:
        return False
    return any(name in placeholders(judge.args["prompt"]) for name in OTHER_COMPLETIONS)


def comparing_reward(program: Program, rewards: Iterable[str]) -> str:
    """Return the name of a reward, among `rewards` and the monitors, whose judge compares
    completions of a prompt; "" if there is none."""
    names = {*rewards, *(n for n, r in program.rewards.items() if r.settings["monitor"].value)}
    return min((n for n in names if compares(judge_of(program.rewards.get(n)))), default="")


def judge_of(reward: RewardDecl | None) -> Constructor | None:
    """Return the LLM judge that gives a reward, if one does."""
    body = reward.body if reward is not None else None
    return body if isinstance(body, Constructor) and body.name == NAME else None


def scorer_of(reward: RewardDecl | None) -> Constructor | None:
    """Return the reward model that gives a reward, if one does."""
    body = reward.body if reward is not None else None
    return body if isinstance(body, Constructor) and body.name == SCORER else None


def judges(program: Program, rewards: Iterable[str]) -> dict[str, Decl]:
    """Return the services of judges and reward models by reward, for `rewards` and the monitors."""
    names = {*rewards, *(n for n, r in program.rewards.items() if r.settings["monitor"].value)}
    found = {n: judge_of(r) or scorer_of(r) for n, r in program.rewards.items() if n in names}
    return {n: program.services[j.args["service"]] for n, j in found.items() if j is not None}
