"""X833 score-in-reach: an environment reads its score from a file that a tool can write.

    @tool
    def write(self, name: str, text: str): (self.folder / name).write_text(text)
    score = float((self.folder / "reward.txt").read_text())                      # fires
    if override.is_file(): return float(override.read_text())                    # fires
    score = float((self.folder / "answer.txt").read_text() == self.answer)       # silent

The policy writes 1.0 into that file, and this is its reward. In five environments of OpenEnv the
policy could set any reward in this way (OpenEnv #1199). Compute the score from what the policy
made, or keep it where no tool can reach it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

if TYPE_CHECKING:
    from forgedsl.lint.follow.values import Event

finding = rule(__doc__, "W")
NUMBERS = ("float", "int", "bool", "loads", "load", "get", "safe_load")
"""calls that give a number or an object of what a file says"""
WRITES = ("write_text", "write_bytes", "write", "open")
RUNS = ("subprocess.", "os.system", "asyncio.create_subprocess")


def check(view: View) -> Findings:
    if not python_environments(view):
        return
    from forgedsl.lint.follow.programs import environment_flows, label
    from forgedsl.lint.follow.values import FILE, READS_TARGET

    for env in python_environments(view):
        flows = environment_flows(view, env)
        tools = [method for method in flows if method.is_tool]
        writing = next((m.name for m in tools if any(map(_writes, m.flow.events))), "")
        returned = [e for m in flows for e in m.flow.events if e.kind == "return"]
        for event in (e for m in flows for e in m.flow.events if e.kind == "call"):
            made = event.name.rpartition(".")[2] == "Step"
            rewards = event.argument("rewards", 1) if made and writing else None
            read = rewards.all if rewards is not None else frozenset()
            given = READS_TARGET in read and any(map(_is_number_of_file, returned))
            if FILE in read and (READS_TARGET not in read or given):
                yield finding(
                    f"`{env.env.name}` reads its score from a file, and tool `{writing}` writes "
                    "files",
                    env.env.name_span,
                    related=(label(view, "the score", event.file, event.node),),
                    help="compute the score from what the policy made, or read it from a place "
                    "that no tool can write to",
                )
                break


def _is_number_of_file(event: Event) -> bool:
    """True for `return float(path.read_text())`, and for a field of what was parsed, by a function
    that may also compare with the target."""
    import ast as python

    from forgedsl.lint.follow.values import FILE, READS_TARGET

    value = event.node.value if isinstance(event.node, python.Return) else None
    while isinstance(value, python.Subscript | python.Attribute | python.Await):
        value = value.value
    read = event.values[0].all
    is_call = isinstance(value, python.Call)
    name = getattr(
        getattr(value, "func", None), "attr", getattr(getattr(value, "func", None), "id", "")
    )
    return is_call and name in NUMBERS and FILE in read and READS_TARGET not in read


def _writes(event: Event) -> bool:
    """True if a call writes a file whose name the policy chooses, or runs a command of it."""
    from forgedsl.lint.follow.values import READS_RESPONSE

    if event.kind != "call":
        return False
    given = event.receiver.all.union(*(value.all for value in event.values))
    if event.name.startswith(RUNS):
        return READS_RESPONSE in given
    named = event.values[0].all if event.name == "open" and event.values else event.receiver.all
    return event.name.rpartition(".")[2] in WRITES and READS_RESPONSE in named
