"""X814 shared-state: an environment stores state of one trajectory where all trajectories share it.

    class Desk(Environment):
        seen = []                                    # fires: one list for all trajectories
        def step(self, turn): self.seen.append(turn.text)
    def reset(self, task, rng): self.seen = []       # silent: each has its own
    def step(self, turn): os.chdir("/tmp/work")      # fires: moves all trajectories of the process

    def note(self, text, seen=[]): seen.append(text)     # fires: one list for all calls

    TRIES = {"now": 0}
    def count(): TRIES["now"] += 1                   # fires, if a method calls it
    PRICES[item] = price(item)                       # silent: a cache, filled by key
    self.tries = TRIES                               # and then `self.tries[task.text] += 1` fires
    @functools.cache
    def board(text): return [[0] * 9 for _ in range(9)]
    def reset(self, task, rng): self.cells = board(task.text)        # fires, if `step` changes it
    Path("/tmp/query.sql").write_text(found[-1])     # fires, if it is read again

Each trajectory has its own object, and hundreds of them run in threads of one process. A change of
the class, a global name, `os.environ`, or the process (current folder, signals, the seed of
`random`) affects all of them. Set attributes of `self` in `reset`. In benchflow #539, concurrent
rollouts read each other's URLs and keys from `os.environ`. Objects meant to be shared, such as a
semaphore or an HTTP client of the class, are silent.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TYPE_CHECKING

from forgedsl.diagnostics import Label
from forgedsl.lint.environments import PythonClass, python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Iterator

    from forgedsl.lint.follow.values import Event

finding = rule(__doc__, "W")
MADE = ("list", "dict", "set", "defaultdict", "deque", "Counter", "OrderedDict")
CHANGES = (
    "append", "extend", "insert", "add", "update", "pop", "remove", "clear", "setdefault",
    "discard", "popleft", "appendleft", "popitem",
)  # fmt: skip
SQL_CALLS = ("execute", "executemany")
OWN_FOLDER = (
    "write to a folder of its own: `self.folder = tempfile.TemporaryDirectory()` in `reset`"
)
WRITES_ROWS = re.compile(r"\s*(insert|update|delete|replace)\b", re.IGNORECASE)
OWN_KEY = re.compile(r"uuid|token|session|episode|trajectory|rollout|\bid\(|_id\b|\.id\b|\.key\b")
"""names of what tells the rows of one trajectory from those of others"""
VARIABLES = "the environment variables"
PROCESS = {
    "os.chdir": "the current folder", "os.putenv": VARIABLES, "os.umask": "the umask",
    "os.environ.update": VARIABLES, "os.environ.setdefault": VARIABLES,
    "os.environ.pop": VARIABLES, "signal.signal": "the signals", "signal.alarm": "the alarm",
    "signal.setitimer": "the alarm", "random.seed": "the seed of `random`",
    "numpy.random.seed": "the seed of numpy", "torch.manual_seed": "the seed of torch",
}  # fmt: skip


def check(view: View) -> Findings:
    for env in python_environments(view):
        own = ((w, Label(text="here", span=env.at(node)), help_) for w, node, help_ in _shared(env))
        for what, here, help_ in chain(own, _in_helpers(view, env)):
            yield finding(
                f"{env.what} `{env.env.name}` {what}",
                env.env.name_span,
                related=(here,),
                help=help_,
            )
            break


def _in_helpers(view: View, env: PythonClass) -> Iterator[tuple[str, Label, str]]:
    """Yield what methods, and the functions that they call, change of their file or the process."""
    from forgedsl.lint.follow.programs import environment_flows, label

    for method in environment_flows(view, env):
        reads = any(map(_reads_fixed, method.flow.events))
        for event in method.flow.events if method.name != "__init__" else ():
            fault: tuple[str, python.AST, str] = ("", event.node, "")
            if event.kind == "call" and event.name in PROCESS:
                fault = _process(PROCESS[event.name], event.node)
            elif event.kind == "change" and event.name == "os.environ":
                fault = _process(VARIABLES, event.node)
            elif reads and _writes_fixed(event):
                what = "writes text of the policy to one file, which all trajectories share"
                fault = what, event.node, OWN_FOLDER
            elif event.kind == "global":
                fault = _of_file(event.name, event.node)
            elif event.name.startswith("global ") and _counts(event):
                fault = _of_file(event.name.removeprefix("global "), event.node)
            else:
                fault = _under_another_name(event)
            if fault[0]:
                yield fault[0], label(view, "here", event.file, event.node), fault[2]


def _under_another_name(event: Event) -> tuple[str, python.AST, str]:
    """Return what is wrong with a change of an object that all trajectories share, though it has a
    name of its own in the trajectory."""
    from forgedsl.lint.follow.values import CACHED, ONE_OBJECT, SHARED

    labels = event.receiver.labels & ONE_OBJECT
    method = event.name.rpartition(".")[2] if event.kind == "call" else ""
    if method == "shuffle" and event.values:
        labels = event.values[0].labels & ONE_OBJECT
    is_change = event.kind == "change" or method in (*CHANGES, "sort", "reverse", "shuffle")
    if is_change and CACHED in labels:
        what = (
            "changes the object that a cached function returns: all trajectories get the same one"
        )
        return what, event.node, "change a copy: `copy.deepcopy(...)` in `reset`"
    if SHARED in labels and method in SQL_CALLS and _writes_rows(event):
        what = "writes rows into one database, which all trajectories share"
        help_ = 'open one for each trajectory, `self.db = sqlite3.connect(":memory:")` in `reset`'
        return what, event.node, f"{help_}, or put a key of the trajectory into each row"
    is_alias = event.kind == "change" and not event.name.startswith("global ")
    if is_alias and SHARED in labels and _counts(event):
        what = "changes an object that its file makes once, so that all trajectories share it"
        return what, event.node, "make it in `reset`: `self.tries = {}`"
    return "", event.node, ""


def _writes_rows(event: Event) -> bool:
    """True for a statement of SQL that changes rows, if nothing in it names the trajectory."""
    import ast as python

    text = event.values[0].const if event.values else None
    if not isinstance(text, str) or WRITES_ROWS.match(text) is None:
        return False
    given = event.node.args[1:] if isinstance(event.node, python.Call) else []
    said = " ".join(python.unparse(each) for each in given)
    return OWN_KEY.search(said) is None


def _writes_fixed(event: Event) -> bool:
    """True if text of the policy is written to a file with a constant path."""
    from forgedsl.lint.follow.values import FIXED, READS_RESPONSE

    name = event.name.rpartition(".")[2]
    is_write = event.kind == "call" and name in ("write_text", "write_bytes") and event.values
    fixed = FIXED in event.receiver.labels
    return bool(is_write) and fixed and READS_RESPONSE in event.values[0].all


def _reads_fixed(event: Event) -> bool:
    """True if a file with a constant path is read, or given to a program."""
    from forgedsl.lint.follow.values import FIXED

    name = event.name.rpartition(".")[2]
    if event.kind != "call":
        return False
    given = (value for value in event.values if FIXED in value.all)
    is_run = event.name.startswith(("subprocess.", "asyncio.create_subprocess"))
    return (name in ("read_text", "read_bytes", "open") and FIXED in event.receiver.labels) or (
        is_run and any(given)
    )


def _of_file(name: str, node: python.AST) -> tuple[str, python.AST, str]:
    what = f"writes to the global `{name}`, which all trajectories share"
    return what, node, f"give each trajectory its own: `self.{name.lower()} = ...` in `reset`"


def _counts(event: Event) -> bool:
    """True for a change at a constant key, at the end, or by `+=`. A change at a computed key may
    fill a cache."""
    import ast as python

    match event.node:
        case python.Subscript(slice=python.Constant()) | python.AugAssign():
            return True
        case python.Call(func=python.Attribute(attr=attr)):
            return attr in ("append", "extend", "insert", "appendleft", "pop")
    return False


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
        default = _default_changed(method)
        if default is not None:
            yield (
                f"keeps `{default[0]}` in the default of an argument, which all calls share",
                default[1],
                f"`{default[0]}=None`, and a new one in the body; or `self.{default[0]} = []` in "
                "`reset`",
            )
        full = env.names(method)
        for node in python.walk(method):
            changed = _changed(node)
            name = getattr(changed, "attr", "")
            owner = full(changed.value) if isinstance(changed, python.Attribute) else ""
            if name in shared and owner in ("self", "cls", env.env.body.name):
                yield (
                    f"keeps `{name}` in the class, where all trajectories share it",
                    node,
                    f"give each trajectory its own: `self.{name} = ...` in `reset`",
                )
            elif isinstance(node, python.Assign | python.AugAssign):
                targets = node.targets if isinstance(node, python.Assign) else [node.target]
                written = [t for t in targets if _is_of_class(t, env.env.body.name)]
                if written:
                    yield (
                        f"writes to `{python.unparse(written[0])}`, which all trajectories share",
                        node,
                        "write to `self`, which is an object of its own for each trajectory",
                    )


def _default_changed(method: python.AST) -> tuple[str, python.AST] | None:
    """Return an argument whose default is a list, a dict or a set, and the node that changes it."""
    import ast as python

    if not isinstance(method, python.FunctionDef | python.AsyncFunctionDef):
        return None
    given = [*method.args.posonlyargs, *method.args.args]
    pairs_ = zip(given[len(given) - len(method.args.defaults) :], method.args.defaults, strict=True)
    words = zip(method.args.kwonlyargs, method.args.kw_defaults, strict=True)
    made = {each.arg for each, value in (*pairs_, *words) if _is_made(value)}
    for node in python.walk(method):
        changed = _changed(node)
        if isinstance(changed, python.Name) and changed.id in made:
            return changed.id, node
    return None


def _process(what: str, node: python.AST) -> tuple[str, python.AST, str]:
    message = f"changes {what} of the process, which all its trajectories share"
    help_ = "pass it to the call that needs it, such as `subprocess.run(..., cwd=..., env=...)`"
    if what in ("the signals", "the alarm"):
        help_ = "give the call a timeout of its own; signals work in the main thread alone"
    elif what.startswith("the seed"):
        help_ = "draw from the `rng` that `reset` is given"
    return message, node, help_


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
