"""X866 answer-in-reach: an environment writes the answer to a file that a tool reads.

    def reset(self, task, rng):
        (self.dir / "expected.json").write_text(task.target)                 # fires
    @tool
    def read(self, name: str) -> str: return (self.dir / name).read_text()
    def reset(self, task, rng): self.expected = task.target          # silent

The policy lists the folder, reads the answer, and is rewarded for it; it learns nothing about the
task (SWE-bench #465: the fix lay in the history of the repository). Keep the answer in the
process, `self.answer = task.target`, or in a folder that no tool serves. The rule is silent if the
tools name the file, to refuse it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.environments import PythonClass, python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.follow.values import Event

finding = rule(__doc__, "W")
READERS = (
    "read_text", "read_bytes", "open", "run", "check_output", "Popen", "create_subprocess_exec",
    "create_subprocess_shell", "getoutput",
)  # fmt: skip


def check(view: View) -> Findings:
    for env in python_environments(view):
        if not env.tools and "call_tool" not in env.methods:
            continue
        from forgedsl.lint.follow.programs import environment_flows, label

        events = (
            event
            for method in environment_flows(view, env)
            if method.name in ("reset", "__init__")
            for event in method.flow.events
        )
        found = next((event for event in events if _is_served(env, event)), None)
        if found is not None:
            yield finding(
                f"environment `{env.env.name}` writes the answer to a file that a tool can read",
                env.env.name_span,
                related=(label(view, "here", found.file, found.node),),
                help="keep it in an attribute, `self.answer = task.target`, or in a folder that no "
                "tool reads",
            )


def _is_served(env: PythonClass, event: Event) -> bool:
    """True if an event writes the target into a folder in which a tool reads files."""
    import ast as python

    from forgedsl.lint.follow.values import TARGET

    if event.kind != "call" or not isinstance(event.node, python.Call):
        return False
    name = event.name.rpartition(".")[2]
    if name in ("write_text", "write_bytes", "write") and event.values:
        given, place = event.values[0], getattr(event.node.func, "value", None)
    elif name == "dump" and len(event.values) > 1:
        given, place = event.values[0], event.node.args[1]
    else:
        return False
    if TARGET not in given.all or place is None:
        return False
    folders, names = _place(env, place)
    tools = [env.methods[each] for each in sorted(env.tools) if each in env.methods]
    tools += [env.methods["call_tool"]] if "call_tool" in env.methods else []
    return any(_reads(tool, folders, names) for tool in tools)


def _place(env: PythonClass, node: python.AST) -> tuple[set[str], set[str]]:
    """Return the attributes of `self` in an expression for a path, also through local names, and
    the names of files in it."""
    import ast as python

    from forgedsl.lint.python_bodies import Body

    methods = [m for m in env.methods.values() if any(n is node for n in python.walk(m))]
    nodes = [*Body(methods[0], env.module).nodes(node)] if methods else [*python.walk(node)]
    folders = {
        n.attr
        for n in nodes
        if isinstance(n, python.Attribute) and python.unparse(n.value) == "self"
    }
    names = {
        n.value.rpartition("/")[2]
        for n in nodes
        if isinstance(n, python.Constant) and isinstance(n.value, str)
    }
    return folders, names


def _reads(tool: python.AST, folders: set[str], names: set[str]) -> bool:
    """True if a tool reads files in one of the folders, and names none of the files."""
    import ast as python

    reads, own = False, set[str]()
    for node in python.walk(tool):
        if isinstance(node, python.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            reads = reads or name in READERS
        if isinstance(node, python.Attribute) and python.unparse(node.value) == "self":
            own.add(node.attr)
        if isinstance(node, python.Constant) and node.value in names:
            return False
    return reads and not own.isdisjoint(folders)
