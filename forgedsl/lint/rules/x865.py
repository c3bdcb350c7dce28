"""X865 process-left: each trajectory starts a process, and nothing ends it.

    def reset(self, task, rng):
        self.engine = subprocess.Popen(["engine"], stdin=subprocess.PIPE)    # fires
    def close(self): self.engine.kill()                                      # silent with it

A trajectory ends in many ways: it is done, its turns or its time are used up, a step fails. A
process that is not ended then stays until the run ends, and after some steps there are thousands
(verifiers #543). End it in `close`, which is called at the end of each trajectory. The rule fires
for `Popen`, `create_subprocess_exec` and the like in methods, and in rewards, if no code that they
reach waits for the process or ends it. A server that the file starts once is silent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.environments import python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import python_rewards
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python

    from forgedsl.lint.follow.reached import Part

finding = rule(__doc__, "W")
STARTS = (
    "Popen", "create_subprocess_exec", "create_subprocess_shell", "popen_spawn", "PopenSpawn",
    "spawn", "Process",
)  # fmt: skip
ENDS = (
    "kill", "terminate", "wait", "communicate", "send_signal", "killpg", "close", "join", "quit",
    "stop", "shutdown", "wait_for",
)  # fmt: skip
OWNERS = ("subprocess", "asyncio", "multiprocessing", "pexpect", "mp", "psutil")


def check(view: View) -> Findings:
    if not (python_rewards(view) or python_environments(view)):
        return
    from forgedsl.lint.follow.programs import label
    from forgedsl.lint.follow.reached import found_in

    for part, node in found_in(view, _left):
        yield finding(
            f"{part.what} starts a process for each "
            f"{'answer' if part.is_reward else 'trajectory'}, and nothing ends it",
            part.span,
            related=(label(view, "here", part.file, node),),
            help="end it before the reward returns, or use `subprocess.run(..., timeout=10)`"
            if part.is_reward
            else "end it in `close`, which is called at the end of each trajectory: "
            "`def close(self): self.engine.kill()`",
        )


def _left(part: Part) -> python.AST | None:
    """Return a call that starts a process in a function, if nothing ends processes."""
    import ast as python

    started: python.AST | None = None
    for root in part.roots:
        functions = (
            node
            for node in python.walk(root)
            if isinstance(node, python.FunctionDef | python.AsyncFunctionDef)
        )
        for function in functions:
            if any("cache" in python.unparse(each) for each in function.decorator_list):
                continue
            inside = {
                id(item.context_expr)
                for node in python.walk(function)
                if isinstance(node, python.With | python.AsyncWith)
                for item in node.items
            }
            for node in python.walk(function):
                if isinstance(node, python.Call):
                    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                    owner = getattr(getattr(node.func, "value", None), "id", "")
                    of_text = isinstance(getattr(node.func, "value", None), python.Constant)
                    if name in ENDS and not of_text:  # not `", ".join(...)`
                        return None
                    known = owner in OWNERS if owner else name.startswith(("Popen", "create_"))
                    if name in STARTS and known and id(node) not in inside:
                        started = started or node
    return started
