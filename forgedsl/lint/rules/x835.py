"""X835 secret-shown: Python shows a key to the policy, or prints all variables of the process.

    asked = f"https://news.example.org/search?apiKey={os.environ['NEWS_KEY']}&q={words}"
    except HTTPError as error: return f"{error} for {asked}"      # fires: an observation
    except HTTPError as error: return f"status {error.code}"      # silent
    print(dict(os.environ))                                       # fires: it goes to the log

What the policy reads is written to samples and reports. What is printed goes to the log of
the run. A key in such a file is public once the file is shared (MemoryOS #70, image-router #26).
Show the status of an error, and no text that was made with a key. A variable holds a secret if its
name ends with KEY, TOKEN, SECRET, PASSWORD or CREDENTIALS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import called_name, python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.follow.reached import Part

finding = rule(__doc__, "W")
PRINTS = ("print", "info", "debug", "warning", "error", "critical", "log", "pprint")
WRAPS = ("dict", "str", "repr", "dumps", "sorted", "list", "items", "pformat", "copy")


def check(view: View) -> Findings:
    if not (python_rewards(view) or python_environments(view)):
        return
    from forgedsl.lint.follow.programs import label
    from forgedsl.lint.follow.reached import found_in

    for env in python_environments(view):
        here = _shown(view, env)
        if here is not None:
            yield finding(
                f"{env.what} `{env.env.name}` shows the policy a text with a secret in it",
                env.env.name_span,
                related=(here,),
                help="show what went wrong without the text that has the key",
            )
    for part, node in found_in(view, _printed):
        yield finding(
            f"{part.what} prints all variables of its process, keys included",
            part.span,
            related=(label(view, "here", part.file, node),),
            help="print the variables that you need, by name",
        )


def _shown(view: View, env: object) -> Label | None:
    """Return an observation, or a value of a tool, that has a secret in it."""
    from forgedsl.lint.follow.programs import environment_flows, label
    from forgedsl.lint.follow.values import SECRET

    for method in environment_flows(view, env):  # type: ignore[arg-type]
        for event in method.flow.events if not method.is_tool else ():
            if event.kind == "call" and event.name.rpartition(".")[2] in ("Step", "Start"):
                said = event.argument("observation", 0)
                if said is not None and SECRET in said.all:
                    return label(view, "here", event.file, event.node)
        for each in method.flow.returned if method.is_tool else ():
            if SECRET in each.value.all:
                return label(view, "here", method.flow.file, each.node)
    return None


def _printed(part: Part) -> python.AST | None:
    """Return a call that prints `os.environ` as a whole."""
    import ast as python

    for node in part.nodes() if "environ" in part.file.text else ():
        if not isinstance(node, python.Call) or called_name(node) not in PRINTS:
            continue
        if any(map(_is_whole, [*node.args, *(word.value for word in node.keywords)])):
            return node
    return None


def _is_whole(node: python.expr) -> bool:
    """True for `os.environ`, also inside of `dict(...)` and of an f-string."""
    import ast as python

    match node:
        case python.Attribute(value=python.Name(id="os"), attr="environ"):
            return True
        case python.JoinedStr(values=parts):
            return any(isinstance(p, python.FormattedValue) and _is_whole(p.value) for p in parts)
        case python.Call(func=python.Attribute(value=inner, attr=attr)) if attr in WRAPS:
            return _is_whole(inner) or any(map(_is_whole, node.args))
        case python.Call(args=args):
            return called_name(node) in WRAPS and any(map(_is_whole, args))
    return False
