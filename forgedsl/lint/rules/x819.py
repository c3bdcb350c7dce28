"""X819 variables-told: the policy can read the environment variables of the process.

    @tool
    def run(self, command: str) -> str:
        done = subprocess.run(command, shell=True, capture_output=True, text=True)   # fires
        return done.stdout
    def run(self, command: str) -> str:
        done = subprocess.run(command, shell=True, capture_output=True, text=True,
                              env={"PATH": "/usr/bin"}, timeout=9)                    # silent
    def show(self, name: str) -> str: return os.environ[name]                         # fires

A program that a tool starts gets the variables of its process: API keys of judges and trackers
among them. The policy prints them, and the transcripts of the run keep them (koda #1229, electric
#4362). Pass `env=` with what the program needs, or run it in a sandbox
(`forgedsl_runtime.sandbox`) or a container.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.environments import PythonClass, python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Iterator

finding = rule(__doc__, "W")
RUNS = ("subprocess.run", "subprocess.Popen", "subprocess.check_output", "subprocess.check_call",
        "subprocess.call", "subprocess.getoutput", "asyncio.create_subprocess_shell",
        "asyncio.create_subprocess_exec", "os.system", "os.popen")  # fmt: skip
SHELLS = ("bash", "sh", "zsh", "python", "python3", "node", "sys.executable")
"""Programs that run code given as an argument. `docker` and sandboxes are not among them: they have
variables of their own."""


def check(view: View) -> Findings:
    for env in python_environments(view):
        for tool, what, node in _leaks(env):
            yield finding(
                f"tool `{tool}` of `{env.env.name}` {what}",
                env.env.name_span,
                related=(Label(text="here", span=env.at(node)),),
                help='give the program only what it needs, `env={"PATH": ...}`, or run it in a '
                "sandbox or a container",
            )
            break


def _leaks(env: PythonClass) -> Iterator[tuple[str, str, python.AST]]:
    """Yield tools that return variables, or run a program of the policy with them."""
    import ast as python

    for name in sorted(env.tools & env.methods.keys()):
        method, full = env.methods[name], env.names(env.methods[name])
        given = {argument.arg for argument in method.args.args[1:]}
        for node in python.walk(method):
            if isinstance(node, python.Return) and node.value is not None:
                inside = [full(each) for each in python.walk(node.value)]
                if any(each in ("os.environ", "os.getenv") for each in inside):
                    yield name, "returns environment variables, keys among them", node
            if isinstance(node, python.Call) and full(node.func) in RUNS and node.args:
                words = {word.arg for word in node.keywords}
                if not words & {"env", None} and _runs(node, given):
                    yield name, "runs the policy's program with the variables of its process", node


def _runs(call: python.Call, given: set[str]) -> bool:
    """True if the policy says what is run: a command for a shell, or a program for `python -c`."""
    import ast as python

    first = call.args[0]
    said = {n.id for arg in call.args for n in python.walk(arg) if isinstance(n, python.Name)}
    if not said & given:
        return False
    listed = first.elts if isinstance(first, python.List | python.Tuple) else None
    if listed is None:
        shell = any(w.arg == "shell" and getattr(w.value, "value", True) for w in call.keywords)
        return shell or not python.unparse(call.func).endswith(("run", "Popen", "call", "exec"))
    head = listed[0] if listed else None
    if isinstance(head, python.Constant):
        return str(head.value).rpartition("/")[2] in SHELLS
    return head is not None and python.unparse(head) in SHELLS
