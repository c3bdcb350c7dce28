"""R529 number-inside: `contains` with a number as target, which occurs in longer numbers.

    target = after(row.answer, "#### ")
    reward correct = rl.contains                       # fires: 5 is in 15, and in 2500
    reward correct = rl.math_equal                     # silent
    target = "<answer>" + after(row.answer, "#### ") + "</answer>"      # silent
    reward correct = rl.contains(text = "42")          # fires: 42 is in 1425

A substring search rewards wrong answers, and a policy that lists numbers is always right (verifiers
#763, tau-bench #12). Compare the answer with `rl.math_equal`. The rule fires if the target is the
text after `####`, and, for a local .jsonl file, if the target of the first row is a number.
"""

from forgedsl.diagnostics import Label
from forgedsl.ir.program import Constructor, Decl, Deferred, rewards_of
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import first_row, value_at
from forgedsl.lint.rewards import place_of
from forgedsl.lint.view import View
from forgedsl.syntax import ast
from forgedsl.syntax.walk import reads
from forgedsl.types.flow import Role

finding = rule(__doc__, "W")
SAME = ("strip", "lower", "str", "replace")
"""functions of a text after which a number in it is still the same number"""
MARK = "####"
"""what stands before the number of an answer in GSM8K and in data made like it"""


def check(view: View) -> Findings:
    program = view.program
    if any("env" in step.settings for step in program.flow):
        return  # the text contains observations, which R511 is about
    scored = {
        n for s in program.flow if Role.SCORES in s.roles for n in rewards_of(program, s.receiver)
    }
    for name in sorted(scored):
        body = program.rewards[name].body
        if not isinstance(body, Constructor) or body.name != "contains":
            continue
        if body.args.get("text") is not None:
            text = str(body.args["text"]).strip()
            if _is_digits(text):
                yield finding(
                    f"`{name}` finds `{text}` inside longer numbers too",
                    place_of(program.rewards[name], view),
                    help=f'`rl.format_regex(".*\\\\b{text}\\\\b.*")` finds the number alone',
                )
            continue
        drawn = [program.datasets[s.receiver] for s in program.flow if Role.PROMPTS in s.roles]
        dataset = next((d for d in drawn if _is_number(view, d)), None)
        if dataset is not None:
            yield finding(
                f"`{name}` also finds the target, a number, inside longer numbers",
                place_of(program.rewards[name], view),
                related=(Label(text="its targets are numbers", span=dataset.name_span),),
                help="`rl.math_equal` compares the answer's number",
            )


def _is_number(view: View, dataset: Decl) -> bool:
    """True if the target is a bare number."""
    target = dataset.settings["target"].value
    expr = target.expr if isinstance(target, Deferred) else None
    while isinstance(expr, ast.Call) and expr.function.text in SAME and expr.args:
        expr = expr.args[0].value
    if isinstance(expr, ast.Call) and expr.function.text == "after":
        given = [arg.value for arg in expr.args]
        return any(isinstance(v, ast.String) and MARK in v.value for v in given)
    keys = next((keys for keys, node in reads(expr, "row") if node is expr), None) if expr else None
    row = first_row(view, dataset) if keys is not None else None
    value = value_at(row, keys) if row is not None and keys is not None else None
    return not isinstance(value, bool) and _is_digits(str(value).strip())


def _is_digits(text: str) -> bool:
    return text.lstrip("-").replace(".", "", 1).isdigit()
