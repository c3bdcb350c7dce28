"""D641 stop-cuts-answer: a stop string removes a tag that a reward needs.

A stop string ends the completion and is not part of it. If a reward needs that tag, the reward is 0
for every completion (open-instruct #538 and #1041). Remove the stop string.

    sampling { stop = ["</answer>"], max_tokens = 512 }
    reward tags = rl.think_tags                          # fires: `</answer>` is never in the text
    sampling { stop = ["\\nQuestion:"], max_tokens = 512 }     # silent

`math_equal` needs the closing tag around an answer, too. The rule also fires for an empty stop
string, for one that a reward in Python or the class of an environment looks for, also by a pattern
such as `<(search|answer)>(.*?)</\\1>`, and for a line break where the prompt asks for reasoning,
which has paragraphs (vllm #14170). It is silent if the Python adds the tag again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from forgedsl.diagnostics import Diagnostic, Label
from forgedsl.ir.program import Constructor, Decl
from forgedsl.lint.environments import PythonClass, python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.prompts import asked_to_reason, drawn_from, said_to
from forgedsl.lint.rewards import place_of, python_rewards
from forgedsl.lint.view import View, place

if TYPE_CHECKING:
    import ast as python

finding = rule(__doc__, "D")
SEARCHES = ("search", "match", "fullmatch", "findall", "finditer", "compile", "split", "partition",
            "rpartition", "find", "rfind", "index", "count", "startswith", "endswith")  # fmt: skip
"""methods of `re` and of strings whose argument is looked for"""
SHORT = 3
"""stop strings with fewer characters occur in patterns by chance"""


def check(view: View) -> Findings:
    for service in view.samplers():
        stop = service.settings["sampling.stop"]
        texts = stop.value if isinstance(stop.value, list) else []
        if "" in texts:
            yield finding(
                "an empty stop string has no defined meaning",
                place(stop, service),
                help="leave it out: the model's end token ends an answer",
            )
        blank = next((text for text in texts if text and not text.strip(" \n")), "")
        if "\n" in blank and asked_to_reason(view):
            yield finding(
                "the prompt asks for reasoning, and answers end at its first line break"
                if blank.count("\n") == 1
                else "the prompt asks for reasoning, and answers end at its first blank line",
                place(stop, service),
                help="leave it out of `stop`: the model's end token ends an answer",
            )
        for text in texts:
            for reward in view.program.rewards.values() if text else ():
                body, args = reward.body, getattr(reward.body, "args", {})
                needed = _tags(getattr(body, "name", ""), args)
                needed += str(args.get("pattern") or args.get("text") or "")
                if isinstance(body, Constructor) and text in needed:
                    yield finding(
                        f"answers end before `{text}`, which `{reward.name}` looks for",
                        place(stop, service),
                        related=(Label(text="looks for it", span=place_of(reward, view)),),
                        help="leave it out of `stop`: the model's end token ends an answer",
                    )
                    break
            asked = (d for d in drawn_from(view) if text in said_to(d))
            if re.fullmatch(r"<\w+>", text) and next(asked, None) is not None:
                yield finding(
                    f"answers end before `{text}`, which the prompt asks for",
                    place(stop, service),
                    help=f"stop at the closing tag, `</{text[1:]}`, or leave it out",
                )
                continue
            yield from _environments(view, service, text)
            yield from _rewards(view, service, text)


def _rewards(view: View, service: Decl, text: str) -> Iterator[Diagnostic]:
    """Yield a finding if a reward in Python needs a stop string in the answer."""
    for found in python_rewards(view) if len(text.strip()) >= SHORT else ():
        node = _needs(found.module, text)
        if node is not None:
            yield finding(
                f"answers end before `{text}`, which reward `{found.reward.name}` looks for",
                place(service.settings["sampling.stop"], service),
                related=(Label(text="looks for it", span=found.at(node)),),
                help="leave it out of `stop`: the model's end token ends an answer",
            )


FILLED = ("x", "7", "1234", "a b", "e2e4", "B", '{"a": 1}')
"""what may stand between two tags, to try a pattern"""


def _needs(module: python.Module, text: str) -> python.AST | None:
    """Return a pattern of a file that a text between two tags matches only with the closing tag, or
    a search for it. None if the file adds the tag to a text."""
    import ast as python

    added = [
        each
        for node in python.walk(module)
        if isinstance(node, python.BinOp) and isinstance(node.op, python.Add)
        for each in (node.left, node.right)
    ] + [
        each
        for node in python.walk(module)
        if isinstance(node, python.JoinedStr)
        for each in node.values
    ]
    if any(isinstance(each, python.Constant) and text in str(each.value) for each in added):
        return None
    tag = re.fullmatch(r"</(\w+)>", text)
    for node in python.walk(module) if tag is not None else ():
        is_search = isinstance(node, python.Call) and getattr(node.func, "attr", "") in SEARCHES
        said = node.args[0] if is_search and node.args else None  # type: ignore[attr-defined]
        pattern = said.value if isinstance(said, python.Constant) else None
        if isinstance(pattern, str) and tag is not None and _matches_closed(pattern, tag[1]):
            return node
    return None


def _matches_closed(pattern: str, tag: str) -> bool:
    """True if a pattern finds a text between two tags, and does not if the second is missing."""
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except re.error:
        return False
    found = [f"<{tag}>{each}" for each in FILLED if compiled.search(f"<{tag}>{each}</{tag}>")]
    return bool(found) and not any(compiled.search(each) for each in found)


def _environments(view: View, service: Decl, text: str) -> Iterator[Diagnostic]:
    """Yield a finding if the class of an environment looks for a stop string."""
    for env in python_environments(view) if len(text.strip()) >= SHORT else ():
        node = next((n for n, said in _sought(env) if text in said.replace("\\", "")), None)
        node = node or _needs(env.module, text)
        if node is not None:
            yield finding(
                f"turns end before `{text}`, which environment `{env.env.name}` looks for",
                place(service.settings["sampling.stop"], service),
                related=(Label(text="looks for it", span=env.at(node)),),
                help="leave it out of `stop`: the model's end token ends a turn",
            )


def _sought(env: PythonClass) -> Iterator[tuple[python.AST, str]]:
    """Yield the strings that a file searches for, with the node of each search."""
    import ast as python

    for node in python.walk(env.module):
        if isinstance(node, python.Call) and getattr(node.func, "attr", "") in SEARCHES:
            said: list[python.expr] = node.args[:1]
        elif isinstance(node, python.Compare) and isinstance(node.ops[0], python.In | python.NotIn):
            said = [node.left]
        else:
            continue
        for value in said:
            if isinstance(value, python.Constant) and isinstance(value.value, str):
                yield node, value.value


def _tags(name: str, args: Mapping[str, Any]) -> str:
    """Return the tags that a reward reads."""
    if name == "think_tags":
        answer = "" if args["which"] == "any" else "<answer></answer>"
        return f"<{args['tag']}></{args['tag']}>{answer}"
    return "</answer>" if name == "math_equal" else ""
