"""X841 state-shown: an observation prints an object that holds the answer.

    @dataclass
    class Game: low: int; high: int; secret: int
    return Start(f"A new game: {self.game}")         # fires: `secret` is a part of its repr
    secret: int = field(repr=False)                  # silent

The text of a dataclass shows all of its fields, also the one that guesses are compared with: the
policy reads the answer in its first observation (OpenEnv #446 shows another way to read it). Show
what the policy may see, field by field, or keep the answer out of the repr.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forgedsl.lint.environments import PythonClass, argument, python_environments
from forgedsl.lint.finding import Findings, rule
from forgedsl.lint.rewards import called_name
from forgedsl.lint.view import View

if TYPE_CHECKING:
    import ast as python
    from collections.abc import Iterator

finding = rule(__doc__, "W")
TEXTS = ("__repr__", "__str__", "__format__")


def check(view: View) -> Findings:
    for env in python_environments(view):
        node, name, field = next(_shown(env), (None, "", ""))
        if node is not None:
            from forgedsl.lint.follow.programs import files_of, label

            file = files_of(view).read(env.env.body.module)
            assert file is not None
            yield finding(
                f"environment `{env.env.name}` shows the policy all of `self.{name}`, also its "
                f"`{field}`",
                env.env.name_span,
                related=(label(view, "here", file, node),),
                help=f"show single fields of it, or `{field}: ... = field(repr=False)`",
            )


def _shown(env: PythonClass) -> Iterator[tuple[python.AST, str, str]]:
    """Yield observations with the text of an object, its name, and its field with the answer."""
    import ast as python

    classes = {n.name: n for n in env.module.body if isinstance(n, python.ClassDef)}
    made: dict[str, str] = {}
    for node in (each for method in env.methods.values() for each in python.walk(method)):
        if isinstance(node, python.Assign) and isinstance(node.value, python.Call):
            name = getattr(node.value.func, "id", "")
            for target in node.targets:
                if name in classes and python.unparse(target).startswith("self."):
                    made[python.unparse(target).removeprefix("self.")] = name
    for method in env.methods.values() if made else ():
        for call in python.walk(method):
            is_said = isinstance(call, python.Call) and called_name(call) in ("Start", "Step")
            said = argument(call, "observation", 0) if is_said else None  # type: ignore[arg-type]
            for part in python.walk(said) if said is not None else ():
                name = _printed(part)
                field = _answer(env, name, classes[made[name]]) if name in made else ""
                if field:
                    yield call, name, field


def _printed(node: python.AST) -> str:
    """Return NAME of `{self.NAME}` in an f-string, of `str(self.NAME)` and `repr(self.NAME)`."""
    import ast as python

    inner = node.value if isinstance(node, python.FormattedValue) else None
    if isinstance(node, python.Call) and called_name(node) in ("str", "repr") and node.args:
        inner = node.args[0]
    is_own = isinstance(inner, python.Attribute) and python.unparse(inner.value) == "self"
    return inner.attr if is_own else ""  # type: ignore[union-attr]


def _answer(env: PythonClass, name: str, of: python.ClassDef) -> str:
    """Return a field of a dataclass that its text shows and that `step` compares by `==`."""
    import ast as python

    if not any("dataclass" in python.unparse(each) for each in of.decorator_list):
        return ""
    if any(getattr(item, "name", "") in TEXTS for item in of.body):
        return ""
    fields = {
        item.target.id
        for item in of.body
        if isinstance(item, python.AnnAssign) and isinstance(item.target, python.Name)
        if item.value is None or "repr=False" not in python.unparse(item.value)
    }
    step = env.methods.get("step")
    for node in python.walk(step) if step is not None else ():
        if isinstance(node, python.Compare) and isinstance(node.ops[0], python.Eq):
            for side in (node.left, node.comparators[0]):
                text = python.unparse(side)
                if text.startswith(f"self.{name}.") and text.rpartition(".")[2] in fields:
                    other = node.comparators[0] if side is node.left else node.left
                    if not isinstance(other, python.Constant):
                        return text.rpartition(".")[2]
    return ""
