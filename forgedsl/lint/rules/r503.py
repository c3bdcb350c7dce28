"""R503 leaked-target: the prompt contains the answer.

    dataset gsm8k {
      prompt = chat(system, row.answer)             # fires: the target is read from row.answer
      target = after(row.answer, "#### ")
    }
    prompt = chat(system, row.question)             # silent

The policy then learns to copy it. Remove the column from the prompt. `before(row.x, s)` in the
prompt and `after(row.x, s)` in the target are different parts of one column and silent. In
DataAgentBench #56, 79 of 270 trials had the answer in their last prompt.

The rule also fires if an environment reveals the answer. This may be `Step(f"No, {self.answer}")`
after `self.answer = task.target`, or a tool that returns it. It may also be a tool that says if its
argument is the answer, because the policy can then try arguments until one is right. The
observation of a step with `done=True` does not count, because the policy does not read it. An agent
reveals the target if a request to the policy (`model=model.name`) has it in its messages; a policy
that is asked whether its answer is right also reads the reference.

Of local files the rule reads some rows: it fires if a column of the prompt ends with the target in
all of them, behind a mark such as `=`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.ir.program import Decl, Deferred
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import rows_of, value_at, value_of
from forgedsl.lint.sources import parts
from forgedsl.lint.view import View
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.syntax.walk import Keys, reads, walk

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Iterator, Mapping
    from typing import Any

    from forgedsl.lint.environments import PythonClass
    from forgedsl.lint.follow.values import Event, Value

finding = rule(__doc__, "D")
LEAST = 4
"""the fewest rows, and different targets, from which a column is judged"""


def check(view: View) -> Findings:
    if view.program.environments:
        yield from _in_environments(view)
    for dataset in view.program.datasets.values():
        prompt, target = (dataset.settings[name].value for name in ("prompt", "target"))
        if not isinstance(prompt, Deferred) or not isinstance(target, Deferred):
            continue
        seen, wanted = _columns(prompt.expr), _columns(target.expr)
        key = (_in_rows, prompt.expr.span, target.expr.span, repr(dataset.settings["source"].value))
        if key not in view.shared.answers:
            view.shared.answers[key] = _in_rows(view, dataset, prompt, target)
        told = view.shared.answers[key]
        if told:
            yield finding(
                f"the prompt of `{dataset.name}` reads the column `{told}`, which ends with the "
                "target in every row that was checked",
                prompt.expr.span,
                related=(Label(text="the target", span=target.expr.span),),
                help=f"leave `{told}` out of the prompt",
            )
            continue
        for keys, part in seen:
            match = next((w for w in wanted if w[0] == keys and _overlap(part, w[1])), None)
            if match is not None:
                yield finding(
                    f"the prompt of `{dataset.name}` contains the target",
                    seen[keys, part],
                    related=(Label(text="the target", span=wanted[match]),),
                    help="leave it out of the prompt",
                )
                break


def _in_rows(view: View, dataset: Decl, prompt: Deferred, target: Deferred) -> str:
    """Return a column of the prompt that ends with the target in all rows of a local file that were
    read, or "". Such a column holds a solution."""
    wanted = {keys for keys, _ in reads(target.expr, "row")}
    rows = [r for part in parts(dataset.settings["source"].value) for r in rows_of(view, part)]
    targets = cache(lambda index: _text_of(value_of(target.expr, rows[index])))
    for keys, part in _columns(prompt.expr):
        if part or keys in wanted:
            continue
        held = (value_at(row, keys) for row in rows)
        tells = (_ends_with(text, targets(index)) for index, text in enumerate(held))
        if all(tells) and len({targets(index) for index in range(len(rows))}) >= LEAST:
            return ".".join(map(str, keys))
    return ""


def _text_of(target: object) -> str:
    """Return a target as text; "" if it is none."""
    return str(target).strip() if isinstance(target, str | int | float) else ""


def _ends_with(text: object, target: str) -> bool:
    """True if a text ends with the target behind a mark of a result, such as `=` or `is`. A passage
    that ends with the answer to its question is no leak."""
    if not target or not isinstance(text, str):
        return False
    mark = rf"(=|:|#|>|\bis)[\s${{(]*{re.escape(target)}[\s.)}}$]*$"
    return re.search(mark, text) is not None


def _in_environments(view: View) -> Findings:
    from forgedsl.lint.environments import python_environments

    for env in python_environments(view):
        found = _reveals(view, env)
        if found is not None:
            what, here = found
            yield finding(
                what,
                env.env.name_span,
                related=(here,),
                help="score the answer in `step`, once, with `done=True`"
                if " if " in what
                else "leave the target out of the text of the error"
                if "an error" in what
                else "leave the target out, or show it only in the last step (`done=True`)",
            )


def _reveals(view: View, env: PythonClass) -> tuple[str, Label] | None:
    """Return how and where the environment reveals the target: in an observation, or by a tool."""
    from forgedsl.lint.follow.programs import environment_flows, label
    from forgedsl.lint.follow.values import TARGET, VERDICT

    text, quoted = "the policy reads this", f"`{env.env.name}`"
    for method in environment_flows(view, env):
        for event in method.flow.events:
            made = event.name.rpartition(".")[2] if event.kind == "call" else ""
            if env.env.body.agent and any(TARGET in each.all for each in _sent(event)):
                here = label(view, "the policy reads this", event.file, event.node)
                return f"{env.what} {quoted} sends the target to the policy", here
            if made not in ("Start", "Step"):
                continue
            shown = event.argument("observation", 0)
            done = event.argument("done", 2) if made == "Step" else None
            ends = done is not None and done.const is not False
            if shown is not None and not ends and TARGET in shown.all:
                what = "the start" if made == "Start" else "a step"
                return f"{what} of {quoted} reveals the target", label(
                    view, text, event.file, event.node
                )
        if method.is_tool and TARGET in method.flow.thrown:
            return f"an error of tool `{method.name}` of {quoted} reveals the target", Label(
                text="the policy reads the text of its errors",
                span=env.at(env.methods[method.name]),
            )
        for returned in method.flow.returned if method.is_tool else ():
            here = label(view, text, method.flow.file, returned.node)
            if TARGET in returned.value.all:
                return f"tool `{method.name}` of {quoted} reveals the target", here
            if VERDICT in returned.value.all | returned.control:
                return f"tool `{method.name}` of {quoted} reveals if an answer is right", here
    return _verified(view, env)


def _verified(view: View, env: PythonClass) -> tuple[str, Label] | None:
    """Return a tool whose text says if its argument equals an attribute of `reset` with which
    `step` compares the answer."""
    from forgedsl.lint.follow.programs import environment_flows, label

    methods = environment_flows(view, env)
    steps = {name for m in methods if m.name == "step" for name, _ in _compared(m.flow.events)}
    for method in methods:
        for name, event in _compared(method.flow.events) if method.is_tool else ():
            tells = any(_tells(event, returned.node) for returned in method.flow.returned)
            if name in steps and tells and not _ends(method.flow.events):
                return (
                    f"tool `{method.name}` of `{env.env.name}` reveals if an answer is right",
                    label(view, "the policy reads this", event.file, event.node),
                )
    return None


def _compared(events: list[Event]) -> Iterator[tuple[str, Event]]:
    """Yield (attribute, event) for comparisons by `==` of text of the policy with an attribute that
    `reset` sets."""
    from forgedsl.lint.follow.values import KEPT, READS_RESPONSE

    for event in events:
        if event.kind != "compare" or not event.is_equality or len(event.values) != 2:
            continue
        sides = (event.node.left, *event.node.comparators)  # type: ignore[attr-defined]
        for node, value, other in zip(sides, event.values, event.values[::-1], strict=True):
            own = _own(node)
            is_kept = KEPT in value.all and READS_RESPONSE not in value.all
            if own and is_kept and READS_RESPONSE in other.all:
                yield own, event


def _own(node: python.AST) -> str:
    """Return the one attribute of `self` in an expression; "" if there is none, or several."""
    import ast as python

    inside = (n for n in python.walk(node) if isinstance(n, python.Attribute))
    names = [n.attr for n in inside if python.unparse(n.value) == "self"]
    return names[0] if len(names) == 1 else ""


def _tells(event: Event, returned: python.AST) -> bool:
    """True if a returned expression, or the test that leads to it, has a comparison in it."""
    import ast as python

    inside = {id(n) for n in python.walk(returned)}
    decides = any(
        isinstance(n, python.If) and id(event.node) in {id(m) for m in python.walk(n.test)}
        for n in python.walk(event.file.module)
    )
    return id(event.node) in inside or decides


def _ends(events: list[Event]) -> bool:
    """True if a tool keeps something, as one does that takes the answer."""
    return any(event.kind == "change" for event in events)


def _sent(event: Event) -> Iterator[Value]:
    """Yield what a call sends to the policy of an agent: the messages of a request whose model is
    `model.name`."""
    requests: list[Mapping[Any, Value]] = [event.keywords]
    requests += [each.fields for each in event.keywords.values() if each.fields]
    for given in requests:
        model = given.get("model")
        if model is not None and model.name == "model.name":
            yield from (given[each] for each in ("messages", "input", "prompt") if each in given)


def _columns(expr: ast.Expr) -> dict[tuple[Keys, str], Span]:
    """Map (column, part) to the span that reads it; the part is `before "x"`, `after "x"`, or ""
    for all."""
    inside: dict[Span, str] = {}
    for node in walk(expr):
        if isinstance(node, ast.Call) and node.function.text in ("before", "after"):
            separator = node.args[-1].value
            key = separator.value if isinstance(separator, ast.String) else ""
            inside[node.args[0].value.span] = f"{node.function.text} {key}"
    return {
        (keys, inside.get(node.span, "")): node.span for keys, node in reads(expr, "row") if keys
    }


def _overlap(a: str, b: str) -> bool:
    if not a or not b:
        return True
    (side, separator), (other, theirs) = a.split(" ", 1), b.split(" ", 1)
    return separator != theirs or side == other
