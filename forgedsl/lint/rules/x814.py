"""X814 shared-state: an environment stores state of one trajectory where all trajectories share it.

    class Desk(Environment):
        seen = []                                    # fires: one list for all trajectories
        def step(self, turn): self.seen.append(turn.text)
    def reset(self, task, rng): self.seen = []       # silent: each has its own
    def step(self, turn): os.chdir("/tmp/work")      # fires: moves all trajectories of the process

Each trajectory has its own object, and hundreds of them run in threads of one process. A change of
the class, a global name, `os.environ`, or the process (current folder, signals, the seed of
`random`) affects all of them. Set attributes of `self` in `reset`. In benchflow #539, concurrent
rollouts read each other's URLs and keys from `os.environ`. Objects meant to be shared, such as a
semaphore or an HTTP client of the class, are silent.
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
MADE = ("list", "dict", "set", "defaultdict", "deque", "Counter", "OrderedDict")
CHANGES = (
    "append", "extend", "insert", "add", "update", "pop", "remove", "clear", "setdefault",
    "discard", "popleft", "appendleft", "popitem",
)  # fmt: skip
PROCESS = {
    "os.chdir": "the current folder", "os.putenv": "the variables", "os.umask": "the umask",
    "os.environ.update": "the variables", "os.environ.setdefault": "the variables",
    "os.environ.pop": "the variables", "signal.signal": "the signals", "signal.alarm": "the alarm",
    "signal.setitimer": "the alarm", "random.seed": "the seed of `random`",
    "numpy.random.seed": "the seed of numpy", "torch.manual_seed": "the seed of torch",
}  # fmt: skip


def check(view: View) -> Findings:
    for env in python_environments(view):
        for what, node, help_ in _shared(env):
            yield finding(
                f"{env.what} `{env.env.name}` {what}",
                env.env.name_span,
                related=(Label(text="here", span=env.at(node)),),
                help=help_,
            )
            break


def _shared(env: PythonClass) -> Iterator[tuple[str, python.AST, str]]:
    """Return the shared state that is written, and the node that writes it."""
    import ast as python

    own = {name for method in env.methods.values() for name in _assigned(method)}
    shared = {
        name
        for name, item in env.items.items()
        if _is_made(getattr(item, "value", None)) and name not in {*own, "parts", "command"}
    }
    for method in env.methods.values():
        full = env.names(method)
        for node in python.walk(method):
            if isinstance(node, python.Global):
                name = node.names[0]
                yield (
                    f"writes to `{name}` of its file, which all trajectories share",
                    node,
                    f"`self.{name} = ...` in `reset`",
                )
            changed = _changed(node)
            name = getattr(changed, "attr", "")
            owner = full(changed.value) if isinstance(changed, python.Attribute) else ""
            if changed is not None and full(changed) == "os.environ":
                yield _process("the variables", node)
            elif name in shared and owner in ("self", "cls", env.env.body.name):
                yield (
                    f"keeps `{name}` in the class, where all trajectories share it",
                    node,
                    f"`self.{name} = ...` in `reset`",
                )
            elif isinstance(node, python.Assign | python.AugAssign):
                targets = node.targets if isinstance(node, python.Assign) else [node.target]
                written = [t for t in targets if _is_of_class(t, env.env.body.name)]
                if written:
                    yield (
                        f"writes to `{python.unparse(written[0])}`, which all trajectories share",
                        node,
                        "write to `self`",
                    )
            elif isinstance(node, python.Call) and full(node.func) in PROCESS:
                yield _process(PROCESS[full(node.func)], node)


def _process(what: str, node: python.AST) -> tuple[str, python.AST, str]:
    told = f"changes {what} of the process, in which other trajectories play"
    return told, node, "give it to what needs it, `subprocess.run(..., cwd=..., env=...)`"


def _assigned(method: python.AST) -> Iterator[str]:
    """Return the attributes that a method assigns to `self`."""
    import ast as python

    for node in python.walk(method):
        if isinstance(node, python.Attribute) and python.unparse(node.value) == "self":
            yield from [node.attr] if isinstance(node.ctx, python.Store) else []


def _is_made(value: python.AST | None) -> bool:
    """True if a value is a list, a dict, or another mutable container."""
    import ast as python

    if isinstance(value, python.Call):
        return getattr(value.func, "attr", getattr(value.func, "id", "")) in MADE
    return isinstance(value, python.List | python.Dict | python.Set)


def _changed(node: python.AST) -> python.expr | None:
    """Return the object that a node changes: `x` of `x.append(1)`, `x[0] = 1` and `del x[0]`."""
    import ast as python

    if isinstance(node, python.Call) and isinstance(node.func, python.Attribute):
        return node.func.value if node.func.attr in CHANGES else None
    if isinstance(node, python.Subscript) and not isinstance(node.ctx, python.Load):
        return node.value
    return None


def _is_of_class(target: python.expr, name: str) -> bool:
    """True for attributes of the class: `Desk.count`, `cls.count`, `type(self).count`,
    `self.__class__.count`."""
    import ast as python

    if not isinstance(target, python.Attribute):
        return False
    return python.unparse(target.value) in (name, "cls", "type(self)", "self.__class__")
